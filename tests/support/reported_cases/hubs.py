"""Reported cases about downloads from hubs."""

import json
from pathlib import Path

from support.reported_cases.case import case
from support.servers.hub_server import HubServer
from support.staging import Stage, make_model_source

MODEL = {"config.json": b"{}", "model.safetensors": b"weights"}
SOURCE = make_model_source("hf://org/name")


@case("L3", fault="a rate limit without Retry-After")
def check_rate_limit(folder: Path) -> None:
    with HubServer() as hub:
        hub.add("org/name", MODEL)
        hub.fail_once("GET /api/models", 429, {"RateLimit": '"resolvers";r=0;t=5'})
        stage = Stage(folder, {"HF_ENDPOINT": hub.url})
        runs = [stage.start(SOURCE) for _ in range(3)]
        staged = [run.result().staged[0] for run in runs]
        assert hub.sent["model.safetensors"] == len(MODEL["model.safetensors"])
    assert len({each.path for each in staged}) == 1
    assert sum("Retry 1 in 5 s" in run.output() for run in runs) == 1


@case("L4", fault="a lock left by a killed process")
def check_abandoned_lock(folder: Path) -> None:
    with HubServer() as hub:
        hub.add("org/name", MODEL)
        stage = Stage(folder, {"HF_ENDPOINT": hub.url})
        path = Path(stage.staged(SOURCE).path)
        (path / ".staged.json").unlink()
        lock = path.parent / ".lock.1"
        lock.write_text(json.dumps({"host": "killed-pod", "process": "other/1/1/1"}))
        run = stage.start(SOURCE)
        assert run.result().staged[0].path == str(path)
    assert "Waiting for killed-pod" in run.output()
    assert not lock.exists()
