"""One round: the inputs of `decide` and the status while it is being edited."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from pydantic.alias_generators import to_snake

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.status.attempts import AttemptRecord
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.status.restart_state import Group, RestartState
from raggrpo_api.trainer.config import TrainerConfig, schema_digest
from raggrpo_api.trainer.schemas import known_schemas, unknown_paths
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.images import pin_digest
from raggrpo_operator.core.spec.resolve import Resolved, trainer_config, trainer_image
from raggrpo_operator.core.state import observed_time
from raggrpo_operator.core.state.conditions import (
    ConditionChange,
    Reason,
    get_condition,
    phase_from,
    set_condition,
)
from raggrpo_operator.core.state.readiness import with_ready
from raggrpo_operator.core.state.size_limit import within_limit

from .actions import Action, PodPlan
from .observed import Observed

POLL_SECONDS = 5.0
"""Default seconds until the next round."""
RELEASE_SECONDS = 1.0
"""Seconds until the next check for resources that have been released but still exist."""

PODS_NOT_READY = "its pods are not ready"
"""Message about pods that are not ready and report no start problem."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The status to write, the actions to perform afterwards, and when to requeue."""

    status: JobStatus
    actions: tuple[Action, ...] = ()
    requeue_after: float | None = None
    """Seconds until the next round, or None to wait for a watch event."""


@dataclass(slots=True)
class Round:
    """Inputs of one call of `decide`, and the status while it is being edited."""

    job: RagGrpoJob
    observed: Observed
    now: datetime
    status: JobStatus
    resolved: Resolved
    actions: list[Action] = field(default_factory=list)

    @property
    def spec(self) -> JobSpec:
        """The resolved spec."""
        return self.resolved.spec

    @property
    def state(self) -> RestartState:
        """The restart state in the status; assignment updates the status."""
        return self.status.restart_state

    @state.setter
    def state(self, state: RestartState) -> None:
        self.status = replace(self.status, restart_state=state)

    @property
    def suspend_message(self) -> str:
        """Why `spec.suspend` is true."""
        interrupted_by = self.observed.interrupted_by
        return f"interrupted by {interrupted_by}" if interrupted_by else "spec.suspend is true"

    @property
    def record(self) -> AttemptRecord:
        """The newest attempt's record; assignment updates the status."""
        return self.status.attempts[0]

    @record.setter
    def record(self, record: AttemptRecord) -> None:
        self.status = replace(self.status, attempts=[record, *self.status.attempts[1:]])

    @property
    def image(self) -> str:
        """The trainer image; a job without `spec.image` keeps the image of its first attempt."""
        return trainer_image(self.spec, self.status.pinned, self.observed.default_image)

    @property
    def pod_image(self) -> str:
        """The image of the job's pods, specified by digest if the digest is pinned."""
        return pin_digest(self.image, self.status.pinned)

    def set_condition(
        self, kind: ConditionType, value: bool | None, reason: Reason, message: str = ""
    ) -> None:
        """Set a condition in the status."""
        self.status = set_condition(self.status, kind, value, reason, message, self.now)

    def set_conditions(self, changes: Iterable[ConditionChange]) -> None:
        """Set several conditions in the status."""
        for change in changes:
            self.set_condition(*change)

    def store(self, group: Group) -> None:
        """Replace one group of fields of the restart state."""
        self.state = self.state.with_group(group)

    def request(self, action: Action) -> None:
        """Request an action that must be performed only once.

        Each request increments a counter in the status. If the job has changed since it was read,
        the status write fails and the action is not performed.
        """
        launch = self.state.launch
        self.store(replace(launch, tries=launch.tries + 1))
        self.actions.append(action)

    def record_observation(self) -> None:
        """Record the time of this observation, unless the job is queued and its deadlines pause."""
        if not self.observed.is_queued:
            delay = self.observed.delay_seconds
            self.store(observed_time.record_observation(self.state.watch, self.now, delay))

    def elapsed(self, since: datetime | None) -> float:
        """Return the observed seconds since `since`, or 0 if `since` is None."""
        return observed_time.elapsed(since, self.state.watch, self.now)

    def seconds_in(self, kind: ConditionType) -> float:
        """Return the seconds since the condition's last transition, or 0 if it was never set."""
        since = get_condition(self.status, kind).last_transition_time
        return (self.now - since).total_seconds() if since is not None else 0.0

    def pod_plan(self) -> PodPlan:
        """Return the plan for pods that are started now."""
        sizing = size(self.spec, self.status.preflight.known_facts)
        return PodPlan(self.spec, self.pod_image, sizing)

    def attempt_config(
        self,
        retriever_addresses: Mapping[str, str] | None = None,
        agent_address: str = "",
    ) -> TrainerConfig:
        """Return the newest attempt's configuration, which depends on status and addresses only."""
        remedies = self.state.remedies
        return trainer_config(
            self.job,
            self.resolved,
            number=self.status.attempt,
            mitigations=remedies.mitigations,
            pinned=self.status.pinned,
            facts=self.status.preflight.known_facts,
            schema=self._schema(),
            skipped_steps=remedies.skipped_steps,
            rejected_checkpoints=remedies.rejected_checkpoints,
            retriever_addresses=retriever_addresses,
            agent_address=agent_address,
        )

    def upgrade_message(self) -> str:
        """Return a message if the pinned image does not support a field of the job, else ""."""
        digest = self._schema()
        remedy = "set spec.image to an image of this release"
        if not digest or digest == schema_digest():
            return ""
        if (fields := known_schemas().get(digest)) is None:
            return f"schema {digest} of image {self.image} is unknown to this operator: {remedy}"
        spec = self.job.manifest()["spec"]
        passed_on = {key: spec[key] for key in spec if to_snake(key) in TrainerConfig.model_fields}
        unknown = ", ".join(unknown_paths(passed_on, fields, "spec"))
        if not unknown:
            return ""
        return f"image {self.image} does not support {unknown}: remove it, or {remedy}"

    def _schema(self) -> str:
        """Return the schema digest that the image reported in preflight, or "" if unknown."""
        is_reported = self.image and self.image == self.status.pinned.image
        return self.status.preflight.facts.schema_digest if is_reported else ""

    def decision(self, requeue_after: float | None = POLL_SECONDS) -> Decision:
        """Return the decision with the phase derived from the conditions."""
        self.status = with_ready(self.status, self.now)
        status = replace(self.status, phase=phase_from(self.status))
        self.status = status if status == self.job.status else within_limit(status)
        return Decision(self.status, tuple(self.actions), requeue_after)
