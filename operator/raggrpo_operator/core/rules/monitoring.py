"""Rules about where metrics are sent."""

from collections.abc import Iterator

from raggrpo_api.spec.monitoring import LogLevel, MonitoringMode
from raggrpo_operator.core.spec.violation import Reason, Violation

from .rule_input import RuleInput, warning

ENOUGH = {"WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE"}
"""Any one of them will do: a key, a mode without a server, or a token in place of the key."""


def wandb_has_a_key(given: RuleInput) -> Iterator[Violation]:
    """Warn when W&B would refuse the run; training goes on without it."""
    given_names = {variable.name for variable in given.spec.env}
    if given.spec.monitoring.wandb.project and not given_names & ENOUGH:
        message = "spec.env has no WANDB_API_KEY, without which W&B takes no metrics"
        remedy = "spec.env: [{name: WANDB_API_KEY, secretKeyRef: {name, key}}]"
        yield warning("spec.monitoring.wandb.project", Reason.WANDB_WITHOUT_KEY, message, remedy)


def wandb_is_used(given: RuleInput) -> Iterator[Violation]:
    """Warn when there are no metrics for W&B to show."""
    monitoring = given.spec.monitoring
    if monitoring.wandb.project and monitoring.mode is MonitoringMode.OFF:
        message = "nothing is measured for W&B while spec.monitoring.mode is Off"
        remedy = "monitoring.mode: Light, or remove the project"
        yield warning("spec.monitoring.wandb.project", Reason.WANDB_UNUSED, message, remedy)


def debug_lines_are_written(given: RuleInput) -> Iterator[Violation]:
    """Warn of a switch for log lines below the level that is written."""
    monitoring = given.spec.monitoring
    if monitoring.log_level in (LogLevel.DEBUG, LogLevel.INFO):
        return
    switches = monitoring.debug.model_dump(by_alias=True)
    if asked := [name for name, is_on in switches.items() if is_on]:
        message = f"its lines have the level Info, and logLevel {monitoring.log_level} hides them"
        remedy = "monitoring.logLevel: Info"
        path = f"spec.monitoring.debug.{asked[0]}"
        yield warning(path, Reason.DEBUG_LINES_HIDDEN, message, remedy)
