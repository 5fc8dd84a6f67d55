import asyncio
import os
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from raggrpo_api.spec.retrieval import RetrievalSpec
from raggrpo_api.spec.reward import PythonSignature, RewardSpec
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.http.json_service import RetryPolicy
from raggrpo_trainer.http.pool import HttpPool
from raggrpo_trainer.rewards.hooks import (
    CoroutineReward,
    HttpJudge,
    ProcessReward,
    RewardHook,
    python_reward,
)
from raggrpo_trainer.rewards.rewards import Rewards, RewardSample
from raggrpo_trainer.rewards.signatures import EXPECTED
from raggrpo_trainer.sample_failures import RewardFailed
from support.servers.faulty_server import Respond, always, serving, silent

CODE = """
import os, re, resource, sys, time

def obey(sample):
    print("this goes to the log, not into the reply")
    match sample["completion"]:
        case "length": return len(sample["prompt"])
        case "process": return os.getpid()
        case "memory limit": return resource.getrlimit(resource.RLIMIT_DATA)[0]
        case "raise": raise KeyError("profile")
        case "text": return "0.5"
        case "none": return None
        case "nan": return float("nan")
        case "infinite": return float("inf")
        case "exit": sys.exit(3)
        case "exit in order": sys.exit(0)
        case "crash": os._exit(7)
        case "hang": return bool(re.match("(a+)+b", "a" * 64))

async def obey_async(sample):
    return obey(sample)

async def wait_forever(sample):
    import asyncio
    await asyncio.Event().wait()

value = 3
"""


NATIVE = EXPECTED[PythonSignature.NATIVE]


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"rewards_{tmp_path.name}".replace("-", "_").replace("[", "_").replace("]", "_")
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@asynccontextmanager
async def make_hook(target: str, timeout_seconds: float = 30.0) -> AsyncIterator[RewardHook]:
    hook = python_reward(target, timeout_seconds)
    try:
        yield hook
    finally:
        await hook.close()


def make_sample(completion: str) -> dict[str, Any]:
    return RewardSample("17/0", "Capital?", completion, ("Paris",)).as_json()


async def test_reward_process_does_not_inherit_memory_limit_of_preflight(code: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (1 << 40, hard))
    try:
        async with make_hook(f"{code}:obey") as hook:
            assert await hook.score(make_sample("memory limit")) == hard
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@pytest.mark.parametrize(
    ("function", "kind"), [("obey", ProcessReward), ("obey_async", CoroutineReward)]
)
async def test_python_reward_function_scores_sample(code: str, function: str, kind: type) -> None:
    async with make_hook(f"{code}:{function}") as hook:
        assert isinstance(hook, kind)
        assert await hook.score(make_sample("length")) == len("Capital?")


@pytest.mark.parametrize("function", ["obey", "obey_async"])
async def test_python_reward_function_error_fails_only_its_sample(code: str, function: str) -> None:
    expected = {
        "raise": (FailureCause.RAISED, "KeyError: 'profile'"),
        "text": (FailureCause.WRONG_TYPE, f"returned '0.5' (str), expected {NATIVE}"),
        "none": (FailureCause.WRONG_TYPE, f"returned None (NoneType), expected {NATIVE}"),
        "nan": (FailureCause.NOT_A_NUMBER, "nan"),
        "infinite": (FailureCause.NOT_A_NUMBER, "inf is beyond ±1e+30"),
    }
    async with make_hook(f"{code}:{function}") as hook:
        result = {}
        for completion in expected:
            with pytest.raises(CallFailed) as failed:
                await hook.score(make_sample(completion))
            result[completion] = (failed.value.cause, failed.value.detail)
        after = await hook.score(make_sample("length"))

    assert result == expected
    assert after == len("Capital?")


@pytest.mark.parametrize(
    ("completion", "cause", "detail"),
    [
        ("exit", FailureCause.RAISED, "the reward process exited with code 3"),
        ("crash", FailureCause.RAISED, "the reward process exited with code 7"),
        ("hang", FailureCause.TIMEOUT, "no result within 1 s"),
    ],
)
async def test_reward_function_that_exits_or_hangs_fails_only_its_sample(
    code: str, completion: str, cause: FailureCause, detail: str
) -> None:
    async with make_hook(f"{code}:obey", timeout_seconds=1.0) as hook:
        with pytest.raises(CallFailed) as failed:
            await hook.score(make_sample(completion))
        after = await hook.score(make_sample("length"))

    assert (failed.value.cause, failed.value.detail) == (cause, detail)
    assert after == len("Capital?")


async def test_exit_in_reward_coroutine_fails_only_its_sample(code: str) -> None:
    async with make_hook(f"{code}:obey_async") as hook:
        with pytest.raises(CallFailed, match="SystemExit: 0"):
            await hook.score(make_sample("exit in order"))
        assert await hook.score(make_sample("length")) == len("Capital?")


async def test_slow_reward_coroutine_fails_only_its_sample(code: str) -> None:
    async with make_hook(f"{code}:wait_forever", timeout_seconds=0.05) as hook:
        with pytest.raises(CallFailed) as failed:
            await hook.score(make_sample("any"))

    assert (failed.value.cause, failed.value.detail) == (
        FailureCause.TIMEOUT,
        "no result within 0.05 s",
    )


async def test_reward_processes_are_shared_and_exit_with_hook(code: str) -> None:
    hook = ProcessReward(f"{code}:obey", 30.0, num_processes=2)
    calls = (hook.score(make_sample("process")) for _ in range(8))
    processes = {int(number) for number in await asyncio.gather(*calls)}
    await hook.close()

    assert len(processes) == 2
    assert os.getpid() not in processes
    assert not any(is_running(process) for process in processes)


def is_running(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


async def test_reply_of_canceled_call_is_not_used_for_next_call(code: str) -> None:
    hook = ProcessReward(f"{code}:obey", 30.0, num_processes=1)
    await hook.score(make_sample("length"))
    canceled = asyncio.create_task(hook.score(make_sample("hang")))
    await asyncio.sleep(0)  # let it start
    canceled.cancel()
    await asyncio.wait([canceled])
    after = await hook.score(make_sample("length"))
    await hook.close()

    assert canceled.cancelled()
    assert after == len("Capital?")


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("no_such_module:f", "reward no_such_module:f cannot be imported: ModuleNotFoundError: No"),
        ("{code}:absent", "module {code} has no function absent"),
        ("{code}:value", "module {code} has no function value"),
    ],
)
def test_reward_import_error_names_function(code: str, target: str, expected: str) -> None:
    with pytest.raises(TrainerError) as raised:
        python_reward(target.format(code=code), 30.0)
    assert raised.value.exit_code is ExitCode.REWARD_CODE_ERROR
    assert expected.format(code=code) in str(raised.value)


@pytest.mark.parametrize("content", ["1 / 0", "import sys; sys.exit(4)", "def f(:"])
def test_exception_during_reward_import_names_function(tmp_path: Path, content: str) -> None:
    name = f"broken_{abs(hash(content))}"
    (tmp_path / f"{name}.py").write_text(content)
    spec = RewardSpec.model_validate(
        {
            "functions": [{"name": "Python", "python": f"{name}:f"}],
            "codeFrom": {"path": str(tmp_path)},
        }
    )

    with pytest.raises(TrainerError, match=f"reward {name}:f cannot be imported"):
        Rewards(spec, RetrievalSpec())


async def test_reward_code_is_imported_from_configured_folder(tmp_path: Path) -> None:
    (tmp_path / "in_the_folder.py").write_text(CODE)
    spec = RewardSpec.model_validate(
        {
            "functions": [{"name": "Python", "python": "in_the_folder:obey", "weight": 0.5}],
            "codeFrom": {"path": str(tmp_path)},
        }
    )

    async with Rewards(spec, RetrievalSpec()) as rewards:
        score = await rewards.score(RewardSample("17/0", "Capital?", "length"))
        with pytest.raises(RewardFailed, match="reward in_the_folder:obey: Raised: KeyError"):
            await rewards.score(RewardSample("17/1", "Capital?", "raise"))
        process = (await rewards.score(RewardSample("17/2", "Capital?", "process"))).parts

    assert not is_running(int(process["in_the_folder:obey"]))
    assert score.parts == {"in_the_folder:obey": 8.0}
    assert score.total == 4.0


@asynccontextmanager
async def make_judge(respond: Respond) -> AsyncIterator[tuple[Any, HttpJudge]]:
    http = HttpPool()
    async with serving(respond) as server:
        yield server, HttpJudge(http, server.url, 0.2, RetryPolicy(retries=1))
    await http.close()


async def test_http_reward_receives_sample_and_returns_score() -> None:
    sample = RewardSample(
        "17/0", "Capital?", "Paris", ("Paris",), passages=("p",), fields={"user_profile": "young"}
    )
    async with make_judge(always({"score": 0.25})) as (server, judge):
        number = await judge.score(sample.as_json())

    assert number == 0.25
    assert server.requests[0].body == {
        "prompt": "Capital?",
        "completion": "Paris",
        "answer": ["Paris"],
        "passages": ["p"],
        "fields": {"user_profile": "young"},
    }


@pytest.mark.parametrize(
    "response",
    [
        {"score": 0.0, "success": False},
        {"score": 0, "status": "fail", "reason": "tests failed"},
        {"score": 0.0, "ok": False},
        {"score": 0.0, "code": 1},
        {"score": 0.0, "error": "assertion failed", "timed_out": True},
    ],
)
async def test_http_reward_score_of_failed_sample_is_used(response: dict[str, Any]) -> None:
    async with make_judge(always(response)) as (_, judge):
        assert await judge.score(make_sample("Paris")) == 0.0


@pytest.mark.parametrize(
    ("respond", "cause", "tries"),
    [
        (silent, FailureCause.TIMEOUT, 2),
        (always({"score": None, "success": False}), FailureCause.SERVICE_ERROR, 1),
        (always({"status": "fail", "reason": "no tests"}), FailureCause.SERVICE_ERROR, 1),
        (always({"score": None}), FailureCause.NOT_A_NUMBER, 1),
        (always("boom", 500), FailureCause.HTTP_STATUS, 2),
        (always([]), FailureCause.BAD_JSON, 1),
        (always({"points": 1}), FailureCause.MISSING_FIELD, 1),
        (always({"score": "high"}), FailureCause.NOT_A_NUMBER, 1),
    ],
)
async def test_http_reward_failures_are_reported_with_cause(
    respond: Respond, cause: FailureCause, tries: int
) -> None:
    async with make_judge(respond) as (server, judge):
        with pytest.raises(CallFailed) as failed:
            await judge.score(make_sample("Paris"))
    assert failed.value.cause is cause
    assert len(server.requests) == tries


def test_reward_hooks_receive_sample_as_json() -> None:
    fields = make_sample("x")

    assert set(fields) == {
        "name",
        "prompt",
        "completion",
        "answer",
        "context",
        "passages",
        "columns",
        "fields",
        "retrieved",
    }
