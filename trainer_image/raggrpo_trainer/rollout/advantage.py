"""Advantages of one GRPO group. Pure. Must not depend on how rewards are computed."""

import math
from collections.abc import Sequence

_STD_FLOOR = 1e-6
"""Added to the standard deviation to limit the advantages of nearly equal rewards."""


def group_advantages(
    rewards: Sequence[float | None], *, normalize_by_std: bool
) -> list[float | None]:
    """Return the reward of each sample minus the mean of its group.

    None marks a failed sample, which is excluded from the mean and stays None. All advantages are
    exactly 0 if the group has fewer than two valid samples or no variance. `normalize_by_std`
    divides by the sample standard deviation (DeepSeekMath, arXiv 2402.03300); without it, this is
    the unbiased form of Dr. GRPO (arXiv 2503.20783).
    """
    valid = [reward for reward in rewards if reward is not None]
    if len(valid) < 2 or min(valid) == max(valid):
        return [None if reward is None else 0.0 for reward in rewards]
    mean = math.fsum(valid) / len(valid)
    scale = 1.0
    if normalize_by_std:
        variance = math.fsum((reward - mean) ** 2 for reward in valid) / (len(valid) - 1)
        scale = math.sqrt(variance) + _STD_FLOOR
    return [None if reward is None else (reward - mean) / scale for reward in rewards]
