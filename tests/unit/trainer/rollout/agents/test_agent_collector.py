"""The collector of agents, with a real gateway, real processes and a scripted engine."""

import asyncio
import json
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from venv import EnvBuilder

import pytest

from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.data.prompt_files import Prompt
from raggrpo_trainer.engines.generation import Generation, GenerationRequest
from raggrpo_trainer.engines.replacing import Replacing
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.gateway.forwarding import Forwarder
from raggrpo_trainer.gateway.gateway import Gateway, GatewayOptions
from raggrpo_trainer.gateway.model_names import Endpoint
from raggrpo_trainer.gateway.tool_parsing import ParsedReply, SampledReply
from raggrpo_trainer.rewards.rewards import Rewards
from raggrpo_trainer.rollout.agents.agent_collector import MAX_OUTAGES, AgentCollector
from raggrpo_trainer.rollout.agents.python_agent import PythonAgent
from raggrpo_trainer.rollout.agents.runner import AgentRunner, AgentUnavailable
from raggrpo_trainer.rollout.agents.trajectory_log import FILE_NAME, TrajectoryLog
from raggrpo_trainer.rollout.samples import Batch, Rollouts, Sampling
from raggrpo_trainer.rollout.validation import GREEDY
from support.builders.operator.jobs import SAMPLES
from support.builders.trainer.gateway_models import (
    ScriptedEngine,
    byte_tokenizer,
    generation,
    ids_of,
)
from support.builders.trainer.reports import make_config
from support.processes.interpreters import agents_interpreter

APPLICATION = """
import json, os, pathlib, signal, time, urllib.request

def claimed(name):
    # True for the first caller only
    try:
        pathlib.Path(__file__).with_name(name).unlink()
    except FileNotFoundError:
        return False
    return True

def ask(*messages, seconds=60, **more):
    body = {"model": "policy", "messages": list(messages), **more}
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request, timeout=seconds))["choices"][0]["message"]

if claimed("killed at import"):
    os.kill(os.getpid(), signal.SIGKILL)

def user(text):
    return {"role": "user", "content": text}

def answer(question):
    first = ask(user(question))
    if question == "malformed":
        ask(user("x"), tools=[{"type": "function", "function": {"name": "f"}}])
        raise KeyError("tool_calls")
    if question == "forwarded":
        ask(user(question), model="judge")
    if question == "raise":
        raise ValueError("no luck")
    if question == "raise odd":
        raise ValueError("no file " + chr(0xDCFF))
    if question == "exit":
        os._exit(3)
    if question == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if question == "killed once" and claimed("once"):
        os.kill(os.getpid(), signal.SIGKILL)
    if question == "impatient":
        ask(user("slow"), seconds=0.3)
    if question == "hang":
        pathlib.Path(__file__).with_name(f"hangs {os.getpid()}").touch()
        time.sleep(60)
    if question == "nothing":
        return {"text": first["content"]}
    if question == "turns":
        [ask(user(question + str(i))) for i in range(9)]
    if question == "long":
        ask(user("word " * 9999))
    if question == "wrong":
        ask(user("x"), messages="none")
    if question == "nested":
        return {"answer": "a", "more": json.loads("[" * 980 + "]" * 980)}
    if question == "surrogate":
        return {"answer": "a", "more": chr(0xD800)}
    if question in LINES:
        [os.write(pipe, LINES[question]) for pipe in pipes()]
    if question == "fork":
        ask(user("a separate question"))
    if question == "continue":
        first = ask(user(question), {"role": "assistant", "content": first["content"]}, user("go"))
    return {"answer": first["content"], "passages": ["p1", "p2"], "score": 0.5}

LINES = {
    "list": b"[1]\\n",
    "no field": b"{}\\n",
    "wrong field": b'{"raised": []}\\n',
    "not UTF-8": bytes([0xFF, 10]),
}

def pipes():
    is_pipe = lambda name: os.path.realpath(f"/proc/self/fd/{name}").count("pipe:")
    return [int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2 and is_pipe(name)]

def silent(question):
    return "made up"

async def coroutine(question):
    return ask(user(question))["content"]
"""


def text_of(request: GenerationRequest) -> str:
    text: str = byte_tokenizer().decode(list(request.prompt_ids))
    return text


def right_or_wrong(request: GenerationRequest) -> Generation:
    """Complete with a word that depends on the seed only."""
    tokenizer = byte_tokenizer()
    word = "right" if request.seed % 2 else "wrong"
    return generation((*ids_of(tokenizer, word), tokenizer.eos_token_id))


class UnreadableCalls:
    """A parser that reads no call, as of a model that writes malformed ones."""

    async def parse(self, reply: SampledReply) -> ParsedReply:
        return ParsedReply(reply.text, problem="JSONDecodeError" if reply.tools else "")


@asynccontextmanager
async def make_collector(
    folder: Path,
    engine: ScriptedEngine,
    changes: dict[str, Any],
    replacing: Replacing | None = None,
    runner: AgentRunner | None = None,
    clock: Callable[[], float] = time.monotonic,
    **agent: Any,
) -> AsyncIterator[AgentCollector]:
    (folder / "app.py").write_text(APPLICATION)
    defaults = {"python": "app:answer", "request": "{question}", "passages": "passages"}
    config = make_config(folder, {"rollout.agent": defaults | agent} | changes)
    tokenizer = byte_tokenizer()
    options = GatewayOptions(4096, 64, 8, stop_token_ids=(tokenizer.eos_token_id,))
    forwarder = Forwarder([Endpoint(("judge",), "http://127.0.0.1:9/v1")])
    gateway = Gateway(options, tokenizer, engine.submit, UnreadableCalls(), forwarder)
    target, processes = agent.get("python", defaults["python"]), agent.get("processes", 4)
    runner = runner or PythonAgent(
        *(target, await gateway.start("127.0.0.1"), processes, str(folder)),
        agent.get("interpreter", ""),
    )
    async with Rewards(config.reward, config.retrieval) as rewards:
        log = TrajectoryLog(folder / "attempt")
        yield AgentCollector(config, gateway, runner, rewards, log, clock, replacing)
    await runner.close()
    await gateway.stop()


def make_prompts(*questions: str) -> list[Prompt]:
    return [Prompt(i, q, query=q, answer=("right",), context="") for i, q in enumerate(questions)]


async def collect(
    folder: Path,
    questions: Sequence[str],
    n: int = 4,
    changes: dict[str, Any] | None = None,
    sampling: Sampling | None = None,
    **agent: Any,
) -> tuple[AgentCollector, Rollouts, ScriptedEngine]:
    engine = ScriptedEngine(right_or_wrong)
    async with make_collector(folder, engine, changes or {}, **agent) as collector:
        prompts = make_prompts(*questions)
        batch = await collector.prepare(1, prompts, sampling or Sampling(n, 1.0, 1.0))
        return collector, await collector.collect(batch), engine


class Restarting:
    """An application that is down during its first runs, and up again each time."""

    base_url = ""

    def __init__(self, outages: int) -> None:
        self.outages = outages
        self.runs = 0

    @asynccontextmanager
    async def slot(self) -> AsyncIterator["Restarting"]:
        self.key = f"key-{self.runs}"
        yield self

    async def run(self, _: Any) -> Any:
        self.runs += 1
        if self.runs <= self.outages:
            raise AgentUnavailable(CallFailed(FailureCause.RAISED, "status 503"))
        return {"answer": "right"}

    async def close(self) -> None:
        """Nothing was started."""


@pytest.mark.parametrize(
    ("outages", "failure"),
    [
        (MAX_OUTAGES, "agent: NoModelCall"),  # the run counts
        (10**9, "agent: Raised: status 503"),
    ],
)
async def test_runs_of_an_application_that_restarts_are_limited(
    tmp_path: Path, outages: int, failure: str
) -> None:
    runner = Restarting(outages)
    async with make_collector(
        tmp_path, ScriptedEngine(right_or_wrong), {}, runner=runner
    ) as collector:
        batch = await collector.prepare(1, make_prompts("q0"), Sampling(1, 1.0, 1.0))
        [sample] = (await collector.collect(batch)).samples

    assert runner.runs == MAX_OUTAGES + 1
    assert sample.failure.startswith(failure)


async def test_rows_of_one_call_share_a_group_and_carry_advantages(tmp_path: Path) -> None:
    collector, rollouts, _ = await collect(tmp_path, ["q0", "q1"], n=8)

    assert [each.failure for each in rollouts.samples if each.failure] == []
    assert {each.text for each in rollouts.samples} == {"right", "wrong"}
    assert all(each.reward == (each.text == "right") for each in rollouts.samples)
    assert all(each.passages == ("p1", "p2") for each in rollouts.samples)
    groups = collector.groups(rollouts)
    assert [len(group.completions) for group in groups] == [8, 8]
    assert all(len({*group.advantages}) == 2 for group in groups)


async def test_forked_rows_are_groups_with_the_advantage_of_their_sample(tmp_path: Path) -> None:
    collector, rollouts, _ = await collect(tmp_path, ["fork"], n=8)

    shared, *forks = collector.groups(rollouts)
    assert len(shared.completions) == len(forks) == 8
    assert not shared.continues
    assert all(fork.continues for fork in forks)
    of_sample = {c.sample: a for c, a in zip(shared.completions, shared.advantages, strict=True)}
    assert len(of_sample) == 8
    assert {fork.completions[0].sample: fork.advantages[0] for fork in forks} == of_sample


async def test_continued_conversation_is_one_row(tmp_path: Path) -> None:
    collector, rollouts, engine = await collect(tmp_path, ["continue"], n=2)

    [group] = collector.groups(rollouts)
    assert len(group.completions) == 2
    assert len(engine.requests) == 4
    for completion in group.completions:
        assert 0 < completion.num_sampled < len(completion.token_ids)


async def test_calls_of_one_prompt_have_the_affinity_of_its_position(tmp_path: Path) -> None:
    _, _, engine = await collect(tmp_path, ["continue", "fork"], n=2)

    affinities = {(r.affinity, "fork" in text_of(r)) for r in engine.requests}
    assert affinities == {(0, False), (1, True), (1, False)}
    assert Counter(r.affinity for r in engine.requests) == {0: 4, 1: 4}


async def test_tokens_do_not_depend_on_order_of_arrival(tmp_path: Path) -> None:
    _, first, _ = await collect(tmp_path, ["q0", "q1", "fork"], processes=1)
    _, second, _ = await collect(tmp_path, ["q0", "q1", "fork"], processes=4)

    assert [each.rows() for each in first.samples] == [each.rows() for each in second.samples]


async def test_validation_samples_greedily(tmp_path: Path) -> None:
    _, _, engine = await collect(tmp_path, ["q0"], sampling=GREEDY)

    assert [request.temperature for request in engine.requests] == [0.0]


FAILURES = {
    "raise": "agent: Raised: ValueError: no luck",
    "raise odd": "agent: Raised: ValueError: no file ?",
    "exit": "agent: Exited: exited with code 3",
    "killed": "agent: Exited: was killed by signal 9 (Killed)",
    "hang": "agent: Timeout: no result within 2 s",
    "nothing": "agent: MissingField: answer is missing in the result, dict with text",
    "turns": "agent: MaxTurns: the trajectory has 8 calls",
    "long": "agent: ContextLength: ",
    "wrong": "agent: RequestRejected: ",
    "nested": "agent: WrongType: the result cannot be used: it is nested too deeply",
    "surrogate": "agent: WrongType: the result cannot be used: it contains a lone surrogate",
    "list": "agent: WrongType: the result cannot be used: it is not a JSON object",
    "no field": "agent: WrongType: the result cannot be used: it has other fields",
    "wrong field": "agent: WrongType: the result cannot be used: it has other fields",
    "not UTF-8": "agent: WrongType: the result cannot be used: 'utf-8' codec",
    "malformed": "agent: MalformedToolCall: not parsed: JSONDecodeError; then the application "
    "failed: Raised: KeyError: 'tool_calls'",
    "forwarded": "agent: ForwardFailed: model judge at http://127.0.0.1:9/v1",
}
TIMEOUT_SECONDS = 2.0


def wait_until_only_hanging_runs_remain(folder: Path, batch: Batch) -> None:
    others = [sample for sample in batch.samples if sample.prompt.query != "hang"]
    hanging = len(batch.samples) - len(others)
    while len(list(folder.glob("hangs *"))) < hanging or not all(each.text for each in others):
        time.sleep(0.01)


@pytest.mark.parametrize("question", FAILURES)
@pytest.mark.parametrize("on_error", ["ZeroReward", "DropSample"])
async def test_failure_costs_one_sample_under_its_cause(
    tmp_path: Path, question: str, on_error: str
) -> None:
    changes = {"retrieval.maxFailureRatio": 0.5}
    seconds = [0.0]
    agent = {"onError": on_error, "timeoutSeconds": TIMEOUT_SECONDS}
    engine = ScriptedEngine(right_or_wrong)
    async with make_collector(
        tmp_path, engine, changes, clock=lambda: seconds[0], **agent
    ) as collector:
        batch = await collector.prepare(1, make_prompts(question, "q1"), Sampling(2, 1.0, 1.0))
        collected = asyncio.create_task(collector.collect(batch))
        if question == "hang":
            await asyncio.to_thread(wait_until_only_hanging_runs_remain, tmp_path, batch)
            seconds[0] = TIMEOUT_SECONDS  # a run that waits longer does not end
        rollouts = await collected

    failed = [each for each in rollouts.samples if each.failure]
    assert [each.group for each in failed] == [0, 0]
    assert all(each.failure.startswith(FAILURES[question]) for each in failed)
    assert {each.reward for each in failed} == ({0.0} if on_error == "ZeroReward" else {None})
    trained = [each.prompt_ids for each in collector.groups(rollouts) if not each.continues]
    assert len(trained) == (2 if on_error == "ZeroReward" else 1)
    collector.check_failures(rollouts)


def outcomes(rollouts: Rollouts) -> list[Any]:
    return [(each.failure, each.text, each.reward, each.rows()) for each in rollouts.samples]


async def test_run_of_killed_process_is_repeated_with_its_seeds(tmp_path: Path) -> None:
    _, undisturbed, _ = await collect(tmp_path, ["killed once", "q1"])
    (tmp_path / "once").touch()
    collector, rollouts, _ = await collect(tmp_path, ["killed once", "q1"])

    assert not (tmp_path / "once").exists()
    assert outcomes(rollouts) == outcomes(undisturbed)
    collector.check_failures(rollouts)


async def test_process_killed_at_import_is_started_again(tmp_path: Path) -> None:
    (tmp_path / "killed at import").touch()
    _, rollouts, _ = await collect(tmp_path, ["q0"], 2)

    assert not (tmp_path / "killed at import").exists()
    assert [each.failure for each in rollouts.samples] == ["", ""]


async def test_process_that_is_always_killed_at_import_ends_the_attempt(tmp_path: Path) -> None:
    (tmp_path / "fatal.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    with pytest.raises(TrainerError, match=r"agent fatal:run was killed by signal 9") as error:
        await collect(tmp_path, ["q0"], 1, python="fatal:run")
    assert error.value.exit_code is ExitCode.AGENT_ERROR


async def test_process_killed_between_samples_costs_no_sample(tmp_path: Path) -> None:
    engine = ScriptedEngine(right_or_wrong)
    async with make_collector(tmp_path, engine, {}, processes=2) as collector:
        batch = await collector.prepare(1, make_prompts("q0", "q1"), Sampling(2, 1.0, 1.0))
        undisturbed = await collector.collect(batch)
        for slot in collector._runner._idle:
            slot.process.kill()
        batch = await collector.prepare(1, make_prompts("q0", "q1"), Sampling(2, 1.0, 1.0))
        assert outcomes(await collector.collect(batch)) == outcomes(undisturbed)


async def test_run_is_repeated_when_its_client_disconnected_during_replacement(
    tmp_path: Path,
) -> None:
    _, undisturbed, _ = await collect(tmp_path, ["impatient"], 2)
    engine, replacing = ScriptedEngine(right_or_wrong), Replacing()
    async with make_collector(tmp_path, engine, {}, replacing, timeoutSeconds=1) as collector:
        batch = await collector.prepare(1, make_prompts("impatient"), Sampling(2, 1.0, 1.0))
        collected = asyncio.create_task(collector.collect(batch))
        await engine.arrived.acquire()
        engine.held = asyncio.Event()
        async with replacing.one_at_a_time():
            await asyncio.sleep(2)
        engine.held.set()
        assert outcomes(await collected) == outcomes(undisturbed)


async def test_client_that_disconnects_without_replacement_fails_its_run(tmp_path: Path) -> None:
    engine = ScriptedEngine(right_or_wrong, held=asyncio.Event())
    async with make_collector(tmp_path, engine, {}) as collector:
        batch = await collector.prepare(1, make_prompts("impatient"), Sampling(1, 1.0, 1.0))
        collected = asyncio.create_task(collector.collect(batch))
        await engine.arrived.acquire()
        engine.held.set()
        engine.held = asyncio.Event()
        [sample] = (await collected).samples
    assert sample.failure.startswith("agent: Raised: TimeoutError")


async def test_completion_without_logprobs_is_never_trained(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda request: replace(right_or_wrong(request), logprobs=()))
    async with make_collector(tmp_path, engine, {}) as collector:
        batch = await collector.prepare(1, make_prompts("q0"), Sampling(2, 1.0, 1.0))
        rollouts = await collector.collect(batch)

    assert {each.failure.split(":")[1] for each in rollouts.samples} == {" MissingLogprobs"}
    assert [each.reward for each in rollouts.samples] == [None, None]
    assert collector.groups(rollouts) == []


async def test_agent_without_model_call_fails(tmp_path: Path) -> None:
    collector, rollouts, _ = await collect(tmp_path, ["q0"], 2, python="app:silent")

    assert all(each.failure.startswith("agent: NoModelCall: ") for each in rollouts.samples)
    assert collector.groups(rollouts) == []
    with pytest.raises(
        TrainerError, match=r"no run of the agent succeeded.*NoModelCall 2"
    ) as error:
        collector.check_failures(rollouts)
    assert error.value.exit_code is ExitCode.AGENT_ERROR


async def test_too_many_failures_of_the_application_end_the_attempt(tmp_path: Path) -> None:
    collector, rollouts, _ = await collect(tmp_path, ["nothing", "q1"], 2)

    with pytest.raises(TrainerError, match=r"maxFailureRatio 0\.2.*MissingField 2"):
        collector.check_failures(rollouts)


async def test_failures_of_the_policy_do_not_end_the_attempt(tmp_path: Path) -> None:
    collector, rollouts, _ = await collect(tmp_path, ["turns", "q1"], 2)

    collector.check_failures(rollouts)


async def test_agent_returns_reward_or_text_from_coroutine(tmp_path: Path) -> None:
    _, scored, _ = await collect(tmp_path, ["q0"], 2, reward="score")
    _, plain, _ = await collect(tmp_path, ["q0"], 2, python="app:coroutine", passages="")

    assert [each.reward for each in scored.samples] == [0.5, 0.5]
    assert [each.parts for each in scored.samples] == [{"agent": 0.5}] * 2
    assert {each.text for each in plain.samples} <= {"right", "wrong"}


@pytest.mark.parametrize(
    "module",
    [
        "quickstart_agent",
        pytest.param("quickstart_langchain", marks=pytest.mark.timeout(300)),
        pytest.param("quickstart_llamaindex", marks=pytest.mark.timeout(300)),
    ],
)
async def test_sample_application_answers_from_its_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    interpreter = "" if module == "quickstart_agent" else agents_interpreter()
    shutil.copytree(SAMPLES[0].parent / "agents", tmp_path, dirs_exist_ok=True)
    names = [
        "Tamang, Western [tdg]",
        "Tamang, Eastern [taj]",
        "Western Frisian [fry]",
        "Ainu [ain]",
    ]
    lines = "".join(json.dumps({"contents": name}) + "\n" for name in names)
    (tmp_path / "corpus.jsonl").write_text(lines)
    monkeypatch.setenv("QUICKSTART_CORPUS", str(tmp_path / "corpus.jsonl"))

    _, rollouts, engine = await collect(
        tmp_path,
        ["Tamang, Western"],
        2,
        python=f"{module}:answer",
        interpreter=interpreter,
        processes=1,
        request={"question": "{question}"},
    )

    assert [each.failure for each in rollouts.samples] == ["", ""]
    prompt = "Tamang, Western [tdg]\nTamang, Eastern [taj]\nWestern Frisian [fry]\nTamang, Western"
    assert all(prompt in text_of(request) for request in engine.requests)
    assert {len(each.passages) for each in rollouts.samples} == {3}
    assert {each.text for each in rollouts.samples} <= {"right", "wrong"}


async def test_application_runs_in_own_interpreter_without_packages_of_trainer(
    tmp_path: Path,
) -> None:
    (tmp_path / "own.py").write_text(
        "import importlib.util, sys\n"
        "import app, framework\n"
        "def answer(question):\n"
        "    app.answer(question)\n"
        "    names = ('vllm', 'pydantic', 'raggrpo_trainer', 'framework')\n"
        "    known = [name for name in names if importlib.util.find_spec(name)]\n"
        "    return {'answer': sys.prefix, 'passages': known}\n"
    )
    EnvBuilder(symlinks=True).create(tmp_path / "venv")
    [packages] = (tmp_path / "venv").glob("lib/python*/site-packages")
    (packages / "framework.py").write_text("")

    _, rollouts, _ = await collect(
        *(tmp_path, ["q0"], 1),
        python="own:answer",
        interpreter=str(tmp_path / "venv" / "bin" / "python"),
    )

    [sample] = rollouts.samples
    assert (sample.failure, sample.text) == ("", str(tmp_path / "venv"))
    assert sample.passages == ("raggrpo_trainer", "framework")


async def test_interpreter_that_does_not_start_ends_the_attempt(tmp_path: Path) -> None:
    expected = r"/missing/python \(rollout.agent.interpreter\) does not start: .*No such file"
    with pytest.raises(TrainerError, match=expected) as error:
        await collect(tmp_path, ["q0"], 1, interpreter="/missing/python")
    assert error.value.exit_code is ExitCode.AGENT_ERROR


@pytest.mark.parametrize(
    ("python", "expected"),
    [
        ("missing:answer", "agent missing:answer cannot be imported: ModuleNotFoundError"),
        ("app:missing", "agent app:missing: module app has no function missing"),
    ],
)
async def test_function_that_cannot_be_imported_ends_the_attempt(
    tmp_path: Path, python: str, expected: str
) -> None:
    with pytest.raises(TrainerError, match=expected) as error:
        await collect(tmp_path, ["q0"], 2, python=python)
    assert error.value.exit_code is ExitCode.AGENT_ERROR


async def test_module_without_attributes_ends_the_attempt_with_its_error(tmp_path: Path) -> None:
    (tmp_path / "lazy.py").write_text("def __getattr__(name):\n    raise ValueError('no luck')\n")
    message = "agent lazy:answer cannot be imported: ValueError: no luck"
    with pytest.raises(TrainerError, match=message):
        await collect(tmp_path, ["q0"], 2, python="lazy:answer")


async def test_log_has_calls_of_first_prompts_and_one_failure_of_each_cause(
    tmp_path: Path,
) -> None:
    await collect(tmp_path, ["continue", "fork", "q2", "raise", "turns"], 2)

    lines = (tmp_path / "attempt" / FILE_NAME).read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert Counter(each["question"] for each in records) == {
        "continue": 2, "fork": 2, "raise": 1, "turns": 1
    }  # fmt: skip
    first, second = records[0]["calls"]
    assert "continue" in first["prompt"]
    assert first["completion"] == first["message"]["content"]
    assert (first["continues"], second["continues"]) == (False, True)
    assert "go" in second["prompt"]
    assert "continue" not in second["prompt"]
    assert [each["rows"] for each in records[:4]] == [1, 1, 2, 2]
    assert records[0]["reward"] in (0.0, 1.0)
