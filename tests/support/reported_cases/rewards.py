"""Reported cases about reward functions in user code."""

import ast
import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import CheckId, CheckState
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.preflight.run import run_checks
from raggrpo_trainer.rollout.samples import Rollouts
from support.builders.trainer.preflight import check_of, make_fit_config
from support.builders.trainer.reports import make_config
from support.builders.trainer.rollouts import collect_rollouts, make_prompt
from support.fakes.fake_engine_pool import FakeEnginePool, in_turn
from support.reported_cases.case import case

VERL = "def score(data_source, solution_str, ground_truth, extra_info=None): return 0.5"
TRL = "def score(completions, **kw): return [0.5 for _ in completions]"
FOREIGN = [(VERL, "Verl"), (TRL, "Trl")]
NEVER_A_NUMBER = ["None", '{"score": 1.0}', "[0.5]", '"0.5"']
NO_NUMBER = "A result that is no number is dropped as a failed call"
IS_ODD = 'sample["completion"] == "odd"'
TOO_LARGE = ["1e308", "-1e308", "float('inf')", "10**400"]


@case("R1", fault="A function of another trainer fails every call", inputs=FOREIGN)
def foreign_function_is_rejected_or_adapted(folder: Path, given: tuple[str, str]) -> None:
    """It is called with the first row: rejected with what was expected, or adapted."""
    code, signature = given
    evidence = rejection(folder, code)
    assert "expected a function of one dict" in evidence
    assert f"set signature: {signature}" in evidence
    check, exit_code = preflight(folder, code, signature=signature)
    assert check.state is CheckState.PASSED
    assert "returned 0.5 for the first row" in check.evidence
    assert exit_code is ExitCode.DONE


@case("R2", fault=NO_NUMBER, inputs=NEVER_A_NUMBER)
def result_that_is_no_number_is_rejected(folder: Path, value: str) -> None:
    """The first row shows it; the value and what was expected are reported."""
    evidence = rejection(folder, f"def score(sample): return {value}")
    assert "expected a function of one dict" in evidence
    assert f"returned {ast.literal_eval(value)!r}" in evidence


@case("R2b", fault=NO_NUMBER, inputs=NEVER_A_NUMBER)
def rare_result_that_is_no_number_ends_the_run(folder: Path, value: str) -> None:
    """The value, the sample and the counts of this function's calls are reported."""
    with pytest.raises(TrainerError) as raised:
        train_step(folder, f"def score(sample): return {value} if {IS_ODD} else 1.0")
    assert raised.value.exit_code is ExitCode.REWARD_CODE_ERROR
    assert "1 of 8 calls failed (WrongType 1), e.g. sample 1/3: returned" in str(raised.value)


@case("R3", fault="Rewards overflow", inputs=TOO_LARGE)
def reward_that_overflows_is_rejected(folder: Path, value: str) -> None:
    """A large magnitude never overflows in our arithmetic."""
    assert "is beyond ±1e+30" in rejection(folder, f"def score(sample): return {value}")
    with pytest.raises(TrainerError) as raised:
        train_step(folder, f"def score(sample): return {value}", weight=100.0)
    assert raised.value.exit_code is ExitCode.REWARD_CODE_ERROR


@case("R3b", fault="Rewards overflow")
def largest_rewards_are_finite(folder: Path) -> None:
    """The largest magnitude that is accepted gives finite advantages."""
    code = f"def score(sample): return -1e30 if {IS_ODD} else 1e30"
    groups = train_step(folder, code, weight=1000.0)
    assert all(math.isfinite(advantage) for group in groups for advantage in group)


@case("R4", fault="A reward ends its process", inputs=["sys.exit(0)", "os._exit(0)"])
def reward_that_exits_is_rejected(folder: Path, statement: str) -> None:
    """The function's process exits, not the job's."""
    code = f"import os, sys\ndef score(sample): {statement}"
    assert "process exited with code 0" in rejection(folder, code)


def rejection(folder: Path, code: str) -> str:
    """Return the evidence of preflight, which rejects the code as RewardCodeError."""
    check, exit_code = preflight(folder, code)
    assert check.state is CheckState.FAILED
    assert exit_code is ExitCode.REWARD_CODE_ERROR
    return str(check.evidence)


def preflight(folder: Path, code: str, **term: Any) -> tuple[Any, ExitCode]:
    """Return the outcome of check RewardCode and the exit code of preflight."""
    config = make_fit_config(folder, reward_changes(folder, code, **term))
    result = asyncio.run(run_checks(config, {}))
    return check_of(result, CheckId.REWARD_CODE), ExitCode(result.exit_code)


def train_step(folder: Path, code: str, **term: Any) -> list[tuple[float, ...]]:
    """Score one step of two prompts, whose last completion is "odd"; return the advantages."""
    config = make_config(folder, reward_changes(folder, code, **term))
    collector, rollouts = asyncio.run(_collect(config))
    collector.check_failures(rollouts)
    return [group.advantages for group in collector.groups(rollouts)]


async def _collect(config: TrainerConfig) -> tuple[Any, Rollouts]:
    pool = FakeEnginePool(in_turn(*["even"] * 7, "odd"))
    prompts = [make_prompt(0, "question 0"), make_prompt(1, "question 1")]
    return await collect_rollouts(config, pool, prompts, n=4)


def reward_changes(folder: Path, code: str, **term: Any) -> dict[str, Any]:
    """Write the user's code; return the changes of a configuration that uses it."""
    module = f"case_{abs(hash(code))}"
    (folder / f"{module}.py").write_text(code)
    function = {"name": "Python", "python": f"{module}:score", **term}
    return {"reward.functions": [function], "reward.codeFrom": {"path": str(folder)}}
