import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.data.sampler import Cursor
from raggrpo_trainer.driver.self_check import (
    LogprobGap,
    check_gap,
    check_mismatch,
    logprob_gap,
    run_self_check,
)
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.exchange.groups import Group
from raggrpo_trainer.progress.reporter import Reporter
from raggrpo_trainer.retrieval.client import RetrievalClient
from raggrpo_trainer.rewards.rewards import Rewards
from support.builders.trainer.reports import Published, make_config, make_step
from support.fakes.fake_training_loop import FakeRanks, make_components

OFF = 0.01
"""Nats; ten times the limit in FP32."""


@dataclass
class RanksOff(FakeRanks):
    """Ranks whose logprobs, or those of the plain model, differ from the engine's."""

    trainer_off: float = 0.0
    plain_off: float = 0.0
    computed: list[Group] = field(default_factory=list)
    """Groups whose logprobs were requested."""

    async def logprobs(self, groups: Sequence[Group]) -> list[list[float]]:
        self.computed += groups
        return await self._moved(groups, self.trainer_off)

    async def plain_logprobs(self, groups: Sequence[Group]) -> list[list[float]]:
        return await self._moved(groups, self.plain_off)

    async def _moved(self, groups: Sequence[Group], by: float) -> list[list[float]]:
        return [[value + by for value in one] for one in await super().logprobs(groups)]


async def check(folder: Path, ranks: RanksOff, *, num_ranks: int = 1) -> None:
    config = make_config(folder, {"resources": {"device": "CPU", "ranks": num_ranks}})
    reporter = Reporter(config, 1, publish=Published())
    async with (
        RetrievalClient(config.retrieval, {}) as retrieval,
        Rewards(config.reward, config.retrieval) as rewards,
    ):
        prompts = ["tea", "coffee", "cocoa", "water"]
        with make_components(config, prompts, reporter, retrieval, rewards, None) as components:
            await run_self_check(
                config,
                components.prompts,
                components.collector,
                cast(Any, ranks),
                step=0,
                cursor=Cursor(),
            )
    reporter.close()


@pytest.mark.row("D3")
async def test_self_check_fails_on_gap_between_trainer_and_plain_model(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match="the plain Hugging Face model differ by") as raised:
        await check(tmp_path, RanksOff(plain_off=OFF))
    assert raised.value.exit_code is ExitCode.POLICY_MISMATCH


@pytest.mark.row("D3")
async def test_self_check_fails_on_gap_between_trainer_and_engine(
    tmp_path: Path,
) -> None:
    with pytest.raises(TrainerError, match=r"the rollout engine .* differ by") as raised:
        await check(tmp_path, RanksOff(trainer_off=OFF, plain_off=OFF))
    assert raised.value.exit_code is ExitCode.POLICY_MISMATCH


@pytest.mark.row("D3")
async def test_self_check_uses_group_of_two_completions_for_each_rank(tmp_path: Path) -> None:
    ranks = RanksOff()
    await check(tmp_path, ranks, num_ranks=3)
    assert len({group.prompt_ids for group in ranks.computed}) >= 3
    assert {len(group.completions) for group in ranks.computed} == {2}


@pytest.mark.row("D3")
@pytest.mark.parametrize(
    ("precision", "gap"),
    [
        ("FP32", LogprobGap(0.05, 0.0001)),  # one token differs by 0.05 nats
        (
            "BF16",
            LogprobGap(0.45, 0.06),
        ),  # wrong scale of the head: all tokens differ slightly
        ("BF16", LogprobGap(0.6, 0.01)),
    ],
)
def test_self_check_fails_when_gap_exceeds_limit_of_precision(
    precision: str, gap: LogprobGap
) -> None:
    with pytest.raises(TrainerError, match=r"plain model differ by up to .* nats") as raised:
        check_gap(gap, precision, "the plain model")
    assert raised.value.exit_code is ExitCode.POLICY_MISMATCH


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_self_check_reports_logprobs_that_are_not_finite(value: float) -> None:
    with pytest.raises(TrainerError, match="the plain model are not finite in FP16") as raised:
        check_gap(logprob_gap([[1.0, value]], [[1.0, 2.0]]), "FP16", "the plain model")
    assert raised.value.exit_code is ExitCode.POLICY_MISMATCH


@pytest.mark.parametrize(
    ("precision", "gap"), [("FP32", LogprobGap(9e-4, 5e-6)), ("BF16", LogprobGap(0.3, 0.02))]
)
def test_self_check_passes_when_gap_is_within_limit(precision: str, gap: LogprobGap) -> None:
    check_gap(gap, precision, "the engine")


def test_logprob_gap_is_maximum_and_mean_over_all_tokens() -> None:
    assert logprob_gap([[1.0, 2.0], [4.0]], [[1.0, 2.5], [4.25]]) == LogprobGap(0.5, 0.25)


def test_policy_mismatch_above_limit_fails_step() -> None:
    metrics = make_step(7).trained
    check_mismatch(replace(metrics, mismatch_mean=0.9), 7)
    with pytest.raises(TrainerError, match=r"1\.5 nats per token at step 7") as raised:
        check_mismatch(replace(metrics, mismatch_mean=1.5), 7)
    assert raised.value.exit_code is ExitCode.POLICY_MISMATCH
