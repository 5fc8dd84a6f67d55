from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

from raggrpo_trainer.data.prompt_files import Prompt
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.rollout.collect import Collector
from raggrpo_trainer.rollout.failure_ledger import FailureLedger
from raggrpo_trainer.rollout.samples import Rollouts
from raggrpo_trainer.rollout.validation import Validator
from support.builders.trainer.reports import make_config
from support.builders.trainer.rollouts import make_collector, make_prompt
from support.fakes.fake_engine_pool import FakeEnginePool
from support.servers.faulty_server import always, serving


async def test_validation_uses_first_max_samples_prompts(tmp_path: Path) -> None:
    prompts = [Prompt(i, f"q{i}", f"q{i}", ("a",), "") for i in range(5)]
    collector = Mock(spec=Collector, prepare=AsyncMock(), collect=AsyncMock())
    collector.collect.return_value = Mock(scored=[], samples=[])
    config = make_config(tmp_path, {"validation.maxSamples": 2})

    await Validator(config, prompts, collector).measure(step=1)

    [call] = collector.prepare.await_args_list
    assert call.args[1] == prompts[:2]


@pytest.mark.parametrize(
    ("values", "mean"), [([1.0, 0.0], 0.5), ([1.0, None], 1.0), ([None, None], None), ([], None)]
)
async def test_validation_exact_match_covers_prompts_with_answers(
    tmp_path: Path, values: list[float | None], mean: float | None
) -> None:
    samples = tuple(Mock(reward=0.5, exact_match=value) for value in values)
    collector = Mock(spec=Collector, prepare=AsyncMock(), collect=AsyncMock())
    collector.collect.return_value = Rollouts(samples, [], FailureLedger())

    result = await Validator(make_config(tmp_path), [], collector).measure(step=1)

    assert result.exact_match == mean


async def test_validation_fails_attempt_when_service_refuses_calls(tmp_path: Path) -> None:
    async with serving(always({"detail": "topk"}, 422)) as kb:
        retrieval = {"mode": "Prompt", "endpoints": [{"name": "kb", "url": kb.url}]}
        config = make_config(tmp_path, {"retrieval": retrieval})
        async with make_collector(config, FakeEnginePool(lambda _: "right")) as collector:
            validator = Validator(config, [make_prompt(0, "tea")], collector)
            with pytest.raises(TrainerError, match="endpoint kb: 1 of 1 calls failed"):
                await validator.measure(step=1)
