"""Rules about the memory of GPUs, pods and retrievers."""

from collections.abc import Iterator

from raggrpo_api.memory import gpu as gpu_memory
from raggrpo_api.memory.arithmetic import num_ranks
from raggrpo_api.spec.job_spec import Preset
from raggrpo_api.spec.resources import Device, Placement
from raggrpo_operator.core.sizing.retriever_memory import retriever_terms
from raggrpo_operator.core.sizing.size import estimate
from raggrpo_operator.core.sizing.terms import total
from raggrpo_operator.core.spec.mitigations import MAX_UTILIZATION, MIN_UTILIZATION
from raggrpo_operator.core.spec.quantity import format_bytes, format_size, parse_quantity
from raggrpo_operator.core.spec.violation import Reason, Violation

from .rule_input import RuleInput, warning

UTILIZATION = "spec.rollout.gpuMemoryUtilization"


def utilization_in_range(given: RuleInput) -> Iterator[Violation]:
    """Require enough memory for both trainer and engine on a GPU that they share."""
    if given.spec.resources.device is not Device.GPU:
        return
    share, placement = given.spec.rollout.gpu_memory_utilization, given.spec.resources.placement
    highest = MAX_UTILIZATION[placement]
    if share > highest:
        message = f"{share} leaves too little to the trainer when {placement}"
        remedy = f"rollout.gpuMemoryUtilization: {highest} or less"
        yield Violation(UTILIZATION, Reason.UTILIZATION_TOO_HIGH, message, remedy)
    elif share < MIN_UTILIZATION:
        message = f"{share} leaves the engine little KV cache"
        remedy = f"rollout.gpuMemoryUtilization: {MIN_UTILIZATION} or more"
        yield warning(UTILIZATION, Reason.UTILIZATION_TOO_LOW, message, remedy)


def training_state_fits(given: RuleInput) -> Iterator[Violation]:
    """Require parameters, gradients and moments to fit into what the engine leaves.

    While the GPU's memory is unknown it is taken to be the largest there is.
    """
    if not _knows_model(given):
        return
    spec, facts = given.spec, given.facts
    state, room = gpu_memory.training_state(spec, facts), gpu_memory.training_room(spec, facts)
    if gpu_memory.training_state_excess(spec, facts) > 0:
        ranks, whole = num_ranks(spec.resources), gpu_memory.assumed_memory(spec, facts)
        colocated = spec.resources.placement is Placement.COLOCATED
        share = gpu_memory.engine_share(spec, facts) if colocated else 0
        yield Violation(
            UTILIZATION,
            Reason.TRAINING_STATE_DOES_NOT_FIT,
            f"training needs {format_size(state)} per GPU ({facts.parameters:,} parameters over "
            f"{ranks}: weights, gradients and AdamW's moments in fp32), "
            f"{format_size(max(0, room))} are left of {_device(given)}: {format_size(share)} for "
            f"the engine, {format_size(gpu_memory.weight_sync_bytes(spec, facts))} to send "
            "weights, "
            f"{format_size(whole - gpu_memory.usable_memory(spec, facts))} fragmentation",
            "more GPUs, or a lower rollout.gpuMemoryUtilization",
        )


def gpu_memory_is_known(given: RuleInput) -> Iterator[Violation]:
    """Warn while the fit is judged against the largest GPU there is."""
    spec, facts = given.spec, given.facts
    if _knows_model(given) and not gpu_memory.device_memory(spec, facts):
        state = gpu_memory.training_state(spec, facts)
        message = (
            f"the GPUs' memory is unknown: training state of {format_size(state)} per GPU is held "
            "against it only once the ranks have measured it, before any engine starts"
        )
        remedy = "resources.gpuMemoryGib: 80, or what one of these GPUs has"
        path = "spec.resources.gpuMemoryGib"
        yield warning(path, Reason.GPU_MEMORY_UNKNOWN, message, remedy)


def kv_cache_holds_sequences(given: RuleInput) -> Iterator[Violation]:
    """Warn when an engine has to set sequences aside for lack of KV cache."""
    if not _knows_gpu(given):
        return
    spec, facts = given.spec, given.facts
    cache, wanted = gpu_memory.kv_cache(spec, facts), gpu_memory.full_kv_cache(spec, facts)
    longest = spec.data.max_sequence_length
    each = max(1, longest * gpu_memory.kv_bytes_per_token(spec, facts))
    if each <= cache < wanted:
        fits = cache // each
        message = (
            f"the KV cache of {format_size(cache)} holds {fits} sequences of {longest} tokens, "
            f"{wanted // each} may be decoded together: the engine computes some twice"
        )
        remedy = f"rollout.maxNumSeqs: {fits}, or more rollout.gpuMemoryUtilization"
        path = "spec.rollout.maxNumSeqs"
        yield warning(path, Reason.KV_CACHE_IS_SHORT, message, remedy)


def activations_fit(given: RuleInput) -> Iterator[Violation]:
    """Warn when activations probably do not fit, and name a token budget that would."""
    if not _knows_gpu(given):
        return
    spec, facts = given.spec, given.facts
    room = gpu_memory.activation_room(spec, facts)
    active = gpu_memory.activations(spec, facts)
    if 0 <= room < active:
        fits = gpu_memory.max_micro_batch_tokens(room, spec, facts)
        longest = spec.data.max_sequence_length
        options = [f"training.tokensPerMicroBatch: {fits}"] if fits >= longest else []
        if not spec.training.gradient_checkpointing:
            options.append("training.gradientCheckpointing: true")
        path = "spec.training.tokensPerMicroBatch"
        message = (
            f"activations need about {format_size(active)} per GPU, {format_size(room)} are left"
        )
        remedy = ", or ".join(options) or "more GPUs, or shorter prompts and responses"
        yield warning(path, Reason.ACTIVATIONS_MAY_NOT_FIT, message, remedy)


def weights_fit_engine(given: RuleInput) -> Iterator[Violation]:
    """Require the engine's share to hold its weights and the KV cache of one sequence."""
    if not _knows_model(given):
        return
    spec, facts = given.spec, given.facts
    longest = spec.data.max_sequence_length
    needed = longest * gpu_memory.kv_bytes_per_token(spec, facts)
    if gpu_memory.engine_excess(spec, facts) > 0:
        weights, share = (
            gpu_memory.engine_weights(spec, facts),
            gpu_memory.engine_share(spec, facts),
        )
        yield Violation(
            "spec.rollout.tensorParallelSize",
            Reason.WEIGHTS_DO_NOT_FIT,
            f"weights of {format_size(weights)}, 2 GiB of graphs and {format_size(needed)} of KV "
            f"cache exceed the engine's {format_size(share)}",
            "a larger rollout.tensorParallelSize or rollout.gpuMemoryUtilization",
        )


def eager_only_where_memory_is_short(given: RuleInput) -> Iterator[Violation]:
    """Warn of eager mode in presets that are about speed."""
    spec = given.spec
    fits = spec.preset in (Preset.MEMORY_LIMITED, Preset.DEBUG)
    if spec.rollout.enforce_eager and spec.resources.device is Device.GPU and not fits:
        message = f"eager execution slows rollouts down and preset {spec.preset} is about speed"
        remedy = "rollout.enforceEager: false, or preset: MemoryLimited"
        yield warning("spec.rollout.enforceEager", Reason.EAGER_IS_SLOW, message, remedy)


def shm_within_memory(given: RuleInput) -> Iterator[Violation]:
    """Require /dev/shm to be smaller than the pod's memory, to which it is charged."""
    shm, memory = parse_quantity(given.sizing.shm), parse_quantity(given.sizing.memory)
    if shm >= memory:
        message = f"/dev/shm of {given.sizing.shm} is not below the memory of {given.sizing.memory}"
        remedy = "lower resources.shmSize or raise resources.memory; empty values are sized"
        yield Violation("spec.resources.shmSize", Reason.SHM_EXCEEDS_MEMORY, message, remedy)


def memory_covers_estimate(given: RuleInput) -> Iterator[Violation]:
    """Warn of a likely OOM kill; what the user gave still wins over the estimate."""
    given_amounts = {"memory": given.spec.resources.memory, "shm": given.spec.resources.shm_size}
    for resource, text in given_amounts.items():
        needed = estimate(given.sizing, resource)
        if text and parse_quantity(text) < needed:
            field = {"memory": "memory", "shm": "shmSize"}[resource]
            message = f"{text} is less than the estimate of {format_size(needed)}"
            remedy = f"resources.{field}: {format_bytes(needed)}, or leave it out; see raggrpo plan"
            yield warning(f"spec.resources.{field}", Reason.MEMORY_BELOW_ESTIMATE, message, remedy)


def retriever_memory_covers_index(given: RuleInput) -> Iterator[Violation]:
    """Require a managed retriever's memory to hold its texts and index."""
    if not given.facts.corpus_bytes:
        return
    for index, endpoint in enumerate(given.spec.retrieval.endpoints):
        if endpoint.managed is None:
            continue
        memory = endpoint.managed.memory
        needed = total(retriever_terms(endpoint.name, endpoint.managed, given.facts))
        if memory and parse_quantity(memory) < needed:
            path = f"spec.retrieval.endpoints[{index}].managed.memory"
            message = f"{memory} is less than the {format_size(needed)} that corpus and index need"
            remedy = f"memory: {format_bytes(needed)}, or leave it out"
            yield Violation(path, Reason.RETRIEVER_MEMORY_TOO_SMALL, message, remedy)


def _knows_model(given: RuleInput) -> bool:
    return given.facts.parameters > 0 and given.spec.resources.device is Device.GPU


def _knows_gpu(given: RuleInput) -> bool:
    return _knows_model(given) and gpu_memory.device_memory(given.spec, given.facts) > 0


def _device(given: RuleInput) -> str:
    """Return whose memory it is, and how much."""
    whole = format_size(gpu_memory.assumed_memory(given.spec, given.facts))
    if not _knows_gpu(given):
        return f"{whole}, the most that any GPU has"
    return whole if given.spec.resources.gpu_memory_gib else f"{whole} as the nodes' labels say"
