"""Rules on the memory of GPUs, pods and retrievers."""

from collections.abc import Iterator

from raggrpo_api.memory import gpu as gpu_memory
from raggrpo_api.memory.arithmetic import num_ranks
from raggrpo_api.memory.parameters import adapter_parameters
from raggrpo_api.spec.job_spec import JobSpec, Preset
from raggrpo_api.spec.resources import Device, Placement, ResourcesSpec
from raggrpo_operator.core.sizing.retriever_memory import retriever_terms
from raggrpo_operator.core.sizing.size import estimate
from raggrpo_operator.core.sizing.terms import total
from raggrpo_operator.core.spec.mitigations import MAX_UTILIZATION, MIN_UTILIZATION
from raggrpo_operator.core.spec.quantity import format_bytes, format_size, parse_quantity
from raggrpo_operator.core.spec.violation import Reason, Violation

from .base.cel import DISAGGREGATED, ON_CPU
from .base.rule_input import RuleInput, warning
from .base.spec_rule import spec_rule

UTILIZATION = "spec.rollout.gpuMemoryUtilization"
COLOCATED_LIMIT = MAX_UTILIZATION[Placement.COLOCATED]
DISAGGREGATED_LIMIT = MAX_UTILIZATION[Placement.DISAGGREGATED]


@spec_rule(
    "spec",
    field="rollout.gpuMemoryUtilization",
    reason=Reason.UTILIZATION_TOO_HIGH,
    message="gpuMemoryUtilization leaves too little GPU memory outside the engine",
    values=lambda spec: f"{spec.rollout.gpu_memory_utilization}, {spec.resources.placement}",
    remedy=f"reduce gpuMemoryUtilization to at most {COLOCATED_LIMIT} with placement Colocated, "
    f"{DISAGGREGATED_LIMIT} with Disaggregated",
    if_specified=("rollout.gpuMemoryUtilization",),
    cel=f"{ON_CPU} || double(self.rollout.gpuMemoryUtilization) <= "
    f"({DISAGGREGATED} ? {DISAGGREGATED_LIMIT} : {COLOCATED_LIMIT})",
)
def utilization_leaves_room_for_trainer(spec: JobSpec) -> bool:
    """Require the engine to leave memory for the trainer, or for CUDA on a separate GPU."""
    limit = MAX_UTILIZATION[spec.resources.placement]
    return spec.resources.device is Device.CPU or spec.rollout.gpu_memory_utilization <= limit


def utilization_leaves_room_for_cache(inputs: RuleInput) -> Iterator[Violation]:
    """Warn if gpuMemoryUtilization leaves the engine little KV cache."""
    share = inputs.spec.rollout.gpu_memory_utilization
    if inputs.spec.resources.device is Device.GPU and share < MIN_UTILIZATION:
        message = f"gpuMemoryUtilization {share} leaves the engine little KV cache"
        remedy = f"set rollout.gpuMemoryUtilization: {MIN_UTILIZATION} or more"
        yield warning(UTILIZATION, Reason.UTILIZATION_TOO_LOW, message, remedy)


def training_state_fits(inputs: RuleInput) -> Iterator[Violation]:
    """Require parameters, gradients and AdamW's moments to fit into a GPU next to the engine.

    If the memory of the GPUs is unknown, the largest memory of any GPU is assumed.
    """
    if not _is_gpu_model_known(inputs):
        return
    spec, facts = inputs.spec, inputs.facts
    state, room = gpu_memory.training_state(spec, facts), gpu_memory.training_room(spec, facts)
    if gpu_memory.training_state_excess(spec, facts) > 0:
        whole = gpu_memory.assumed_memory(spec, facts)
        colocated = spec.resources.placement is Placement.COLOCATED
        share = gpu_memory.engine_share(spec, facts) if colocated else 0
        yield Violation(
            UTILIZATION,
            Reason.TRAINING_STATE_DOES_NOT_FIT,
            f"the training state does not fit ({format_size(state)} per GPU, limit "
            f"{format_size(max(0, room))}): {_state(inputs)}; the limit is {_device(inputs)} "
            f"minus {format_size(share)} for the engine, "
            f"{format_size(gpu_memory.weight_sync_bytes(spec, facts))} for the weight sync and "
            f"{format_size(whole - gpu_memory.usable_memory(spec, facts))} for "
            "fragmentation",
            "request more GPUs, or reduce rollout.gpuMemoryUtilization"
            + ("" if spec.training.lora else ", or train adapters only (training.lora)"),
        )


def gpu_memory_is_known(inputs: RuleInput) -> Iterator[Violation]:
    """Warn if GPU memory is unknown and the largest GPU is assumed."""
    spec, facts = inputs.spec, inputs.facts
    if _is_gpu_model_known(inputs) and not gpu_memory.device_memory(spec, facts):
        state = gpu_memory.training_state(spec, facts)
        message = (
            f"the memory of the GPUs is unknown until the ranks have measured it; only then can "
            f"they check that the training state of {format_size(state)} per GPU fits"
        )
        remedy = "set resources.gpuMemoryGib: 80, or to the memory of one of these GPUs"
        path = "spec.resources.gpuMemoryGib"
        yield warning(path, Reason.GPU_MEMORY_UNKNOWN, message, remedy)


def kv_cache_holds_sequences(inputs: RuleInput) -> Iterator[Violation]:
    """Warn if an engine must preempt sequences for lack of KV cache."""
    if not _is_gpu_memory_known(inputs):
        return
    spec, facts = inputs.spec, inputs.facts
    cache = gpu_memory.kv_cache(spec, facts)
    needed = gpu_memory.full_kv_cache(spec, facts)
    longest = spec.data.max_sequence_length
    each = max(1, longest * gpu_memory.kv_bytes_per_token(spec, facts))
    if each <= cache < needed:
        fits = cache // each
        message = (
            f"the KV cache of {format_size(cache)} holds {fits} sequences of {longest} tokens, "
            f"but up to {needed // each} are decoded concurrently, so some are preempted"
        )
        remedy = f"set rollout.maxNumSeqs: {fits}, or increase rollout.gpuMemoryUtilization"
        path = "spec.rollout.maxNumSeqs"
        yield warning(path, Reason.KV_CACHE_IS_SHORT, message, remedy)


def activations_fit(inputs: RuleInput) -> Iterator[Violation]:
    """Warn if activations probably do not fit, and suggest a token budget."""
    if not _is_gpu_memory_known(inputs):
        return
    spec, facts = inputs.spec, inputs.facts
    room = gpu_memory.activation_room(spec, facts)
    active = gpu_memory.activations(spec, facts)
    if 0 <= room < active:
        fits = gpu_memory.max_micro_batch_tokens(room, spec, facts)
        longest = spec.data.max_sequence_length
        options = [f"set training.tokensPerMicroBatch: {fits}"] if fits >= longest else []
        if not spec.training.gradient_checkpointing:
            options.append("set training.gradientCheckpointing: true")
        path = "spec.training.tokensPerMicroBatch"
        sizes = f"about {format_size(active)} per GPU, limit {format_size(room)}"
        message = f"activations probably do not fit ({sizes})"
        remedy = ", or ".join(options) or "request more GPUs, or shorten prompts and responses"
        yield warning(path, Reason.ACTIVATIONS_MAY_NOT_FIT, message, remedy)


def weights_fit_engine(inputs: RuleInput) -> Iterator[Violation]:
    """Require the engine's memory share to hold its weights and the KV cache of one sequence."""
    if not _is_gpu_model_known(inputs):
        return
    spec, facts = inputs.spec, inputs.facts
    longest = spec.data.max_sequence_length
    needed = longest * gpu_memory.kv_bytes_per_token(spec, facts)
    if gpu_memory.engine_excess(spec, facts) > 0:
        weights, share = (
            gpu_memory.engine_weights(spec, facts),
            gpu_memory.engine_share(spec, facts),
        )
        yield Violation(
            "spec.rollout.gpuMemoryUtilization",
            Reason.WEIGHTS_DO_NOT_FIT,
            f"weights of {format_size(weights)}, 2 GiB of CUDA graphs and {format_size(needed)} of "
            f"KV cache exceed the engine's memory share of {format_size(share)}",
            "increase rollout.gpuMemoryUtilization, or disaggregate the engines and increase "
            "rollout.tensorParallelSize",
        )


def eager_only_where_memory_is_short(inputs: RuleInput) -> Iterator[Violation]:
    """Warn if eager execution is specified with a preset that optimizes for speed."""
    spec = inputs.spec
    fits = spec.preset in (Preset.MEMORY_LIMITED, Preset.DEBUG)
    if spec.rollout.enforce_eager and spec.resources.device is Device.GPU and not fits:
        message = f"eager execution is slower, but preset {spec.preset} optimizes for speed"
        remedy = "set rollout.enforceEager: false, or preset: MemoryLimited"
        yield warning("spec.rollout.enforceEager", Reason.EAGER_IS_SLOW, message, remedy)


@spec_rule(
    "spec.resources",
    field="shmSize",
    reason=Reason.SHM_EXCEEDS_MEMORY,
    message="shmSize is not less than memory, although memory includes /dev/shm",
    values=lambda resources: f"{resources.shm_size}, {resources.memory}",
    remedy="reduce resources.shmSize or increase resources.memory, or omit both to derive them",
    if_specified=("shmSize", "memory"),
    cel="size(self.shmSize) == 0 || size(self.memory) == 0 || "
    "quantity(self.shmSize).isLessThan(quantity(self.memory))",
)
def shm_is_below_memory(resources: ResourcesSpec) -> bool:
    """Require /dev/shm to be smaller than the pod's memory."""
    shm, memory = resources.shm_size, resources.memory
    return not (shm and memory) or parse_quantity(shm) < parse_quantity(memory)


def derived_shm_is_below_memory(inputs: RuleInput) -> Iterator[Violation]:
    """Require /dev/shm to be smaller than the pod's memory if at least one amount is derived."""
    resources, sizing = inputs.spec.resources, inputs.sizing
    is_derived = not (resources.shm_size and resources.memory)
    if is_derived and parse_quantity(sizing.shm) >= parse_quantity(sizing.memory):
        rule = shm_is_below_memory
        message = f"{rule.message} ({sizing.shm}, {sizing.memory})"
        yield Violation("spec.resources.shmSize", rule.reason, message, rule.remedy)


def memory_covers_estimate(inputs: RuleInput) -> Iterator[Violation]:
    """Warn if a specified amount is below its estimate, so that an OOM kill is likely."""
    amounts = {"memory": inputs.spec.resources.memory, "shm": inputs.spec.resources.shm_size}
    for resource, text in amounts.items():
        needed = estimate(inputs.sizing, resource)
        if text and parse_quantity(text) < needed:
            field = {"memory": "memory", "shm": "shmSize"}[resource]
            message = f"{text} is less than the estimate ({format_size(needed)})"
            remedy = (
                f"set resources.{field}: {format_bytes(needed)}, or omit it to use the estimate"
            )
            yield warning(f"spec.resources.{field}", Reason.MEMORY_BELOW_ESTIMATE, message, remedy)


def retriever_memory_covers_index(inputs: RuleInput) -> Iterator[Violation]:
    """Require a managed retriever's memory to hold its texts and index."""
    if not inputs.facts.corpus_bytes:
        return
    for index, endpoint in enumerate(inputs.spec.retrieval.endpoints):
        if endpoint.managed is None:
            continue
        memory = endpoint.managed.memory
        needed = total(retriever_terms(endpoint.name, endpoint.managed, inputs.facts))
        if memory and parse_quantity(memory) < needed:
            path = f"spec.retrieval.endpoints[{index}].managed.memory"
            message = f"{memory} is less than the corpus and index need ({format_size(needed)})"
            remedy = f"set memory: {format_bytes(needed)}, or omit it to derive the amount"
            yield Violation(path, Reason.RETRIEVER_MEMORY_TOO_SMALL, message, remedy)


def _is_gpu_model_known(inputs: RuleInput) -> bool:
    return inputs.facts.parameters > 0 and inputs.spec.resources.device is Device.GPU


def _is_gpu_memory_known(inputs: RuleInput) -> bool:
    return _is_gpu_model_known(inputs) and gpu_memory.device_memory(inputs.spec, inputs.facts) > 0


def _state(inputs: RuleInput) -> str:
    """Return the parameters and data types of the training state as text."""
    training, facts = inputs.spec.training, inputs.facts
    ranks = num_ranks(inputs.spec.resources)
    states = "fp32 weights, gradients and AdamW moments"
    if training.lora is None:
        return f"{facts.parameters:,} parameters over {ranks} ranks ({states})"
    trained = f"{adapter_parameters(training, facts):,} of adapters ({states})"
    frozen = f"{facts.parameters:,} frozen parameters ({training.precision})"
    return f"{frozen} and {trained} over {ranks} ranks"


def _device(inputs: RuleInput) -> str:
    """Return the memory of a GPU as text, with the source of the value unless specified."""
    whole = format_size(gpu_memory.assumed_memory(inputs.spec, inputs.facts))
    if not _is_gpu_memory_known(inputs):
        return f"{whole} (unknown; the largest of any GPU)"
    return whole if inputs.spec.resources.gpu_memory_gib else f"{whole} (from the nodes' labels)"
