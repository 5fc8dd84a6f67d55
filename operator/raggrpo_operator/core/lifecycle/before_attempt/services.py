"""Managed retrievers and the container of an agent: start them and wait until they are ready. Pure.

Before an attempt, an agent whose spec has changed is replaced; during an attempt, only services
that do not run are started.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_api.trainer.config import content_hash
from raggrpo_operator.core.lifecycle.actions import StartAgent, StartRetriever
from raggrpo_operator.core.lifecycle.after_attempt import recovery
from raggrpo_operator.core.lifecycle.observed import ServiceObserved
from raggrpo_operator.core.lifecycle.round import Decision, Round
from raggrpo_operator.core.state.conditions import is_true

AGENT = "agent"
"""Name of an agent's container in observations and messages."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """Services with a common condition."""

    condition: ConditionType
    not_ready: ConditionReason
    plural: str


_RETRIEVERS = _Kind(
    ConditionType.RETRIEVER_READY, ConditionReason.RETRIEVER_NOT_READY, "managed retrievers were"
)
_AGENT = _Kind(
    ConditionType.AGENT_SERVICE_READY,
    ConditionReason.AGENT_NOT_READY,
    "the container of the agent was",
)


def wait_for_services(this: Round) -> Decision | None:
    """Start the services and wait for them; return None once all are ready."""
    ensure_services(this, replaces=True)
    observed, managed = this.observed, list(this.spec.retrieval.managed)
    agents = [AGENT] if _has_container(this.spec) else []
    own = [observed.agent] if observed.agent is not None else []
    if not managed and not agents:
        return None
    if not observed.retrievers and not own:
        this.store(replace(this.state.launch, waiting_since=this.now))
    retrievers = _wait(this, _RETRIEVERS, managed, observed.retrievers)
    return retrievers or _wait(this, _AGENT, agents, own)


def ensure_services(this: Round, *, replaces: bool = False) -> None:
    """Start the services that are not running and, with `replaces`, an agent of another spec."""
    managed, agent = this.spec.retrieval.managed, this.spec.rollout.agent
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


def _has_container(spec: JobSpec) -> bool:
    return spec.rollout.agent is not None and spec.rollout.agent.container is not None


def _wait(
    this: Round, kind: _Kind, expected: Sequence[str], services: Collection[ServiceObserved]
) -> Decision | None:
    """Wait for the services of a kind; return None once all expected ones are ready."""
    if not expected:
        return None
    observed = {each.name: each for each in services}
    not_ready = [name for name in expected if name not in observed or not observed[name].is_ready]
    if not not_ready:
        this.set_condition(kind.condition, True, ConditionReason.READY, ", ".join(expected))
        return None
    if is_true(this.status, kind.condition):  # they were ready: the wait starts now
        this.store(replace(this.state.launch, waiting_since=this.now))
    problems = "; ".join(f"{n}: {observed[n].problem}" for n in not_ready if n in observed)
    reasons = [observed[n].reason for n in not_ready if n in observed]
    reason = next(iter(reasons), None) or kind.not_ready
    this.set_condition(kind.condition, False, reason, problems)
    for service in services:
        if service.cause is not None:
            return recovery.fail(this, service.cause, f"{service.name}: {service.problem}")
    limit = this.spec.recovery.deadlines.provisioning_seconds
    if this.elapsed(this.state.launch.waiting_since) > limit:
        message = (
            f"{kind.plural} not ready within {limit} s: {problems}; "
            "to wait longer, increase recovery.deadlines.provisioningSeconds"
        )
        return recovery.fail(this, Cause.START_FAILED, message)
    return this.decision(requeue_after=0.5)
