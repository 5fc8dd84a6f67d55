"""Numbers of ranks and engines, their CPUs and threads, and numbers of steps."""

from raggrpo_api.memory.arithmetic import num_ranks
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.resources import Device, Placement, ResourcesSpec
from raggrpo_api.spec.training import MAX_STEPS, LearningRateSchedule
from raggrpo_api.trainer.config import World

from .quantity import parse_quantity

CPUS_PER_GPU = 8
"""CPUs per GPU, including CPUs for data threads; 8 to 12 are common."""
SPARE_CPUS = 2
"""Logical CPUs in addition to those of ranks and engines, so that other Ray tasks can run."""
COLOCATED_RANK_SHARE = 0.6
COLOCATED_ENGINE_SHARE = 0.4
"""Shares of a GPU that Ray reserves: for a colocated rank, and for a colocated engine.

Ray fills a GPU before it uses the next one. Two ranks do not fit on one GPU, and next to a rank
there is room for one engine.
"""


def num_engines(spec: JobSpec) -> int:
    """Return the number of engines; colocated ranks on CPU share one engine."""
    resources = spec.resources
    disaggregated = resources.placement is Placement.DISAGGREGATED
    if resources.device is Device.CPU:
        return resources.rollout_engines if disaggregated else 1
    gpus = resources.rollout_gpus if disaggregated else num_ranks(resources)
    return max(1, gpus // spec.rollout.tensor_parallel_size)


def world(spec: JobSpec) -> World:
    """Return the process counts, and the resources that Ray reserves for each process."""
    resources = spec.resources
    ranks, engines = num_ranks(resources), num_engines(spec)
    if resources.device is Device.CPU:
        return World(
            num_ranks=ranks,
            num_engines=engines,
            threads_per_rank=threads_per_rank(resources),
            threads_per_engine=threads_per_engine(resources),
        )
    colocated = resources.placement is Placement.COLOCATED
    engine_share = COLOCATED_ENGINE_SHARE if colocated else 1.0
    return World(
        num_ranks=ranks,
        num_engines=engines,
        gpus_per_rank=COLOCATED_RANK_SHARE if colocated else 1.0,
        gpus_per_engine=engine_share * spec.rollout.tensor_parallel_size,
    )


def cpus_per_pod(resources: ResourcesSpec) -> float:
    """Return the CPUs of a trainer pod: as specified, else derived from its GPUs or ranks."""
    if resources.cpu:
        return parse_quantity(resources.cpu)
    if resources.device is Device.CPU:
        return float(resources.ranks + 1)
    return float(max(1, resources.gpus_per_node) * CPUS_PER_GPU)


def threads_per_rank(resources: ResourcesSpec) -> int:
    """Return the OpenMP threads of a CPU rank: its share of the pod's CPUs.

    Ranks and a colocated engine take turns, so the engine needs no separate CPUs.
    """
    return max(1, int(cpus_per_pod(resources)) // resources.ranks)


def cpus_per_rollout_pod(resources: ResourcesSpec, gpus: int) -> str:
    """Return the CPUs of a disaggregated engine: as specified, else derived from its GPUs."""
    return resources.cpu or str(gpus * CPUS_PER_GPU or 1)


def threads_per_engine(resources: ResourcesSpec) -> int:
    """Return the OpenMP threads of a CPU engine: those of all ranks if colocated, else all CPUs."""
    if resources.placement is Placement.DISAGGREGATED:
        return max(1, int(parse_quantity(cpus_per_rollout_pod(resources, gpus=0))))
    return resources.ranks * threads_per_rank(resources)


def total_steps(spec: JobSpec, rows: int) -> int:
    """Return the target step: as specified, else from epochs once `rows` is known.

    The result is at most MAX_STEPS; a rule rejects jobs whose epochs amount to more steps.
    """
    training = spec.training
    if training.total_steps or not (training.epochs and rows):
        return training.total_steps
    return min(MAX_STEPS, steps_of_epochs(training.epochs, rows, spec.data.train_batch_size))


def steps_of_epochs(epochs: int, rows: int, batch_size: int) -> int:
    """Return the steps of `epochs` passes over full batches, at least one step per pass.

    Counts as verl does: rows that do not fill a batch are not part of a pass.
    """
    return epochs * max(1, rows // batch_size)


def decay_steps(spec: JobSpec, rows: int) -> int:
    """Return the last step of the learning rate decay: as specified, else the target step.

    The result is 0 without decay, or while the target step is unknown.
    """
    training = spec.training
    if training.decay_steps or training.learning_rate_schedule is LearningRateSchedule.CONSTANT:
        return training.decay_steps
    return total_steps(spec, rows)
