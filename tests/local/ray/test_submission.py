"""Submissions to a real Ray head: unchanged configuration, and authentication."""

import asyncio
import json
import os
import shlex
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from raggrpo_api import limits, names
from raggrpo_api.trainer.sealed_config import open_sealed, seal
from raggrpo_operator.core.lifecycle.observed import SubmissionStatus
from raggrpo_operator.errors import AccessDenied, OperatorError
from raggrpo_operator.http_api import HttpApi, open_session
from raggrpo_operator.local_runtime.processes import Processes, free_ports
from raggrpo_operator.local_runtime.ray_head import RAY, head_env, make_temp_dir, remove_temp_dir
from raggrpo_operator.ray_jobs import RayJobs
from support.builders.operator.adversarial_text import ADVERSARIAL_TEXT

SECRET, TOKEN, SUBMISSION = "hunter2", "a token for tests only" * 2, "probe-a1"
START_SECONDS = 120
REFERENCES = "$A_SECRET ${A_SECRET} $(A_SECRET) $$ %A_SECRET% $HOME ${HOME} $(HOME)"
PROGRAM = """
import os, pathlib, ray
from raggrpo_api.trainer.sealed_config import open_sealed

ray.init("auto", log_to_driver=False)
folder = pathlib.Path(os.environ["FOLDER"])
folder.joinpath("driver").write_text(open_sealed(os.environ), newline="")
arrived = ray.remote(lambda: open_sealed(os.environ)).remote()
folder.joinpath("worker").write_text(ray.get(arrived), newline="")
"""
UNAUTHENTICATED_CLIENT = """
import sys
from ray._raylet import GcsClient
print(GcsClient(address=sys.argv[1]).internal_kv_keys(b"", namespace=None, timeout=10))
"""


def longest_text() -> str:
    """Return a text of exactly the maximum size, with all forms that might be expanded."""
    config = {"text": REFERENCES + ADVERSARIAL_TEXT}
    room = limits.MAX_CONFIG_BYTES - len(
        json.dumps(config | {"more": ""}, ensure_ascii=False).encode()
    )
    return json.dumps(config | {"more": "$" * room}, ensure_ascii=False)


@pytest.mark.row("E5")
@pytest.mark.timeout(300)
async def test_job_submission_requires_token_and_preserves_configuration(
    tmp_path: Path, processes: Processes
) -> None:
    text, temp_dir = longest_text(), make_temp_dir()
    dashboard, gcs, agent = free_ports(3)
    command = [
        *(sys.executable, "-m", names.RAY_START, "ray", "start", "--head", "--block"),
        *("--node-ip-address", "127.0.0.1", "--port", str(gcs), "--num-cpus", "2"),
        *("--dashboard-port", str(dashboard), "--dashboard-agent-listen-port", str(agent)),
        *("--temp-dir", str(temp_dir / RAY), "--object-store-memory", str(80 * 1024**2)),
    ]
    env = head_env(os.environ | {"A_SECRET": SECRET}, temp_dir, TOKEN)
    head = processes.start("c1", command, env, tmp_path / "ray.log")
    session = open_session()
    url = f"http://127.0.0.1:{dashboard}"
    jobs = RayJobs(HttpApi(session, url, TOKEN))
    try:
        await submit(jobs, seal(text) | {"FOLDER": str(tmp_path)})
        assert await jobs.ray_version() == version("ray")
        stored_env = await jobs.environment(SUBMISSION)
        log = temp_dir / RAY / names.ray_driver_log(SUBMISSION)
        assert await wait_until_ended(jobs) is SubmissionStatus.SUCCEEDED, log.read_text()
        for token in ("", "guessed"):
            unauthorized = RayJobs(HttpApi(session, url, token))
            with pytest.raises(AccessDenied):
                await unauthorized.submit("unauthorized-a1", f"touch {tmp_path}/owned", {}, {})
        address = f"127.0.0.1:{gcs}"
        answers = [
            await asyncio.to_thread(connect, address, mode)
            for mode in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_TOKEN": "guessed"})
        ]
        assert ["Unauthenticated" in answer for answer in answers] == [True, True], answers
        assert "CLUSTER_METADATA" in connect(address, {"RAY_AUTH_TOKEN": TOKEN})
    finally:
        await session.close()
        processes.terminate(head)
        remove_temp_dir(temp_dir)

    assert len(text.encode()) == limits.MAX_CONFIG_BYTES
    for reader in ("driver", "worker"):
        assert (tmp_path / reader).read_bytes() == text.encode()
    assert open_sealed(stored_env) == text
    assert SECRET not in json.dumps(stored_env)
    assert not (tmp_path / "owned").exists()


async def submit(jobs: RayJobs, env: dict[str, str]) -> None:
    """Submit the program as soon as the head accepts jobs."""
    entrypoint = f"exec {shlex.quote(sys.executable)} -c {shlex.quote(PROGRAM)}"
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return await jobs.submit(SUBMISSION, entrypoint, env, {})
        except OperatorError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.3)  # not ready


async def wait_until_ended(jobs: RayJobs) -> SubmissionStatus:
    while True:
        observed = await jobs.status(SUBMISSION, 1)
        if observed is not None and observed.status.is_terminal:
            return observed.status
        await asyncio.sleep(0.2)


def connect(address: str, mode: dict[str, str]) -> str:
    """Connect to the head without Ray's HTTP API; return the output or the error."""
    env = {"RAY_AUTH_MODE": "token", **os.environ, **mode}
    command = [sys.executable, "-c", UNAUTHENTICATED_CLIENT, address]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout + done.stderr
