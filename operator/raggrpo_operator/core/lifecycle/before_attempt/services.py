"""Managed retrievers and the container of an agent: start them and wait until they are ready. Pure.

Before an attempt, an agent whose spec has changed is replaced; during an attempt, only services
that do not run are started, and the conditions report those that are not ready.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_api.trainer.config import content_hash
from raggrpo_operator.core.lifecycle.actions import (
    ApplyServices,
    StartAgent,
    StartRetriever,
)
from raggrpo_operator.core.lifecycle.after_attempt import recovery
from raggrpo_operator.core.lifecycle.observed import ServiceObserved
from raggrpo_operator.core.lifecycle.round import Decision, Round
from raggrpo_operator.core.state.conditions import get_condition

AGENT = "agent"
"""Name of an agent's container in observations and messages."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """Services with a common condition."""

    condition: ConditionType
    not_ready: ConditionReason
    plural: str
    remedies: Mapping[ConditionReason, str] = field(default_factory=dict)
    """Remedies by the reason for which a pod does not start."""


_RETRIEVERS = _Kind(
    ConditionType.RETRIEVER_READY, ConditionReason.RETRIEVER_NOT_READY, "managed retrievers were"
)
_AGENT = _Kind(
    ConditionType.AGENT_SERVICE_READY,
    ConditionReason.AGENT_NOT_READY,
    "the container of the agent was",
    {
        ConditionReason.IMAGE_PULL_FAILED: "correct rollout.agent.container.image, or add a Secret "
        "to imagePullSecrets",
        ConditionReason.CONTAINER_START_FAILED: "correct command and env of "
        "rollout.agent.container, or create the missing Secret",
        ConditionReason.CRASH_LOOP_BACK_OFF: "read the log of the pod with kubectl logs --previous",
        ConditionReason.UNSCHEDULABLE: "lower cpu and memory of rollout.agent.container, or add "
        "nodes",
    },
)


def wait_for_services(this: Round) -> Decision | None:
    """Before an attempt, start the services and wait; return None once all are ready."""
    ensure_services(this, replaces=True)
    if not this.observed.retrievers and this.observed.agent is None:
        this.store(replace(this.state.launch, waiting_since=this.now))
    return _wait(this, agent_hash(this.spec))


def wait_for_services_at_submission(this: Round) -> Decision | None:
    """Wait for services that were lost while the cluster started; return None if all are ready."""
    return _wait(this)


def ready_since(this: Round) -> datetime | None:
    """Return when the last service became ready after the cluster was created, or None."""
    kinds = [get_condition(this.status, kind.condition) for kind, _, _ in _by_kind(this)]
    times = [each.last_transition_time for each in kinds]
    cluster_since = this.state.launch.cluster_since
    later = [each for each in times if each and cluster_since and each > cluster_since]
    return max(later, default=None)


def report_services(this: Round) -> None:
    """Set the conditions of the services during an attempt, which waits for them by itself."""
    for kind, expected, services in _by_kind(this):
        _report(this, kind, expected, services)


def ensure_services(this: Round, *, replaces: bool = False) -> None:
    """Start the services that are not running and, with `replaces`, an agent of another spec."""
    managed, agent = this.spec.retrieval.managed, this.spec.rollout.agent
    if not this.observed.has_services:
        this.actions.append(ApplyServices(agent))
    running = {r.name for r in this.observed.retrievers if not r.has_ended}
    if missing := [name for name in managed if name not in running]:
        plan = this.pod_plan()
        this.actions.extend(StartRetriever(plan, name, managed[name]) for name in missing)
    if agent is None or agent.container is None:
        return
    own, spec_hash = this.observed.agent, agent_hash(this.spec)
    if own is None or own.has_ended or (replaces and own.spec_hash != spec_hash):
        this.actions.append(StartAgent(this.pod_plan(), agent.container, spec_hash))


def agent_hash(spec: JobSpec) -> str:
    """Return the hash of what determines the pods of an agent's container."""
    agent = spec.rollout.agent
    container = agent.container if agent is not None else None
    blocks = [container, spec.scheduling] if container is not None else []
    values = [block.model_dump(mode="json") for block in blocks]
    return content_hash({"blocks": values, "secrets": list(spec.image_pull_secrets)})


def _by_kind(
    this: Round, spec_hash: str = ""
) -> Iterator[tuple[_Kind, Sequence[str], Collection[ServiceObserved]]]:
    """Yield each kind of services that the job has, their names, and what is observed.

    With `spec_hash`, an agent of another spec is not ready.
    """
    agent, own = this.spec.rollout.agent, this.observed.agent
    if this.spec.retrieval.managed:
        yield _RETRIEVERS, list(this.spec.retrieval.managed), this.observed.retrievers
    if agent is not None and agent.container is not None:
        if own is not None and spec_hash and own.spec_hash != spec_hash:
            own = ServiceObserved(own.name, own.address, problem="its changed spec is applied")
        yield _AGENT, [AGENT], [own] if own is not None else []


def _wait(this: Round, spec_hash: str = "") -> Decision | None:
    """Wait for the services; return None once all are ready."""
    for kind, expected, services in _by_kind(this, spec_hash):
        problems = _report(this, kind, expected, services)
        if not problems:
            continue
        if this.state.launch.waiting_since is None:
            this.store(replace(this.state.launch, waiting_since=this.now))
        for service in services:
            if service.cause is not None:
                return _fail(this, service.cause, problems)
        limit = this.spec.recovery.deadlines.provisioning_seconds
        if this.elapsed(this.state.launch.waiting_since) > limit:
            message = (
                f"{kind.plural} not ready within {limit} s: {problems}; "
                "to wait longer, increase recovery.deadlines.provisioningSeconds"
            )
            return _fail(this, Cause.START_FAILED, message)
        return this.decision(requeue_after=0.5)
    if not this.observed.has_services:
        return this.decision(requeue_after=0.5)
    if this.state.launch.waiting_since is not None:
        this.store(replace(this.state.launch, waiting_since=None))
    return None


def _fail(this: Round, cause: Cause, message: str) -> Decision:
    """Fail the job, and end the attempt if it is recorded already."""
    if this.status.attempts and this.record.cause is None:
        return recovery.settle(this, cause, message)
    return recovery.fail(this, cause, message)


def _report(
    this: Round, kind: _Kind, expected: Sequence[str], services: Collection[ServiceObserved]
) -> str:
    """Set the condition of a kind; return why services of it are not ready, or ""."""
    observed = {each.name: each for each in services}
    not_ready = [name for name in expected if name not in observed or not observed[name].is_ready]
    if not not_ready:
        names = ", ".join(_shown(observed[name]) for name in expected)
        this.set_condition(kind.condition, True, ConditionReason.READY, names)
        return ""
    known = [observed[name] for name in not_ready if name in observed]
    problems = [f"{each.name}: {_problem(kind, each)}" for each in known]
    problems += [f"{name}: is being created" for name in not_ready if name not in observed]
    reason = next((each.reason for each in known if each.reason is not None), kind.not_ready)
    this.set_condition(kind.condition, False, reason, "; ".join(problems))
    return "; ".join(problems)


def _problem(kind: _Kind, service: ServiceObserved) -> str:
    remedy = kind.remedies.get(service.reason) if service.reason is not None else None
    return f"{service.problem}; {remedy}" if remedy else service.problem


def _shown(service: ServiceObserved) -> str:
    return f"{service.name} (restarts: {service.restarts})" if service.restarts else service.name
