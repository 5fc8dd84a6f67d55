"""`kubectl raggrpo export`: its arguments, its pod and the script that pushes the folder."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from raggrpo_api.job import RagGrpoJob
from raggrpo_cli.kubectl import trainer_commands
from raggrpo_cli.kubectl.app import app
from raggrpo_cli.kubectl.trainer_commands import PUSH
from raggrpo_operator.kube.user_client import ExecResult
from support.builders.operator.jobs import make_job
from support.servers.hub_server import TOKEN, HubServer

OUTPUT = "/mnt/runs/best"
VOLUMES = [
    {"name": "runs", "claimName": "runs", "mountPath": "/mnt/runs"},
    {"name": "data", "claimName": "data", "mountPath": "/mnt/data", "readOnly": True},
]
CHANGES = {"volumes": VOLUMES, "checkpoint.path": "/mnt/runs/checkpoints"}


class Pod:
    """A temporary pod that records its command and prints the result of an export."""

    def __init__(self, result: ExecResult) -> None:
        self.command: Sequence[str] = ()
        self.exports = False
        self._result = result

    async def run(
        self,
        _: object,
        __: RagGrpoJob,
        command: Sequence[str],
        image: str,
        on_output: Callable[[bytes], object],
        *,
        exports: bool,
    ) -> ExecResult:
        self.command, self.exports = command, exports
        on_output(b'{"step": 20, "score": null}\n')
        return self._result


def export(
    monkeypatch: pytest.MonkeyPatch, *options: str, result: ExecResult = ExecResult(0, "")
) -> tuple[Result, Pod]:
    async def get_job(*_: object) -> RagGrpoJob:
        return make_job(CHANGES)

    def run_in_cluster(_: str, __: str, work: Callable[[Any], Any]) -> Any:
        import asyncio

        return asyncio.run(work(None))

    pod = Pod(result)
    monkeypatch.setattr(trainer_commands, "get_job", get_job)
    monkeypatch.setattr(trainer_commands, "run_in_cluster", run_in_cluster)
    monkeypatch.setattr(trainer_commands, "run_in_trainer_pod", pod.run)
    return CliRunner().invoke(app, ["export", "small", *options]), pod


def test_export_runs_in_pod_that_is_sized_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    done, pod = export(monkeypatch, "-o", OUTPUT, "--step", "best")
    assert done.output == f"{OUTPUT}: model after step 20\n"
    assert pod.exports
    assert pod.command[:5] == [
        "python", "-m", "raggrpo_trainer.checkpoint_export", "/mnt/runs/checkpoints", OUTPUT
    ]  # fmt: skip


def test_export_with_push_uploads_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    target = "hf://org/result"
    done, pod = export(monkeypatch, "-o", OUTPUT, "--push", target)
    assert done.output.splitlines() == [f"{OUTPUT}: model after step 20", f"pushed to {target}"]
    assert pod.command[:6] == ["sh", "-c", PUSH, "export", OUTPUT, target]


def test_failed_push_is_reported_with_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    result = ExecResult(3, "error: TokenMissing: hf://org/result needs a token\n")
    done, _ = export(monkeypatch, "-o", OUTPUT, "--push", "hf://org/result", result=result)
    assert done.exit_code == 1
    assert "TokenMissing" in done.output
    assert "pushed" not in done.output


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["-o", "/tmp/best"], "/tmp/best is not on a volume"),
        (["-o", "best"], "best is not on a volume"),
        (["-o", "/mnt/data/best"], "is on volume data, which is read-only"),
        (["-o", OUTPUT, "--push", "https://host/a"], "results cannot be pushed to https://"),
    ],
)
def test_unfit_output_or_target_is_rejected_before_a_pod_starts(
    monkeypatch: pytest.MonkeyPatch, options: list[str], problem: str
) -> None:
    done, pod = export(monkeypatch, *options)
    assert done.exit_code == 2
    assert problem in done.output
    assert pod.command == ()


@pytest.mark.parametrize(("exit_code", "token"), [(0, TOKEN), (0, ""), (7, TOKEN)])
def test_push_script_uploads_folder_of_successful_export(
    tmp_path: Path, exit_code: int, token: str
) -> None:
    write = (
        "import sys; from pathlib import Path; folder = Path(sys.argv[1]); folder.mkdir(); "
        "(folder / 'config.json').write_text('{}'); print('{\"step\": 20}'); "
        f"sys.exit({exit_code})"
    )
    folder = tmp_path / "best model"
    with HubServer() as hub:
        env = os.environ | {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join(sys.path),
            "HF_ENDPOINT": hub.url,
            "HF_HUB_DISABLE_XET": "1",
            "HF_TOKEN": token,
        }
        command = ["sh", "-c", PUSH, "export", str(folder), "hf://org/result"]
        done = subprocess.run(
            [*command, "python", "-c", write, str(folder)],
            env=env, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        pushed = (
            [set(each) for each in hub.repositories["org/result"].commits.values()]
            if ("org/result" in hub.repositories)
            else []
        )

    assert done.stdout == '{"step": 20}\n'
    is_pushed = not exit_code and bool(token)
    assert ({"config.json"} in pushed) is is_pushed
    assert (done.returncode == 0) is is_pushed
    assert "Traceback" not in done.stderr
