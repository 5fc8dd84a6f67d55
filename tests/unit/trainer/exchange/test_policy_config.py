from typing import Any

import pytest

from raggrpo_api.spec.training import Precision
from raggrpo_trainer.exchange.policy_config import policy_config
from support.builders.operator.jobs import make_trainer_config


def test_policy_config_has_objective_and_resolved_precision() -> None:
    algorithm = {"clipRatioLow": 0.1, "clipRatioHigh": 0.3, "klCoefficient": 0.01, "dualClip": 3.0}
    job = make_trainer_config({"algorithm": algorithm, "rollout.temperature": 0.7})

    config = policy_config(job, Precision.FP16)

    assert config.training.precision is Precision.FP16
    objective = config.objective
    assert (objective.clip_ratio_low, objective.clip_ratio_high) == (0.1, 0.3)
    assert (objective.kl_coefficient, objective.dual_clip) == (0.01, 3.0)
    assert objective.max_response_length == job.data.max_response_length
    assert config.temperature == 0.7


@pytest.mark.parametrize("device", ["CPU", "GPU"])
def test_torch_device_follows_resources_device(device: str) -> None:
    job = make_trainer_config({"resources": {"device": device}})
    expected = {"CPU": "cpu", "GPU": "cuda"}[device]
    assert policy_config(job, Precision.FP32).device == expected


@pytest.mark.row("A23")
@pytest.mark.parametrize(("mode", "every"), [("Off", 0), ("Full", 1), ("Light", 7)])
def test_weight_update_interval_follows_monitoring_mode(mode: str, every: int) -> None:
    monitoring: dict[str, Any] = {"mode": mode, "logEverySteps": 7}
    job = make_trainer_config({"monitoring": monitoring})
    assert policy_config(job, Precision.FP32).weight_update_every_steps == every
