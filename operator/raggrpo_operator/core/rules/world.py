"""Rules about processors, processes and placement."""

from collections.abc import Iterator

from raggrpo_api.spec.resources import Device, Placement
from raggrpo_operator.core.spec.violation import Reason, Violation

from .rule_input import RuleInput, warning


def gpus_are_asked_for(given: RuleInput) -> Iterator[Violation]:
    """Require at least one GPU per node of a job on GPUs."""
    resources = given.spec.resources
    if resources.device is Device.GPU and not resources.gpus_per_node:
        message = "device is GPU and gpusPerNode is 0"
        remedy = "resources.gpusPerNode: 1 or more, or resources.device: CPU"
        yield Violation("spec.resources.gpusPerNode", Reason.NO_GPUS, message, remedy)


def rollout_gpus_match_placement(given: RuleInput) -> Iterator[Violation]:
    """Require GPUs for the engines alone if and only if placement is Disaggregated."""
    resources = given.spec.resources
    if resources.device is not Device.GPU:
        return
    disaggregated = resources.placement is Placement.DISAGGREGATED
    remedy = "resources.rolloutGpus: 0, or resources.placement: Disaggregated"
    if disaggregated:
        remedy = "resources.rolloutGpus: 1 or more, beside the trainer's GPUs"
    if disaggregated != bool(resources.rollout_gpus):
        message = f"placement is {resources.placement} and rolloutGpus is {resources.rollout_gpus}"
        yield Violation("spec.resources.rolloutGpus", Reason.ROLLOUT_GPUS_MISMATCH, message, remedy)


def rollout_engines_match_placement(given: RuleInput) -> Iterator[Violation]:
    """Reject a number of engines where it follows from processors instead."""
    resources = given.spec.resources
    path, remedy = "spec.resources.rolloutEngines", "remove it"
    if resources.rollout_engines == 1:
        return
    if resources.device is Device.GPU:
        message = "on GPUs the engines follow from rolloutGpus and tensorParallelSize"
    elif resources.placement is Placement.COLOCATED:
        message = "Colocated ranks on CPUs share one engine"
        remedy += ", or resources.placement: Disaggregated"
    else:
        return
    yield Violation(path, Reason.ROLLOUT_ENGINES_MISMATCH, message, remedy)


def tensor_parallel_divides_gpus(given: RuleInput) -> Iterator[Violation]:
    """Require an engine's GPUs to be in one pod."""
    resources, size = given.spec.resources, given.spec.rollout.tensor_parallel_size
    gpus, place = resources.gpus_per_node, "resources.gpusPerNode"
    if resources.device is Device.CPU:
        gpus, place = 1, "the one CPU engine"
    elif resources.placement is Placement.DISAGGREGATED:
        gpus, place = resources.rollout_gpus, "resources.rolloutGpus"
    if gpus and gpus % size:
        path = "spec.rollout.tensorParallelSize"
        message = f"{size} does not divide {place} ({gpus})"
        remedy = f"rollout.tensorParallelSize: {_largest_divisor(gpus, size)}, a divisor of {gpus}"
        yield Violation(path, Reason.TENSOR_PARALLEL_NOT_DIVISOR, message, remedy)


def tensor_parallel_divides_heads(given: RuleInput) -> Iterator[Violation]:
    """Require attention heads to divide evenly over an engine's GPUs."""
    heads, size = given.facts.heads, given.spec.rollout.tensor_parallel_size
    if heads % size:
        yield Violation(
            "spec.rollout.tensorParallelSize",
            Reason.HEADS_NOT_DIVISIBLE,
            f"{size} does not divide the model's {heads} attention heads",
            f"rollout.tensorParallelSize: {_largest_divisor(heads, size)}, a divisor of {heads}",
        )


def workers_fit_cpus(given: RuleInput) -> Iterator[Violation]:
    """Warn when data threads were capped at the CPUs; more would only compete for them."""
    asked, used = given.job.spec.data.num_workers, given.spec.data.num_workers
    by_user = "num_workers" in given.job.spec.data.model_fields_set
    if by_user and asked > used:
        message = f"{asked} workers are capped to {used} = min(CPUs of a pod, 16)"
        remedy = f"data.numWorkers: {used}, or a larger resources.cpu"
        yield warning("spec.data.numWorkers", Reason.WORKERS_EXCEED_CPUS, message, remedy)


def ray_version_is_the_same(given: RuleInput) -> Iterator[Violation]:
    """Require the Ray version that the job began with."""
    image, pinned = given.facts.ray_version, given.job.status.ray_version
    if image and pinned and image != pinned:
        message = f"the image has Ray {image}, this job began with {pinned}"
        remedy = f"an image with Ray {pinned}, or a new job"
        yield Violation("spec.image", Reason.RAY_VERSION_MISMATCH, message, remedy)


def async_needs_disaggregation(given: RuleInput) -> Iterator[Violation]:
    """Reject overlap on shared GPUs, which cannot generate while they train."""
    colocated = given.spec.resources.placement is Placement.COLOCATED
    if given.spec.training.off_policy_steps and colocated:
        path = "spec.training.offPolicySteps"
        message = "rollouts cannot overlap training on the same processors"
        remedy = "resources.placement: Disaggregated, or training.offPolicySteps: 0"
        yield Violation(path, Reason.ASYNC_NEEDS_DISAGGREGATION, message, remedy)


def rollout_optimisations_stay_on(given: RuleInput) -> Iterator[Violation]:
    """Warn when something is off that saves work on long RAG prompts."""
    rollout = given.spec.rollout
    switches = {
        "enableChunkedPrefill": rollout.enable_chunked_prefill,
        "enablePrefixCaching": rollout.enable_prefix_caching,
    }
    for name, is_on in switches.items():
        if not is_on:
            message = "off, which slows rollouts down"
            remedy = f"rollout.{name}: true"
            yield warning(f"spec.rollout.{name}", Reason.ROLLOUT_OPTIMISATION_OFF, message, remedy)


def _largest_divisor(number: int, limit: int) -> int:
    return max(each for each in range(1, limit + 1) if number % each == 0)
