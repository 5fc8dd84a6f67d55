import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from raggrpo_api import names
from raggrpo_api.spec.retrieval import RetrievalSpec
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.sealed_config import seal
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.job_config import endpoint_headers, read_config
from support.builders.operator.jobs import make_trainer_config


def test_sealed_job_config_is_read_unchanged() -> None:
    config = make_trainer_config(
        {"retrieval.promptTemplate": "{passages} {prompt} $HOME $(HOME) $$"}
    )
    assert read_config(seal(config.to_json())) == config


def test_folder_is_replaced_by_its_data_files(tmp_path: Path) -> None:
    names_of_data = ("D.PARQUET", "a.parquet", "b.jsonl", "c.ndjson", "deep/c.JSON")
    for name in (*names_of_data, ".staged.json", "_cache/d.json", "README"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    files = ["/mnt/first.jsonl", str(tmp_path)]
    config = read_config(seal(make_trainer_config({"data.trainFiles": files}).to_json()))
    expected = [f"{tmp_path}/{name}" for name in names_of_data]
    assert config.data.train_files == ["/mnt/first.jsonl", *expected]


def test_folder_without_data_files_stays_to_be_reported(tmp_path: Path) -> None:
    config = make_trainer_config({"data.trainFiles": [str(tmp_path)]})
    assert read_config(seal(config.to_json())) == config


@pytest.mark.parametrize("altered", [{names.ENV_CONFIG_SHA256: "0" * 64}, {names.ENV_CONFIG: "{}"}])
def test_altered_job_config_is_rejected(altered: dict[str, str]) -> None:
    with pytest.raises(TrainerError, match="RAGGRPO_CONFIG") as raised:
        read_config(seal(make_trainer_config().to_json()) | altered)
    assert raised.value.exit_code == ExitCode.CONFIG_ERROR


@pytest.mark.row("E5")
@pytest.mark.parametrize("program", ["raggrpo_trainer", "raggrpo_trainer.preflight"])
def test_driver_and_preflight_reject_altered_configuration(program: str) -> None:
    sealed = seal(make_trainer_config().to_json()) | {names.ENV_CONFIG_SHA256: "0" * 64}
    command = [sys.executable, "-m", program]
    process = subprocess.run(
        command, env=os.environ | sealed, capture_output=True, text=True, check=False, timeout=60
    )

    assert process.returncode == ExitCode.CONFIG_ERROR
    assert "RAGGRPO_CONFIG was modified" in process.stderr
    assert "Traceback" not in process.stderr


def test_validation_errors_do_not_contain_values() -> None:
    config = json.loads(make_trainer_config().to_json())
    config["retrieval"]["endpoints"] = [{"name": "kb", "url": "http://kb/?a=c4n4ry", "topk": 3}]
    config["model"]["path"] = "c4n4ry"
    with pytest.raises(TrainerError) as raised:
        read_config(seal(json.dumps(config)))
    assert "model.path: " in str(raised.value)
    assert "retrieval.endpoints.0.topk: " in str(raised.value)
    assert "c4n4ry" not in str(raised.value)


def test_retriever_token_is_sent_to_managed_endpoints_only() -> None:
    own = {"name": "Authorization", "value": "Bearer of the user"}
    managed = {"managed": {"corpus": "/corpus"}, "url": "http://127.0.0.1:8000/retrieve"}
    endpoints = [
        {"name": "kb", **managed, "headers": [own | {"name": "authorization"}]},
        {"name": "web", "url": "http://web.example/search", "headers": [own]},
    ]
    spec = RetrievalSpec.model_validate({"mode": "Prompt", "endpoints": endpoints})

    headers = endpoint_headers(spec, {names.ENV_RETRIEVER_TOKEN: "t0ken"})
    assert headers["kb"] == {"Authorization": "Bearer t0ken"}
    assert headers["web"] == {"Authorization": "Bearer of the user"}
    assert endpoint_headers(spec, {})["kb"] == {"authorization": "Bearer of the user"}
