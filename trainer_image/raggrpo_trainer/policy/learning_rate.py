"""The learning rate as a function of the step; nothing is carried along, so a resume is exact."""

import math
from typing import assert_never

from raggrpo_api.spec.training import LearningRateSchedule, TrainingSpec


def learning_rate(training: TrainingSpec, step: int) -> float:
    """Return the learning rate of a step, which counts from 1.

    The rate rises linearly to its peak at step `warmup_steps`, or begins with it. Then it stays, or
    falls so that it would reach the floor, `min_learning_rate_ratio` of the peak, one step after
    `decay_steps`: thus the last step of a run still trains. Cosine: Loshchilov and Hutter, "SGDR:
    Stochastic Gradient Descent with Warm Restarts" (2017), equation 5, without restarts.
    """
    peak_at = max(1, training.warmup_steps)
    if step < peak_at:
        return training.learning_rate * (step / peak_at)
    passed = min(1.0, (step - peak_at) / max(1, training.decay_steps + 1 - peak_at))
    match training.learning_rate_schedule:
        case LearningRateSchedule.CONSTANT:
            return training.learning_rate
        case LearningRateSchedule.LINEAR:
            left = 1.0 - passed
        case LearningRateSchedule.COSINE:
            left = 0.5 * (1.0 + math.cos(math.pi * passed))
        case _:
            assert_never(training.learning_rate_schedule)
    floor = training.min_learning_rate_ratio
    return training.learning_rate * (floor + (1.0 - floor) * left)
