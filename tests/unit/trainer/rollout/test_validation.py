from pathlib import Path
from unittest.mock import AsyncMock, Mock

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
