"""A real Ray head: what a submission carries arrives unchanged, and only its owner can submit."""

import asyncio
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from raggrpo_api import names
from raggrpo_api.sealed_config import open_sealed, seal
from raggrpo_operator.core.lifecycle.observed import SubmissionStatus
from raggrpo_operator.errors import AccessRefused
from raggrpo_operator.http_api import HttpApi
from raggrpo_operator.local_runtime.processes import Processes, tail
from raggrpo_operator.local_runtime.ray_head import RAY, RayHead, driver_log
from raggrpo_operator.ray_jobs import RayJobs
from support import ray_tree
from support.builders.hostile_text import HOSTILE_TEXT

SECRET = "hunter2"
REFERENCES = "$A_SECRET ${A_SECRET} $(A_SECRET) $$ %A_SECRET% $HOME ${HOME} $(HOME)"
PROGRAM = """
import os, pathlib, ray
from raggrpo_api.sealed_config import open_sealed

ray.init("auto", log_to_driver=False)
folder = pathlib.Path(os.environ["FOLDER"])
folder.joinpath("driver").write_text(open_sealed(os.environ), newline="")
arrived = ray.remote(lambda: open_sealed(os.environ)).remote()
folder.joinpath("worker").write_text(ray.get(arrived), newline="")
"""
STRANGER = """
import sys
from ray._raylet import GcsClient
print(GcsClient(address=sys.argv[1]).internal_kv_keys(b"", namespace=None, timeout=10))
"""


def longest_text() -> str:
    """A configuration of exactly the largest size, with everything that might be expanded."""
    given = {"text": REFERENCES + HOSTILE_TEXT}
    room = names.MAX_CONFIG_BYTES - len(
        json.dumps(given | {"more": ""}, ensure_ascii=False).encode()
    )
    return json.dumps(given | {"more": "$" * room}, ensure_ascii=False)


@pytest.mark.timeout(300)
async def test_a_configuration_arrives_as_it_was_sealed_and_no_stranger_can_submit(
    tmp_path: Path, processes: Processes
) -> None:
    text = longest_text()
    head = ray_tree.start_head(processes, tmp_path, A_SECRET=SECRET)
    try:
        env = seal(text) | {"FOLDER": str(tmp_path)}
        await ray_tree.submit(head, PROGRAM, env)
        assert await head.jobs.ray_version() == version("ray")
        await finished(head)
        kept = await head.jobs.environment(ray_tree.SUBMISSION)
        for token in ("", "guessed"):
            stranger = RayJobs(HttpApi(head.session, dashboard(head), token))
            with pytest.raises(AccessRefused):
                await stranger.submit("stranger-a1", f"touch {tmp_path}/owned", {}, {})
        address = (head.temp_dir / RAY / "ray_current_cluster").read_text()
        answers = [
            await asyncio.to_thread(asked, address, mode)
            for mode in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_TOKEN": "guessed"})
        ]
        assert ["Unauthenticated" in answer for answer in answers] == [True, True], answers
        assert "CLUSTER_METADATA" in asked(address, {"RAY_AUTH_TOKEN": head.token})
    finally:
        await head.close(processes)

    assert len(text.encode()) == names.MAX_CONFIG_BYTES
    for reader in ("driver", "worker"):
        assert (tmp_path / reader).read_bytes() == text.encode()
    assert open_sealed(kept) == text
    assert SECRET not in json.dumps(kept)
    assert not (tmp_path / "owned").exists()


async def finished(head: RayHead) -> None:
    while True:
        found = await head.jobs.status(ray_tree.SUBMISSION, 1)
        if found is not None and found.status.is_terminal:
            break
        await asyncio.sleep(0.2)
    log = tail(driver_log(head.temp_dir, ray_tree.SUBMISSION), 20)
    assert found.status is SubmissionStatus.SUCCEEDED, log


def dashboard(head: RayHead) -> str:
    return f"http://127.0.0.1:{head.dashboard_port}"


def asked(address: str, mode: dict[str, str]) -> str:
    """Ask the head past Ray's HTTP API; return the answer or the error."""
    env = {"RAY_AUTH_MODE": "token", **os.environ, **mode}
    command = [sys.executable, "-c", STRANGER, address]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout + done.stderr
