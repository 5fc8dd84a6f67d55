"""The result of a validation, reported by the driver and used to score checkpoints."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """Means over the held-out prompts that could be scored."""

    exact_match: float | None
    """None if no held-out prompt has a reference answer."""
    reward_mean: float
    num_samples: int
    num_failed: int
    control_exact_match: float | None = None
    """Exact match with swapped passages; near chance if the policy relies on retrieval."""
