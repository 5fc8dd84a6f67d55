import json

import pytest

from raggrpo_api import names
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.job_config import read_config
from support.builders.jobs import a_trainer_config


def test_a_wrong_configuration_is_told_without_its_values() -> None:
    config = json.loads(a_trainer_config().to_json())
    config["retrieval"]["endpoints"] = [{"name": "kb", "url": "http://kb/?a=c4n4ry", "topk": 3}]
    config["model"]["path"] = "c4n4ry"
    with pytest.raises(TrainerError) as refused:
        read_config({names.ENV_CONFIG: json.dumps(config)})
    assert "model.path: " in str(refused.value)
    assert "retrieval.endpoints.0.topk: " in str(refused.value)
    assert "c4n4ry" not in str(refused.value)
