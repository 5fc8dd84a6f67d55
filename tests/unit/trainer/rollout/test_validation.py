from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

from raggrpo_trainer.data.prompt_files import Prompt
from raggrpo_trainer.rollout.collect import Collector
from raggrpo_trainer.rollout.validation import Validator
from support.builders.trainer.reports import make_config


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
    scored = [Mock(reward=0.5, exact_match=value) for value in values]
    collector = Mock(spec=Collector, prepare=AsyncMock(), collect=AsyncMock())
    collector.collect.return_value = Mock(scored=scored, samples=scored)

    result = await Validator(make_config(tmp_path), [], collector).measure(step=1)

    assert result.exact_match == mean
