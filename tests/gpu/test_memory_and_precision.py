"""What only a GPU can show of memory and precision."""

from pathlib import Path

import pytest

from raggrpo_api.spec.training import RowLayout
from raggrpo_trainer.host.measured_device import measure_device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/dev/nvidia0").exists(), reason="needs an NVIDIA GPU"),
]


def test_the_measured_device_is_the_one_that_torch_sees() -> None:
    import torch

    device = measure_device("cuda")
    assert device.total_bytes == torch.cuda.mem_get_info()[1]
    assert 0 < device.free_bytes <= device.total_bytes
    assert device.compute_major == torch.cuda.get_device_capability()[0]


def test_a_real_out_of_memory_is_recognised() -> None:
    import torch

    pytest.importorskip("ray")
    from raggrpo_trainer.host.out_of_memory import Kind, out_of_memory

    with pytest.raises(torch.OutOfMemoryError) as raised:
        torch.empty(measure_device("cuda").total_bytes * 2, dtype=torch.uint8, device="cuda")

    found = out_of_memory(raised.value)
    assert found is not None
    assert found.kind is Kind.DEVICE


@pytest.mark.row("A18")
def test_a_batch_reaches_the_gpu_whole_and_nothing_waits_for_the_copy() -> None:
    import torch

    from raggrpo_trainer.policy.packing import items, micro_batch
    from support.builders.trainer.policies import uneven_groups

    groups = uneven_groups()
    weights = [1.0] * sum(len(group.completions) for group in groups)
    todo = items(groups, weights, skip_zero_advantage=False)
    batch = micro_batch(todo, RowLayout.SHARED_PREFIX)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = batch.to(torch.device("cuda"))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(found.input_ids.cpu(), batch.input_ids)
    assert torch.equal(found.rollout_logprobs.cpu(), batch.rollout_logprobs)
