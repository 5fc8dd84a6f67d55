import base64
import pickle
import weakref
from collections.abc import Iterator

import pytest
import torch

from raggrpo_trainer.engines.engine import with_handles
from raggrpo_trainer.weights.device_parts import PartSender


def test_parts_are_as_large_as_they_may_be_and_hold_every_tensor_once() -> None:
    sizes = [4, 4, 4, 20, 1, 2]
    weights = [(str(i), torch.arange(size, dtype=torch.float32)) for i, size in enumerate(sizes)]
    sender = PartSender(iter(weights), maps=False, size=40)
    found = []
    while (part := sender.next()) is not None:
        assert part["dtype_names"] == ["float32"] * len(part["names"])
        found.append((part["names"], part["shapes"]))

    assert found == [
        (["0", "1"], [[4], [4]]),
        (["2"], [[4]]),
        (["3"], [[20]]),  # larger than a part
        (["4", "5"], [[1], [2]]),
    ]
    assert sender.next() is None


def test_rank_0_broadcasts_the_tensors_of_the_part_in_order() -> None:
    sent: list[tuple[list[float], int]] = []

    class Group:
        def broadcast(self, tensor: torch.Tensor, *, src: int) -> None:
            sent.append((tensor.flatten().tolist(), src))

    transposed = torch.arange(4.0).view(2, 2).T
    sender = PartSender([("a", transposed), ("b", torch.ones(1))], maps=False, size=1000)
    sender.next()
    sender.broadcast(Group())  # type: ignore[arg-type]

    assert sent == [([0.0, 2.0, 1.0, 3.0], 0), ([1.0], 0)]


def test_a_part_is_let_go_before_the_next_is_gathered() -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        for number in range(6):
            held = sum(each() is not None for each in alive)
            assert held <= 2, "a part of one tensor, and the one that begins the next"
            tensor = torch.ones(10)
            alive.append(weakref.ref(tensor))
            yield str(number), tensor
            del tensor

    sender = PartSender(weights(), maps=False, size=40)
    while sender.next() is not None:
        pass
    assert len(alive) == 6


def test_handles_of_all_gpus_reach_vllm_as_one_table() -> None:
    one, other = pickle.dumps({"gpu-0": (1,)}), pickle.dumps({"gpu-1": (2,)})
    told = with_handles({"names": ["a"], "handles": [one, other]})

    pickled = base64.b64decode(told.pop("ipc_handles_pickled"))
    assert pickle.loads(pickled) == {"gpu-0": (1,), "gpu-1": (2,)}
    assert told == {"names": ["a"]}
    assert with_handles({"names": ["a"]}) == {"names": ["a"]}
    with pytest.raises(ValueError, match="2 ranks are on 1 GPUs"):
        with_handles({"names": ["a"], "handles": [one, one]})
