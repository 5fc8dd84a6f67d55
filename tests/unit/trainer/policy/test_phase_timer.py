import pytest
import torch

from raggrpo_trainer.policy import phase_timer
from raggrpo_trainer.policy.phase_timer import Phase, PhaseTimer


def test_phase_timer_adds_blocks_of_same_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 3.0, 4.0, 9.0, 10.0, 10.5])
    monkeypatch.setattr(phase_timer.time, "perf_counter", lambda: next(times))
    timer = PhaseTimer(torch.device("cpu"))

    for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.FORWARD):
        with timer.measure(phase):
            pass

    assert timer.metrics() == {
        "forward_seconds": 2.5,
        "backward_seconds": 5.0,
        "optimizer_seconds": 0.0,
    }


class _Event:
    """A CUDA event whose time is the number of events recorded before it, in milliseconds."""

    recorded = 0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.time = 0

    def record(self) -> None:
        self.time = _Event.recorded
        _Event.recorded += 1

    def elapsed_time(self, end: "_Event") -> float:
        return float(end.time - self.time)


def test_phase_timer_uses_events_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    timer = PhaseTimer(torch.device("cuda"))

    for phase in (Phase.FORWARD, Phase.FORWARD, Phase.OPTIMIZER):
        with timer.measure(phase):
            pass

    assert timer.metrics() == timer.metrics()
    assert timer.metrics()["forward_seconds"] == pytest.approx(0.002)
    assert timer.metrics()["optimizer_seconds"] == pytest.approx(0.001)
