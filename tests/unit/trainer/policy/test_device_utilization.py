import pytest
import torch

from raggrpo_trainer.policy.device_utilization import device_utilization


def test_utilization_is_reported_as_share_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 87)
    assert device_utilization(torch.device("cuda")) == 0.87
    assert device_utilization(torch.device("cpu")) is None


@pytest.mark.parametrize("error", [ModuleNotFoundError("pynvml"), RuntimeError("Not Supported")])
def test_utilization_is_none_when_nvml_fails(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(device: torch.device) -> int:
        raise error

    monkeypatch.setattr(torch.cuda, "utilization", fail)
    assert device_utilization(torch.device("cuda")) is None
