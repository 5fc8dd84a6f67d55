"""Rules about the numbers of the objective, the optimiser and recovery."""

from collections.abc import Iterator

from raggrpo_api.memory.arithmetic import BF16_COMPUTE_MAJOR
from raggrpo_api.spec.model import Attention
from raggrpo_api.spec.resources import Device
from raggrpo_api.spec.training import LearningRateSchedule, Precision, RowLayout
from raggrpo_operator.core.spec.violation import Reason, Violation

from .rule_input import RuleInput, warning

LEARNING_RATES = (1e-8, 1e-3)
CONSTANT = LearningRateSchedule.CONSTANT


def temperature_is_positive(given: RuleInput) -> Iterator[Violation]:
    """Reject greedy sampling: equal completions carry no advantage."""
    if given.spec.rollout.temperature == 0:
        message = "0 makes the completions of a group equal, so that nothing is learned"
        remedy = "rollout.temperature: 0.6"
        yield Violation("spec.rollout.temperature", Reason.TEMPERATURE_ZERO, message, remedy)


def top_p_keeps_logprobs_exact(given: RuleInput) -> Iterator[Violation]:
    """Warn of a cut-off that the trainer's softmax does not apply."""
    if given.spec.rollout.top_p < 1:
        top_p = given.spec.rollout.top_p
        message = (
            f"the engine's log-probabilities hold for the tokens that {top_p} keeps, the trainer's "
            f"for all; the importance weight multiplies each token's step by the share that was "
            f"kept, {top_p} to 1, so steps are up to {1 - top_p:.0%} smaller, most where the "
            "policy is unsure"
        )
        yield warning("spec.rollout.topP", Reason.TOP_P_BELOW_ONE, message, "rollout.topP: 1.0")


def learning_rate_is_usual(given: RuleInput) -> Iterator[Violation]:
    """Warn of rates that usually come from a typo in the exponent."""
    rate, (lowest, highest) = given.spec.training.learning_rate, LEARNING_RATES
    if not lowest <= rate <= highest:
        message = f"{rate:g} lies outside {lowest:g} to {highest:g}"
        remedy = "1e-6 is usual for models from 0.5B parameters"
        yield warning("spec.training.learningRate", Reason.LEARNING_RATE_UNUSUAL, message, remedy)


def clip_range_is_sane(given: RuleInput) -> Iterator[Violation]:
    """Require a positive upper clip distance that is not below the lower one."""
    low, high = given.spec.algorithm.clip_ratio_low, given.spec.algorithm.clip_ratio_high
    if high < low or high == 0:
        message = f"clipRatioLow is {low} and clipRatioHigh is {high}"
        remedy = "0.2 and 0.28; the upper distance is above 0 and not below the lower"
        yield Violation("spec.algorithm.clipRatioHigh", Reason.CLIP_RANGE, message, remedy)


def dual_clip_is_above_one(given: RuleInput) -> Iterator[Violation]:
    """Reject a bound that would hold tokens which the upper clip distance still allows."""
    bound, high = given.spec.algorithm.dual_clip, given.spec.algorithm.clip_ratio_high
    if bound and bound <= 1 + high:
        message = f"{bound} is not above 1 + clipRatioHigh = {1 + high:g}"
        remedy = "3 is usual; 0 switches it off"
        yield Violation("spec.algorithm.dualClip", Reason.CLIP_RANGE, message, remedy)


def warmup_ends_within_run(given: RuleInput) -> Iterator[Violation]:
    """Warn when the learning rate would not reach its peak, or drop from there to its floor."""
    training = given.spec.training
    warmup, falls = training.warmup_steps, training.learning_rate_schedule is not CONSTANT
    ends = [training.total_steps, training.decay_steps if falls else 0]
    steps = min(filter(None, ends), default=0)
    if steps and warmup >= steps:
        message = f"{warmup} of {steps} steps are warm-up"
        remedy = f"training.warmupSteps: {steps // 10}"
        yield warning("spec.training.warmupSteps", Reason.WARMUP_EXCEEDS_RUN, message, remedy)


def decay_is_used(given: RuleInput) -> Iterator[Violation]:
    """Warn of an end of a learning rate that does not fall."""
    training = given.spec.training
    if training.learning_rate_schedule is not CONSTANT:
        return
    unused = {
        "decaySteps": training.decay_steps,
        "minLearningRateRatio": training.min_learning_rate_ratio,
    }
    for name, value in unused.items():
        if value:
            message = f"{value:g} has no effect, because the learning rate stays constant"
            remedy = f"training.learningRateSchedule: Cosine or Linear, or remove {name}"
            yield warning(f"spec.training.{name}", Reason.DECAY_UNUSED, message, remedy)


def attention_is_available(given: RuleInput) -> Iterator[Violation]:
    """Require a GPU and 16-bit numbers for Flash, and padded rows for both Flash and Eager."""
    spec, attention = given.spec, given.spec.model.attention
    if attention not in (Attention.FLASH, Attention.EAGER):
        return
    is_flash = attention is Attention.FLASH
    obstacles = {
        "resources.device is CPU": is_flash and spec.resources.device is Device.CPU,
        "training.precision is FP32": is_flash and spec.training.precision is Precision.FP32,
        "training.rowLayout is SharedPrefix": spec.training.row_layout is RowLayout.SHARED_PREFIX,
    }
    for obstacle, stands in obstacles.items():
        if stands:
            message = f"{attention} does not work while {obstacle}"
            remedy = "model.attention: Auto takes the best that works"
            yield Violation("spec.model.attention", Reason.ATTENTION_UNAVAILABLE, message, remedy)


def bf16_is_available(given: RuleInput) -> Iterator[Violation]:
    """Require devices with BF16 (compute capability 8) for it; older ones emulate it slowly."""
    spec, major = given.spec, given.facts.gpu_compute_major
    if spec.resources.device is not Device.GPU or not 0 < major < BF16_COMPUTE_MAJOR:
        return
    if spec.training.precision is Precision.BF16:
        name = given.facts.gpu_product or "the GPU"
        message = f"{name} has compute capability {major}.x, and BF16 begins at 8.0"
        remedy = "training.precision: FP16 (dynamic loss scaling), or Auto"
        path = "spec.training.precision"
        yield Violation(path, Reason.BF16_UNAVAILABLE, message, remedy)


def row_layout_is_exact(given: RuleInput) -> Iterator[Violation]:
    """Reject rows in which the model's layers would mix completions (on facts)."""
    is_shared = given.spec.training.row_layout is RowLayout.SHARED_PREFIX
    if is_shared and given.facts.row_layout is RowLayout.PADDED:
        message = "SharedPrefix is not exact for this model; the check ModelFamily says why"
        remedy = "training.rowLayout: Padded, or leave it out"
        yield Violation("spec.training.rowLayout", Reason.ROW_LAYOUT_NOT_EXACT, message, remedy)


def backoff_grows(given: RuleInput) -> Iterator[Violation]:
    """Reject a maximum delay below the first one."""
    recovery = given.spec.recovery
    if recovery.max_backoff_seconds < recovery.backoff_seconds:
        yield Violation(
            "spec.recovery.maxBackoffSeconds",
            Reason.BACKOFF_RANGE,
            f"{recovery.max_backoff_seconds} is below backoffSeconds {recovery.backoff_seconds}",
            f"recovery.maxBackoffSeconds: {recovery.backoff_seconds} or more",
        )
