import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from raggrpo_api import names
from raggrpo_api.spec.monitoring import MonitoringMode
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_operator.local_runtime import warden
from raggrpo_trainer.progress.reporter import Reporter
from raggrpo_trainer.progress.wandb_run import WandbRun
from support.builders.trainer.reports import Published, make_config, make_step
from support.processes.waiting import wait_for
from support.servers.wandb_files import offline_run

DEADLINE_SECONDS = 120
KEY = "a" * 40


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    mark = uuid.uuid4().hex
    monkeypatch.setenv(names.ENV_RUN_MARK, mark)
    monkeypatch.setenv("WANDB_MODE", "offline")
    yield mark
    assert warden.sweep(mark) == []


def make_wandb_config(folder: Path, changes: dict[str, Any] | None = None) -> TrainerConfig:
    return make_config(folder, {"monitoring.wandb.project": "sales", **(changes or {})})


def log_dir_of(config: TrainerConfig) -> Path:
    return Path(config.monitoring.log_dir)


def num_runs(config: TrainerConfig) -> int:
    return len(list(log_dir_of(config).glob("wandb/offline-run-*/*.wandb")))


def write_many(run: WandbRun) -> None:
    for step in range(100_000):
        run.write(step, {"loss": 1.0})


@contextmanager
def rejecting_server() -> Iterator[str]:
    class RejectingHandler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_error(401)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), RejectingHandler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@pytest.mark.row("A23")
@pytest.mark.usefixtures("mark")
def test_wandb_receives_same_points_as_tensorboard(tmp_path: Path) -> None:
    config = make_wandb_config(
        tmp_path, {"monitoring.logEverySteps": 3, "monitoring.performanceEverySteps": 2}
    )
    reporter = Reporter(config, 1, publish=Published())
    wait_for(lambda: num_runs(config) == 1)

    for step in range(1, 7):
        reporter.report_step(make_step(step, device_memory_bytes=7))
    reporter.close()

    points = [(p.pop("step"), p) for p in offline_run(log_dir_of(config)).history]
    board = EventAccumulator(str(log_dir_of(config) / "tensorboard"))
    board.Reload()
    tags = board.Tags()["scalars"]
    assert [step for step, _ in points] == [2, 3, 4, 6]
    assert {name for _, numbers in points for name in numbers} == set(tags)
    for tag in tags:
        points_of_tag = {step: numbers[tag] for step, numbers in points if tag in numbers}
        assert points_of_tag == pytest.approx(
            {event.step: event.value for event in board.Scalars(tag)}
        )


@pytest.mark.usefixtures("mark")
def test_attempts_share_wandb_run_and_may_repeat_steps(tmp_path: Path) -> None:
    config = make_wandb_config(tmp_path)
    result = []
    for attempt, steps in enumerate([(1, 2, 3), (2, 3)], start=1):
        run = WandbRun(config)
        wait_for(lambda n=attempt: num_runs(config) == n)  # type: ignore[misc]
        for step in steps:
            run.write(step, {"loss": step / attempt})
        run.close()
        result.append(offline_run(log_dir_of(config)))

    first, second = result
    assert (first.run_id, first.project, first.name) == (config.attempt.job_uid, "sales", "small")
    assert (second.run_id, second.project, second.name) == (first.run_id, "sales", "small")
    assert [(p["step"], p["loss"]) for p in first.history] == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert [(p["step"], p["loss"]) for p in second.history] == [(2, 1.0), (3, 1.5)]


@pytest.mark.parametrize(
    "changes", [{"monitoring.mode": MonitoringMode.OFF}, {"monitoring.wandb.project": ""}]
)
def test_wandb_process_is_not_started_without_project(
    changes: dict[str, Any], tmp_path: Path, mark: str
) -> None:
    config = make_wandb_config(tmp_path, changes)
    reporter = Reporter(config, 1, publish=Published())
    reporter.report_step(make_step(1))
    reporter.close()

    assert [pid for pid in warden.marked_processes(mark) if pid != os.getpid()] == []
    assert not (log_dir_of(config) / "wandb").exists()


def test_wandb_process_exits_when_run_is_closed(tmp_path: Path, mark: str) -> None:
    config = make_wandb_config(tmp_path)
    run = WandbRun(config)
    wait_for(lambda: num_runs(config) == 1)
    assert len(warden.marked_processes(mark)) == 2
    run.close()

    wait_for(lambda: warden.marked_processes(mark) == [])


@pytest.mark.row("A23")
def test_hanging_wandb_server_does_not_delay_exit(
    tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        monkeypatch.setenv("WANDB_MODE", "online")
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{hanging.getsockname()[1]}")
        run = WandbRun(make_wandb_config(tmp_path))
        hanging.settimeout(DEADLINE_SECONDS)
        connection, _ = hanging.accept()

        with pytest.raises(OSError, match="earlier metrics are still waiting"):
            write_many(run)
        run.close()

        connection.close()
    wait_for(lambda: warden.marked_processes(mark) == [])


OWNER = """
import sys
from pathlib import Path
from raggrpo_trainer.progress.wandb_run import WandbRun
from support.builders.trainer.reports import make_config

run = WandbRun(make_config(Path(sys.argv[1]), {"monitoring.wandb.project": "sales"}))
sys.stdin.read()
"""


def test_wandb_process_exits_when_trainer_is_killed(tmp_path: Path, mark: str) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
    )
    wait_for(lambda: num_runs(make_wandb_config(tmp_path)) == 1)
    owner.send_signal(signal.SIGKILL)
    owner.communicate()

    wait_for(lambda: warden.marked_processes(mark) == [])


@pytest.mark.usefixtures("mark")
def test_rejected_wandb_key_is_logged_once_and_training_continues(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    published = Published()
    stderr = ""
    with rejecting_server() as url:
        monkeypatch.setenv("WANDB_MODE", "online")
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.setenv("WANDB_BASE_URL", url)
        config = make_wandb_config(tmp_path, {"monitoring.mode": "Full"})
        reporter = Reporter(config, 1, publish=published)
        while "training continues" not in stderr:
            stderr += capfd.readouterr().err

        for step in (1, 2, 3):
            reporter.report_step(make_step(step))
        reporter.close()

    last = published.progresses[-1]
    assert "W&B project sales gets no metrics" in stderr
    assert "check WANDB_API_KEY in spec.env" in stderr
    assert url in stderr
    assert KEY not in stderr
    assert last.step == 3
    assert int({m.name: m.value for m in last.metrics}["lost_log_records"]) >= 2
    assert [r.message for r in caplog.records if "W&B project sales" in r.message] == [
        "cannot write to W&B project sales: the W&B process has exited; see its error above;"
        " training continues"
    ]
