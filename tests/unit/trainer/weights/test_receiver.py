import base64
import pickle

import pytest

from raggrpo_trainer.weights.receiver import merge_handles


def test_ipc_handles_of_all_gpus_are_merged() -> None:
    handles = [pickle.dumps({"gpu-0": (1,)}), pickle.dumps({"gpu-1": (2,)})]
    update_info = merge_handles({"names": ["a"], "handles": handles})

    pickled = base64.b64decode(update_info.pop("ipc_handles_pickled"))
    assert pickle.loads(pickled) == {"gpu-0": (1,), "gpu-1": (2,)}
    assert update_info == {"names": ["a"]}


def test_chunk_without_ipc_handles_is_unchanged() -> None:
    assert merge_handles({"names": ["a"]}) == {"names": ["a"]}


def test_two_ranks_on_one_gpu_are_rejected() -> None:
    handle = pickle.dumps({"gpu-0": (1,)})
    with pytest.raises(ValueError, match="2 ranks share 1 GPUs"):
        merge_handles({"names": ["a"], "handles": [handle, handle]})
