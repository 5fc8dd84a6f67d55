"""The finite number that a reward must be. Pure."""

import math
from typing import Final

from raggrpo_trainer.call_failures import CallFailed, FailureCause

DETAIL_CHARACTERS: Final = 300
"""Maximum length of a value in a failure's detail."""
MAX_REWARD: Final = 1e30
"""Largest magnitude of a term, whose weighted sum and square are finite."""


def finite_number(value: object) -> float:
    """Return a reward as float.

    Raises CallFailed (NotANumber) for NaN, infinity, text, and numbers beyond ±MAX_REWARD.
    """
    try:
        number = math.nan if isinstance(value, str) else float(value)  # type: ignore[arg-type]
    except OverflowError:
        number = math.inf
    except (TypeError, ValueError):
        number = math.nan
    if math.isfinite(number) and abs(number) <= MAX_REWARD:
        return number
    detail = f"{value!r}"[:DETAIL_CHARACTERS]
    if isinstance(value, int | float) and not math.isnan(number):
        detail += f" is beyond ±{MAX_REWARD:g}"
    raise CallFailed(FailureCause.NOT_A_NUMBER, detail)
