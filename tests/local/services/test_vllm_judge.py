"""Reward Judge against vLLM's OpenAI-compatible server with the quickstart model on CPU."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from raggrpo_api.spec.monitoring import LogLevel
from raggrpo_api.spec.retrieval import RetrievalSpec
from raggrpo_api.spec.reward import RewardSpec
from raggrpo_trainer.call_failures import FailureCause
from raggrpo_trainer.engines.engine_options import engine_environment
from raggrpo_trainer.rewards.rewards import Rewards, RewardSample
from raggrpo_trainer.sample_failures import RewardFailed
from support.processes.ports import free_port

pytestmark = pytest.mark.long

START_SECONDS = 240.0
PLAIN_CHAT = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"


@contextmanager
def vllm_server(folder: Path) -> Iterator[str]:
    """Serve the quickstart model as `grader`; yield the URL of its chat completions."""
    prepare = [sys.executable, "-m", "raggrpo_quickstart", "--dir", str(folder), "--steps", "1"]
    subprocess.run(prepare, check=True)
    template = folder / "chat.jinja"
    template.write_text(PLAIN_CHAT)
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(folder / "model"), "--served-model-name", "grader"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--chat-template", str(template)]
    command += ["--max-model-len", "256", "--dtype", "float32", "--enforce-eager"]
    engine_env = engine_environment("cpu", 2, LogLevel.INFO)
    env = {**os.environ, **engine_env, "VLLM_CPU_KVCACHE_SPACE": "1"}
    url = f"http://127.0.0.1:{port}"
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + START_SECONDS
            while process.poll() is None and time.monotonic() < deadline and not _answers(url):
                time.sleep(0.5)
            assert _answers(url), (folder / "server.log").read_text(errors="replace")[-3000:]
            yield f"{url}/v1/chat/completions"
        finally:
            process.terminate()
            process.wait(60)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def rewards_by(url: str, **judge: object) -> Rewards:
    judge_spec = {
        "model": "grader",
        "prompt": "{prompt} {completion} grade",
        "maxTokens": 8,
        **judge,
    }
    term = {"name": "Judge", "url": url, "judge": judge_spec}
    return Rewards(RewardSpec.model_validate({"functions": [term]}), RetrievalSpec())


@pytest.mark.row("D14")
async def test_vllm_served_judge_grades_completions(tmp_path: Path) -> None:
    sample = RewardSample("1/0", "What is the code?", "The code is 7.")
    with vllm_server(tmp_path) as url:
        # Guided decoding makes this small model write a grade.
        grades = {"structured_outputs": {"regex": "Grade: [0-9]"}}
        values = {"extraBody": grades, "scorePattern": r"Grade: (\d)", "highest": 9.0}
        async with rewards_by(url, **values) as rewards:
            first = await rewards.score(sample)
            again = await rewards.score(sample)
        async with rewards_by(url, model="another") as rewards:
            with pytest.raises(RewardFailed) as caught:
                await rewards.score(sample)
    assert 0.0 <= first.total <= 1.0
    assert first.total * 9 == pytest.approx(round(first.total * 9))
    assert again == first
    assert caught.value.cause is FailureCause.HTTP_STATUS
    assert "404" in caught.value.detail
