"""The first row of the data, which checks send to services and reward functions."""

from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_trainer.data.prompt_files import Prompt, read_prompts
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.retrieval.client import WARM_UP_TEXT
from raggrpo_trainer.rewards.rewards import RewardSample


def read_first_row(config: TrainerConfig) -> Prompt | None:
    """Return the first row, or None if it cannot be read. Other checks report why."""
    first = config.data.model_copy(update={"max_samples": 1})
    try:
        [row] = read_prompts(
            first.train_files, first, config.retrieval, config.reward, config.rollout.agent
        )
    except TrainerError:
        return None
    return row


def answered_sample(row: Prompt) -> RewardSample:
    """Return a sample of `row` whose completion is its answer, or a placeholder without answer."""
    return RewardSample(
        "preflight",
        row.text,
        next((answer for answer in row.answer if answer.strip()), WARM_UP_TEXT),
        row.answer,
        row.context,
        columns=row.columns,
    )
