"""Part of check RewardCode: call each Python reward with the first row in a separate process."""

import asyncio
from typing import Final

from raggrpo_api.spec.reward import RewardFunction, RewardKind
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.data.prompt_files import Prompt
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.rewards.hooks import ProcessReward
from raggrpo_trainer.rewards.signatures import EXPECTED

from .first_row import answered_sample, read_first_row

REMEDIES: Final = {FailureCause.TIMEOUT: "increase timeoutSeconds, or make the function faster"}
REMEDY: Final = "correct the function"


async def check_python_rewards(config: TrainerConfig) -> tuple[list[str], list[str]]:
    """Return the problems and the evidence of all Python rewards.

    If the data cannot be read, functions are only imported.
    """
    spec = config.reward
    terms = [term for term in enumerate(spec.functions) if term[1].name is RewardKind.PYTHON]
    if not terms:
        return [], []
    row = await asyncio.to_thread(read_first_row, config)
    outcomes = await asyncio.gather(
        *(_check(index, term, spec.code_from.path, row) for index, term in terms)
    )
    problems = [text for is_valid, text in outcomes if not is_valid]
    return problems, [text for is_valid, text in outcomes if is_valid]


async def _check(
    index: int, term: RewardFunction, folder: str, row: Prompt | None
) -> tuple[bool, str]:
    """Return whether a function is usable, and what it returned or why it is not usable."""
    place = f"reward.functions[{index}] ({term.python})"
    hook = ProcessReward(term.python, term.timeout_seconds, term.signature, folder=folder)
    try:
        if row is None:
            await hook.check_import()
            return True, f"{term.python} can be imported"
        reward = await hook.score(answered_sample(row).as_json())
    except TrainerError as error:
        return False, f"{place}: {error}"
    except CallFailed as failure:
        remedy = REMEDIES.get(failure.cause, REMEDY)
        detail = failure.detail
        if failure.cause is not FailureCause.WRONG_TYPE:  # its detail has what was expected
            detail += f", expected {EXPECTED[term.signature]}"
        return False, f"{place}: {failure.cause} for the first row: {detail}; {remedy}"
    finally:
        await hook.close()
    return True, f"{place} returned {reward:g} for the first row"
