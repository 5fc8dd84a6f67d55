"""The learning rate as a function of the step. It is stateless, so a resume is exact."""

import math
from typing import assert_never

from raggrpo_api.spec.training import LearningRateSchedule, TrainingSpec


def learning_rate(training: TrainingSpec, step: int) -> float:
    """Return the learning rate of a step; steps count from 1.

    The rate rises linearly to its peak at step `warmup_steps`; without warm-up it starts at its
    peak. Then it is constant, or decays to its minimum, `min_learning_rate_ratio` times the peak.
    It reaches the minimum one step after `decay_steps`, so that the last step still trains. Cosine:
    Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts" (2017),
    equation 5, without restarts.

    The schedules of transformers lag by one step: their warm-up step i + 1 has the rate that is
    returned here for step i, so their first step has rate 0 and trains nothing.
    """
    peak_step = max(1, training.warmup_steps)
    if step < peak_step:
        return training.learning_rate * (step / peak_step)
    decayed = min(1.0, (step - peak_step) / max(1, training.decay_steps + 1 - peak_step))
    match training.learning_rate_schedule:
        case LearningRateSchedule.CONSTANT:
            return training.learning_rate
        case LearningRateSchedule.LINEAR:
            remaining = 1.0 - decayed
        case LearningRateSchedule.COSINE:
            remaining = 0.5 * (1.0 + math.cos(math.pi * decayed))
        case _:
            assert_never(training.learning_rate_schedule)
    floor = training.min_learning_rate_ratio
    return training.learning_rate * (floor + (1.0 - floor) * remaining)
