"""Runs of OpenAI's client that are disturbed: results are those of undisturbed runs."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from raggrpo_trainer.data.prompt_files import Prompt
from raggrpo_trainer.engines.generation import Generation, GenerationRequest
from raggrpo_trainer.engines.replacing import Replacing
from raggrpo_trainer.gateway.gateway import Gateway, GatewayOptions
from raggrpo_trainer.rewards.rewards import Rewards
from raggrpo_trainer.rollout.agents.agent_collector import AgentCollector
from raggrpo_trainer.rollout.agents.python_agent import PythonAgent
from raggrpo_trainer.rollout.agents.trajectory_log import TrajectoryLog
from raggrpo_trainer.rollout.samples import Sampling
from support.builders.trainer.gateway_models import (
    ScriptedEngine,
    byte_tokenizer,
    generation,
    ids_of,
)
from support.builders.trainer.obedient_agent import APPLICATION, OWN_PROCESS
from support.builders.trainer.reports import make_config

WORDS = ["the red fox", "right", "wrong", "", "fox"]
REPLACEMENT_SECONDS = 4.0
"""Longer than the clients of APPLICATION wait for a byte."""


def words(request: GenerationRequest) -> Generation:
    tokenizer = byte_tokenizer()
    text = WORDS[request.seed % len(WORDS)]
    return generation((*ids_of(tokenizer, text), tokenizer.eos_token_id))


class Runs:
    """Collects the same step again and again."""

    def __init__(self, collector: AgentCollector, engine: ScriptedEngine, orders: Path) -> None:
        self._collector = collector
        self.engine = engine
        self.orders = orders

    async def collect(self) -> list[Any]:
        prompts = [
            Prompt(i, q, query=q, answer=("x",), context="") for i, q in enumerate(["q0", "q"])
        ]
        batch = await self._collector.prepare(1, prompts, Sampling(4, 1.0, 1.0))
        samples = (await self._collector.collect(batch)).samples
        return [(each.failure, each.text, each.reward, each.rows()) for each in samples]

    def order(self, name: str, victim: int = OWN_PROCESS) -> None:
        (self.orders / name).write_text(str(victim))


@asynccontextmanager
async def served(folder: Path, replacing: Replacing) -> AsyncIterator[Runs]:
    (folder / "app.py").write_text(APPLICATION)
    engine = ScriptedEngine(words)
    tokenizer = byte_tokenizer()
    options = GatewayOptions(4096, 64, 8, stop_token_ids=(tokenizer.eos_token_id,))
    gateway = Gateway(options, tokenizer, engine.submit)
    agent = {"python": "app:answer", "request": "{question}"}
    config = make_config(folder, {"rollout.agent": agent})
    runner = PythonAgent("app:answer", await gateway.start("127.0.0.1"), 3, str(folder))
    log = TrajectoryLog(folder / "attempt")
    async with Rewards(config.reward, config.retrieval) as rewards:
        collector = AgentCollector(config, gateway, runner, rewards, log, replacing=replacing)
        yield Runs(collector, engine, folder / "orders")
    await runner.close()
    await gateway.stop()


async def replace_engine_after(
    victim: asyncio.subprocess.Process, engine: ScriptedEngine, replacing: Replacing
) -> None:
    """Let calls wait from the death of a process on, as during the replacement of an engine."""
    await victim.wait()
    engine.held = asyncio.Event()
    async with replacing.one_at_a_time():
        await asyncio.sleep(REPLACEMENT_SECONDS)
    engine.held.set()


@pytest.mark.row("F2")
async def test_disturbed_runs_have_the_tokens_of_undisturbed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "orders").mkdir()
    monkeypatch.setenv("DRILL", str(tmp_path / "orders"))
    replacing = Replacing()
    async with served(tmp_path, replacing) as runs:
        undisturbed = await runs.collect()
        assert {failure for failure, *_ in undisturbed} == {""}
        (runs.orders / "shuffle").touch()
        runs.order("kill")
        assert await runs.collect() == undisturbed

        for order, repeats in (("kill", 1), ("kill, then disconnect", 2)):
            victim = await asyncio.create_subprocess_exec("sleep", "100")
            runs.order(order, victim.pid)
            replaced = replace_engine_after(victim, runs.engine, replacing)
            collected, _ = await asyncio.gather(runs.collect(), replaced)
            assert collected == undisturbed
            assert caplog.text.count("the run is repeated") == repeats

        (runs.orders / "key-0-0").write_text("key of an earlier driver")
        runs.order("old keys")
        assert await runs.collect() == undisturbed
        assert (runs.orders / "statuses").read_text().split() == ["401"]


@pytest.mark.parametrize(
    "module",
    [
        ["raggrpo_trainer.rollout.agents.worker", "app:answer"],
        ["raggrpo_trainer.rewards.worker", "app:answer", "Native", "60"],
    ],
    ids=["agent", "reward"],
)
def test_process_whose_driver_has_exited_writes_no_traceback(
    tmp_path: Path, module: list[str]
) -> None:
    code = "import time\ndef answer(*_, **__):\n    time.sleep(0.5)\n    return 1.0\n"
    (tmp_path / "app.py").write_text(code)
    process = subprocess.Popen(
        [sys.executable, "-m", *module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
    )
    assert process.stdin
    assert process.stdout
    assert process.stderr
    process.stdin.write(b"null\n{}\n")
    process.stdin.flush()
    process.stdout.readline()
    process.stdout.close()
    process.stdin.close()
    assert process.stderr.read() == b""
    process.wait()
