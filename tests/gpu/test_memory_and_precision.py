"""What only a GPU can show of memory and precision; not yet run on one."""

from pathlib import Path

import pytest

from raggrpo_trainer.host.measured_device import measured_device
from raggrpo_trainer.host.out_of_memory import Kind, out_of_memory

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/dev/nvidia0").exists(), reason="needs an NVIDIA GPU"),
]


def test_the_measured_device_is_the_one_that_torch_sees() -> None:
    import torch

    device = measured_device("cuda")
    assert device.total_bytes == torch.cuda.mem_get_info()[1]
    assert 0 < device.free_bytes <= device.total_bytes
    assert device.compute_major == torch.cuda.get_device_capability()[0]


def test_a_real_out_of_memory_is_recognised() -> None:
    import torch

    with pytest.raises(torch.OutOfMemoryError) as raised:
        torch.empty(measured_device("cuda").total_bytes * 2, dtype=torch.uint8, device="cuda")

    found = out_of_memory(raised.value)
    assert found is not None
    assert found.kind is Kind.DEVICE
