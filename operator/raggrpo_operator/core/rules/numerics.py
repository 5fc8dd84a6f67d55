"""Rules on loss, sampling, optimizer, precision and backoff."""

from collections.abc import Iterator

from raggrpo_api.memory.arithmetic import BF16_COMPUTE_MAJOR
from raggrpo_api.spec.algorithm import AlgorithmSpec
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.model import Attention
from raggrpo_api.spec.recovery import RecoverySpec
from raggrpo_api.spec.resources import Device
from raggrpo_api.spec.rollout import RolloutSpec
from raggrpo_api.spec.training import LearningRateSchedule, Precision, RowLayout
from raggrpo_operator.core.spec.violation import Reason, Violation

from .base.cel import ON_CPU, PADDED, is_one_of
from .base.rule_input import RuleInput, warning
from .base.spec_rule import spec_rule

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 2.0
"""Bounds of vLLM's SamplingParams; lower temperatures are raised to the minimum."""
LEARNING_RATE_RANGE = (1e-8, 1e-3)
LORA_LEARNING_RATE_RANGE = (2e-6, 1e-3)
"""Adapters start at zero: below, they hardly change the model; above, training often diverges."""
CONSTANT = LearningRateSchedule.CONSTANT
_FLASH = is_one_of("model.attention", "Flash")


@spec_rule(
    "spec.rollout",
    field="temperature",
    reason=Reason.TEMPERATURE_ZERO,
    message="at temperature 0 all completions of a group are equal and have no advantage",
    remedy="set rollout.temperature: 0.6",
    if_specified=("temperature",),
    cel="double(self.temperature) > 0.0",
)
def temperature_is_positive(rollout: RolloutSpec) -> bool:
    """Reject greedy sampling: equal completions have no advantage."""
    return rollout.temperature > 0


@spec_rule(
    "spec.rollout",
    field="temperature",
    reason=Reason.TEMPERATURE_OUT_OF_RANGE,
    message="vLLM accepts 0 < temperature ≤ 2 and raises values below 0.01 to 0.01",
    values=lambda rollout: f"{rollout.temperature:g}",
    remedy="set rollout.temperature: 0.6, or another value from 0.01 to 2",
    if_specified=("temperature",),
    cel="double(self.temperature) == 0.0 || "
    f"double(self.temperature) >= {MIN_TEMPERATURE} && "
    f"double(self.temperature) <= {MAX_TEMPERATURE}",
)
def temperature_is_in_range_of_engine(rollout: RolloutSpec) -> bool:
    """Reject temperatures at which the engine would fail or sample from another distribution."""
    return rollout.temperature == 0 or MIN_TEMPERATURE <= rollout.temperature <= MAX_TEMPERATURE


def top_p_keeps_logprobs_exact(inputs: RuleInput) -> Iterator[Violation]:
    """Warn about nucleus sampling, which the trainer's softmax does not apply."""
    if inputs.spec.rollout.top_p < 1:
        top_p = inputs.spec.rollout.top_p
        message = (
            f"the engine normalizes logprobs over the tokens that topP {top_p} retains, the "
            f"trainer over all tokens: the importance weight scales each token's gradient by the "
            f"retained probability ({top_p} to 1), so updates are up to {1 - top_p:.0%} smaller"
        )
        yield warning("spec.rollout.topP", Reason.TOP_P_BELOW_ONE, message, "set rollout.topP: 1.0")


def learning_rate_is_usual(inputs: RuleInput) -> Iterator[Violation]:
    """Warn about learning rates of full training with adapters, and about likely typos."""
    training = inputs.spec.training
    rate, of = training.learning_rate, " of adapters" if training.lora else ""
    lowest, highest = LORA_LEARNING_RATE_RANGE if training.lora else LEARNING_RATE_RANGE
    if not lowest <= rate <= highest:
        message = f"the learning rate {rate:g}{of} is not between {lowest:g} and {highest:g}"
        usual = "1e-5 to 2e-4 are" if training.lora else "1e-6 is"
        remedy = f"check the exponent; {usual} usual for models of 0.5B or more parameters"
        yield warning("spec.training.learningRate", Reason.LEARNING_RATE_UNUSUAL, message, remedy)


@spec_rule(
    "spec.algorithm",
    field="clipRatioHigh",
    reason=Reason.CLIP_RANGE,
    message="clipRatioHigh is less than clipRatioLow",
    values=lambda block: f"{block.clip_ratio_high}, {block.clip_ratio_low}",
    remedy="set clipRatioLow: 0.2 and clipRatioHigh: 0.28, which are usual",
    if_specified=("clipRatioLow", "clipRatioHigh"),
    cel="double(self.clipRatioLow) <= double(self.clipRatioHigh)",
)
def clip_range_is_ordered(algorithm: AlgorithmSpec) -> bool:
    """Require an upper clip distance that is not below the lower one."""
    return algorithm.clip_ratio_low <= algorithm.clip_ratio_high


@spec_rule(
    "spec.algorithm",
    field="clipRatioHigh",
    reason=Reason.CLIP_RANGE,
    message="clipRatioHigh 0 clips every token with a positive advantage",
    remedy="set algorithm.clipRatioHigh: 0.28",
    if_specified=("clipRatioHigh",),
    cel="double(self.clipRatioHigh) > 0.0",
)
def clip_ratio_high_is_positive(algorithm: AlgorithmSpec) -> bool:
    """Require a positive upper clip distance."""
    return algorithm.clip_ratio_high > 0


def dual_clip_exceeds_clip_range(inputs: RuleInput) -> Iterator[Violation]:
    """Reject a dual clip bound that would clip tokens within the clip range."""
    bound, high = inputs.spec.algorithm.dual_clip, inputs.spec.algorithm.clip_ratio_high
    if bound and bound <= 1 + high:
        message = f"dualClip {bound} is not above 1 + clipRatioHigh ({1 + high:g})"
        remedy = "increase dualClip (3 is usual), or set it to 0 to disable dual clipping"
        yield Violation("spec.algorithm.dualClip", Reason.CLIP_RANGE, message, remedy)


def warmup_ends_within_run(inputs: RuleInput) -> Iterator[Violation]:
    """Warn if the learning rate would not reach its peak, or would drop from it abruptly."""
    training = inputs.spec.training
    warmup, falls = training.warmup_steps, training.learning_rate_schedule is not CONSTANT
    ends = [training.total_steps, training.decay_steps if falls else 0]
    steps = min(filter(None, ends), default=0)
    if steps and warmup >= steps:
        message = f"the warm-up of {warmup} steps does not end before the run or decay ({steps})"
        remedy = f"set training.warmupSteps: {steps // 10}"
        yield warning("spec.training.warmupSteps", Reason.WARMUP_EXCEEDS_RUN, message, remedy)


def decay_is_used(inputs: RuleInput) -> Iterator[Violation]:
    """Warn about decay settings for a constant learning rate."""
    training = inputs.spec.training
    if training.learning_rate_schedule is not CONSTANT:
        return
    unused = {
        "decaySteps": training.decay_steps,
        "minLearningRateRatio": training.min_learning_rate_ratio,
    }
    for name, value in unused.items():
        if value:
            message = f"{name} {value:g} has no effect, because the learning rate is constant"
            remedy = f"set training.learningRateSchedule: Cosine or Linear, or remove {name}"
            yield warning(f"spec.training.{name}", Reason.DECAY_UNUSED, message, remedy)


@spec_rule(
    "spec",
    field="model.attention",
    reason=Reason.ATTENTION_UNAVAILABLE,
    message="Flash and Eager are unavailable with training.rowLayout SharedPrefix",
    remedy="set model.attention: Auto to select the fastest available implementation",
    cel=f"!{is_one_of('model.attention', 'Flash', 'Eager')} || {PADDED}",
)
def attention_supports_row_layout(spec: JobSpec) -> bool:
    """Require padded rows for attention Flash and Eager."""
    is_limited = spec.model.attention in (Attention.FLASH, Attention.EAGER)
    return not is_limited or spec.training.row_layout is RowLayout.PADDED


@spec_rule(
    "spec",
    field="model.attention",
    reason=Reason.ATTENTION_UNAVAILABLE,
    message="Flash is unavailable with resources.device CPU",
    remedy="set model.attention: Auto to select the fastest available implementation",
    cel=f"!{_FLASH} || !{ON_CPU}",
)
def flash_has_gpu(spec: JobSpec) -> bool:
    """Require a GPU for attention Flash."""
    return spec.model.attention is not Attention.FLASH or spec.resources.device is Device.GPU


@spec_rule(
    "spec",
    field="model.attention",
    reason=Reason.ATTENTION_UNAVAILABLE,
    message="Flash is unavailable with training.precision FP32",
    remedy="set model.attention: Auto to select the fastest available implementation",
    if_specified=("training.precision",),
    cel=f"!{_FLASH} || !{is_one_of('training.precision', 'FP32')}",
)
def flash_has_16_bits(spec: JobSpec) -> bool:
    """Require 16-bit precision for Flash attention."""
    is_flash = spec.model.attention is Attention.FLASH
    return not is_flash or spec.training.precision is not Precision.FP32


def bf16_is_available(inputs: RuleInput) -> Iterator[Violation]:
    """Require compute capability 8 for BF16, which older GPUs emulate slowly."""
    spec, major = inputs.spec, inputs.facts.gpu_compute_major
    if spec.resources.device is not Device.GPU or not 0 < major < BF16_COMPUTE_MAJOR:
        return
    if spec.training.precision is Precision.BF16:
        name = inputs.facts.gpu_product or "the GPU"
        message = f"{name} has compute capability {major}.x, but BF16 requires 8.0"
        remedy = "set training.precision: FP16 (dynamic loss scaling), or Auto"
        path = "spec.training.precision"
        yield Violation(path, Reason.BF16_UNAVAILABLE, message, remedy)


def row_layout_is_exact(inputs: RuleInput) -> Iterator[Violation]:
    """Reject shared-prefix rows for models whose layers would mix completions."""
    is_shared = inputs.spec.training.row_layout is RowLayout.SHARED_PREFIX
    if is_shared and inputs.facts.row_layout is RowLayout.PADDED:
        message = "SharedPrefix is not exact for this model; see the preflight check ModelFamily"
        remedy = "set training.rowLayout: Padded, or omit the field"
        yield Violation("spec.training.rowLayout", Reason.ROW_LAYOUT_NOT_EXACT, message, remedy)


@spec_rule(
    "spec.recovery",
    field="maxBackoffSeconds",
    reason=Reason.BACKOFF_RANGE,
    message="maxBackoffSeconds is less than backoffSeconds",
    values=lambda recovery: f"{recovery.max_backoff_seconds}, {recovery.backoff_seconds}",
    remedy="increase recovery.maxBackoffSeconds, or set recovery.backoffSeconds: 0",
    if_specified=("backoffSeconds", "maxBackoffSeconds"),
    cel="self.maxBackoffSeconds >= self.backoffSeconds",
)
def backoff_is_ordered(recovery: RecoverySpec) -> bool:
    """Reject a maximum restart delay that is shorter than the first delay."""
    return recovery.max_backoff_seconds >= recovery.backoff_seconds
