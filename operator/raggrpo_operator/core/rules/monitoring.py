"""Rules on the destinations of metrics."""

from collections.abc import Iterator

from raggrpo_api.spec.monitoring import LogLevel, MonitoringMode
from raggrpo_operator.core.spec.violation import Reason, Violation

from .base.rule_input import RuleInput, warning

CREDENTIALS = {"WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE"}
"""Variables for an API key, an offline mode or a token file; W&B needs one of them."""


def wandb_has_a_key(inputs: RuleInput) -> Iterator[Violation]:
    """Warn if W&B would reject the run; training then continues without W&B."""
    env_names = {variable.name for variable in inputs.spec.env}
    if inputs.spec.monitoring.wandb.project and not env_names & CREDENTIALS:
        message = "spec.env has no WANDB_API_KEY, without which W&B rejects metrics"
        remedy = "add {name: WANDB_API_KEY, secretKeyRef: {name, key}} to spec.env"
        yield warning("spec.monitoring.wandb.project", Reason.WANDB_WITHOUT_KEY, message, remedy)


def wandb_is_used(inputs: RuleInput) -> Iterator[Violation]:
    """Warn if a W&B project is specified but monitoring.mode records no metrics."""
    monitoring = inputs.spec.monitoring
    if monitoring.wandb.project and monitoring.mode is MonitoringMode.OFF:
        message = "monitoring.mode Off records no metrics for W&B"
        remedy = "set monitoring.mode: Light, or remove the project"
        yield warning("spec.monitoring.wandb.project", Reason.WANDB_UNUSED, message, remedy)


def debug_lines_are_written(inputs: RuleInput) -> Iterator[Violation]:
    """Warn if debug lines are enabled but the log level hides them."""
    monitoring = inputs.spec.monitoring
    if monitoring.log_level in (LogLevel.DEBUG, LogLevel.INFO):
        return
    switches = monitoring.debug.model_dump(by_alias=True)
    if enabled := [name for name, is_on in switches.items() if is_on]:
        message = f"the debug lines have level Info, which logLevel {monitoring.log_level} hides"
        remedy = "set monitoring.logLevel: Info"
        path = f"spec.monitoring.debug.{enabled[0]}"
        yield warning(path, Reason.DEBUG_LINES_HIDDEN, message, remedy)
