"""Device memory, out-of-memory errors and copies on a real GPU."""

from pathlib import Path

import pytest

from raggrpo_api.spec.training import RowLayout
from raggrpo_trainer.host.measured_device import measure_device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/dev/nvidia0").exists(), reason="needs an NVIDIA GPU"),
]


def test_measured_gpu_memory_and_compute_capability_match_torch() -> None:
    import torch

    device = measure_device("cuda")
    assert device.total_bytes == torch.cuda.mem_get_info()[1]
    assert 0 < device.free_bytes <= device.total_bytes
    assert device.compute_major == torch.cuda.get_device_capability()[0]


def test_torch_out_of_memory_error_is_recognized() -> None:
    import torch

    pytest.importorskip("ray")
    from raggrpo_trainer.host.out_of_memory import Kind, out_of_memory

    with pytest.raises(torch.OutOfMemoryError) as raised:
        torch.empty(measure_device("cuda").total_bytes * 2, dtype=torch.uint8, device="cuda")

    shortage = out_of_memory(raised.value)
    assert shortage is not None
    assert shortage.kind is Kind.DEVICE


@pytest.mark.row("A18")
def test_batch_copy_to_gpu_is_complete_and_asynchronous() -> None:
    import torch

    from raggrpo_trainer.policy.packing import build_items, build_micro_batch
    from support.builders.trainer.policies import uneven_groups

    groups = uneven_groups()
    weights = [1.0] * sum(len(group.completions) for group in groups)
    todo = build_items(groups, weights, skip_zero_advantage=False)
    batch = build_micro_batch(todo, RowLayout.SHARED_PREFIX)
    torch.cuda.set_sync_debug_mode("error")
    try:
        copied = batch.to(torch.device("cuda"))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(copied.input_ids.cpu(), batch.input_ids)
    assert torch.equal(copied.rollout_logprobs.cpu(), batch.rollout_logprobs)
