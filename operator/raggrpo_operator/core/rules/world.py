"""Rules on devices, processes and placement."""

from collections.abc import Iterator

from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.resources import Device, Placement, ResourcesSpec
from raggrpo_operator.core.spec.violation import Reason, Violation

from .base.cel import DISAGGREGATED, ON_CPU, is_one_of
from .base.rule_input import RuleInput, warning
from .base.spec_rule import spec_rule

_BLOCK_ON_CPU = is_one_of("device", "CPU")
_BLOCK_DISAGGREGATED = is_one_of("placement", "Disaggregated")


def _is_on_gpus(resources: ResourcesSpec, placement: Placement) -> bool:
    """Return whether the job runs on GPUs with this placement."""
    return resources.device is Device.GPU and resources.placement is placement


@spec_rule(
    "spec.resources",
    field="gpusPerNode",
    reason=Reason.NO_GPUS,
    message="device is GPU, but gpusPerNode is 0",
    remedy="set resources.gpusPerNode: 1 or more, or resources.device: CPU",
    cel=f"!has(self.gpusPerNode) || self.gpusPerNode > 0 || {_BLOCK_ON_CPU}",
)
def gpus_are_requested(resources: ResourcesSpec) -> bool:
    """Require at least one GPU per node for a job on GPUs."""
    return resources.device is Device.CPU or resources.gpus_per_node > 0


@spec_rule(
    "spec.resources",
    field="rolloutGpus",
    reason=Reason.ROLLOUT_GPUS_MISMATCH,
    message="rolloutGpus is specified, but placement is Colocated",
    remedy="set resources.rolloutGpus: 0, or resources.placement: Disaggregated",
    cel=f"{_BLOCK_ON_CPU} || !has(self.rolloutGpus) || self.rolloutGpus == 0 || "
    f"{_BLOCK_DISAGGREGATED}",
)
def colocated_has_no_rollout_gpus(resources: ResourcesSpec) -> bool:
    """Reject separate rollout GPUs if trainer and engines share GPUs."""
    return not _is_on_gpus(resources, Placement.COLOCATED) or resources.rollout_gpus == 0


@spec_rule(
    "spec.resources",
    field="rolloutGpus",
    reason=Reason.ROLLOUT_GPUS_MISMATCH,
    message="placement is Disaggregated, but rolloutGpus is 0",
    remedy="set resources.rolloutGpus: 1 or more, in addition to the trainer's GPUs",
    cel=f"{_BLOCK_ON_CPU} || !{_BLOCK_DISAGGREGATED} || "
    "(has(self.rolloutGpus) && self.rolloutGpus > 0)",
)
def disaggregated_has_rollout_gpus(resources: ResourcesSpec) -> bool:
    """Require GPUs for disaggregated engines."""
    return not _is_on_gpus(resources, Placement.DISAGGREGATED) or resources.rollout_gpus > 0


def rollout_engines_match_placement(inputs: RuleInput) -> Iterator[Violation]:
    """Reject a specified number of engines where the operator derives that number."""
    resources = inputs.spec.resources
    path, remedy = "spec.resources.rolloutEngines", "remove rolloutEngines"
    if resources.rollout_engines == 1:
        return
    if resources.device is Device.GPU:
        message = "rolloutEngines is specified, but on GPUs the operator derives it"
    elif resources.placement is Placement.COLOCATED:
        message = "rolloutEngines is not 1, but colocated ranks on CPUs share one engine"
        remedy += ", or set resources.placement: Disaggregated"
    else:
        return
    yield Violation(path, Reason.ROLLOUT_ENGINES_MISMATCH, message, remedy)


@spec_rule(
    "spec",
    field="rollout.tensorParallelSize",
    reason=Reason.TENSOR_PARALLEL_UNSUPPORTED,
    message="tensorParallelSize is not 1, but a colocated engine shares one GPU with a rank",
    values=lambda spec: spec.rollout.tensor_parallel_size,
    remedy="set rollout.tensorParallelSize: 1, or resources.placement: Disaggregated",
    if_specified=("rollout.tensorParallelSize",),
    cel=f"{ON_CPU} || {DISAGGREGATED} || self.rollout.tensorParallelSize == 1",
)
def colocated_engine_has_one_gpu(spec: JobSpec) -> bool:
    """Reject colocated tensor parallelism: Ray gives an actor with a share of a GPU only one."""
    is_colocated = _is_on_gpus(spec.resources, Placement.COLOCATED)
    return not is_colocated or spec.rollout.tensor_parallel_size == 1


@spec_rule(
    "spec",
    field="rollout.tensorParallelSize",
    reason=Reason.TENSOR_PARALLEL_NOT_DIVISOR,
    message="tensorParallelSize does not divide resources.rolloutGpus",
    values=lambda spec: f"{spec.rollout.tensor_parallel_size}, {spec.resources.rollout_gpus}",
    remedy="set rollout.tensorParallelSize: 1, or to another divisor",
    if_specified=("rollout.tensorParallelSize", "resources.rolloutGpus"),
    cel=f"{ON_CPU} || !{DISAGGREGATED} || "
    "self.resources.rolloutGpus % self.rollout.tensorParallelSize == 0",
)
def tensor_parallel_divides_rollout_gpus(spec: JobSpec) -> bool:
    """Require the rollout GPUs to divide evenly over the engines."""
    is_disaggregated = _is_on_gpus(spec.resources, Placement.DISAGGREGATED)
    return (
        not is_disaggregated or spec.resources.rollout_gpus % spec.rollout.tensor_parallel_size == 0
    )


@spec_rule(
    "spec",
    field="rollout.tensorParallelSize",
    reason=Reason.TENSOR_PARALLEL_UNSUPPORTED,
    message="tensorParallelSize is not 1, but resources.device is CPU",
    values=lambda spec: spec.rollout.tensor_parallel_size,
    remedy="set rollout.tensorParallelSize: 1",
    if_specified=("rollout.tensorParallelSize",),
    cel=f"!{ON_CPU} || self.rollout.tensorParallelSize == 1",
)
def cpu_engine_is_one_process(spec: JobSpec) -> bool:
    """Reject tensor parallelism on CPUs."""
    return spec.resources.device is Device.GPU or spec.rollout.tensor_parallel_size == 1


def tensor_parallel_divides_heads(inputs: RuleInput) -> Iterator[Violation]:
    """Require attention heads to divide evenly over an engine's GPUs."""
    heads, size = inputs.facts.heads, inputs.spec.rollout.tensor_parallel_size
    if heads % size:
        divisor = max(each for each in range(1, size + 1) if heads % each == 0)
        yield Violation(
            "spec.rollout.tensorParallelSize",
            Reason.HEADS_NOT_DIVISIBLE,
            f"{size} does not divide the model's {heads} attention heads",
            f"set rollout.tensorParallelSize: {divisor}, a divisor of {heads}",
        )


def workers_fit_cpus(inputs: RuleInput) -> Iterator[Violation]:
    """Warn if data.numWorkers exceeds the number of data threads that will run."""
    data = inputs.job.spec.data
    requested, used = data.num_workers, inputs.spec.data.num_workers
    if "num_workers" in data.model_fields_set and requested > used:
        message = f"only {used} of {requested} workers are used: one per CPU of the pod, at most 16"
        remedy = f"set data.numWorkers: {used}, or increase resources.cpu"
        yield warning("spec.data.numWorkers", Reason.WORKERS_EXCEED_CPUS, message, remedy)


def ray_version_is_unchanged(inputs: RuleInput) -> Iterator[Violation]:
    """Require the Ray version with which the job started."""
    image, pinned = inputs.facts.ray_version, inputs.job.status.ray_version
    if image and pinned and image != pinned:
        message = f"the image has Ray {image}, but the job started with Ray {pinned}"
        remedy = f"specify an image with Ray {pinned}, or create a new job"
        yield Violation("spec.image", Reason.RAY_VERSION_MISMATCH, message, remedy)


@spec_rule(
    "spec",
    field="training.offPolicySteps",
    reason=Reason.ASYNC_NEEDS_DISAGGREGATION,
    message="rollouts cannot overlap training on the same devices",
    remedy="set resources.placement: Disaggregated, or training.offPolicySteps: 0",
    if_specified=("training.offPolicySteps",),
    cel=f"self.training.offPolicySteps == 0 || {DISAGGREGATED}",
)
def async_needs_disaggregation(spec: JobSpec) -> bool:
    """Reject off-policy steps on shared devices, which cannot train and generate concurrently."""
    is_disaggregated = spec.resources.placement is Placement.DISAGGREGATED
    return is_disaggregated or spec.training.off_policy_steps == 0


def rollout_optimizations_are_enabled(inputs: RuleInput) -> Iterator[Violation]:
    """Warn if an optimization for long RAG prompts is disabled."""
    rollout = inputs.spec.rollout
    switches = {
        "enableChunkedPrefill": rollout.enable_chunked_prefill,
        "enablePrefixCaching": rollout.enable_prefix_caching,
    }
    for name, is_on in switches.items():
        if not is_on:
            message = f"{name} is disabled, which slows rollouts down"
            remedy = f"set rollout.{name}: true"
            yield warning(f"spec.rollout.{name}", Reason.ROLLOUT_OPTIMIZATION_OFF, message, remedy)
