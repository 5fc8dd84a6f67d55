"""`Settings` of the operator's process, read from the environment once. Decides nothing."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from raggrpo_api import names

PREFIX = "RAGGRPO_"
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]
PullPolicy = Literal["Always", "IfNotPresent", "Never"]


class SettingsError(Exception):
    """All unusable variables, each with its remedy."""


def _number(default: float, low: float, high: float) -> Any:
    return Field(default, ge=low, le=high, description=f"give a number from {low:g} to {high:g}")


def _choice(default: str, choices: Any) -> Any:
    return Field(default, description=f"choose one of {', '.join(get_args(choices))}")


def _in_any_case(choices: Any) -> BeforeValidator:
    by_lower = {choice.lower(): choice for choice in get_args(choices)}
    return BeforeValidator(lambda text: by_lower.get(text.lower(), text))


def _split(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


Words = Annotated[tuple[str, ...], BeforeValidator(_split)]


class Settings(BaseModel):
    """How this operator runs; one attribute per variable `RAGGRPO_<NAME>`."""

    model_config = ConfigDict(frozen=True, alias_generator=str.upper)

    namespaces: Words = Field((), alias="WATCH_NAMESPACES")
    """WATCH_NAMESPACES, separated by commas; empty: the whole cluster."""
    own_namespace: str = Field("default", alias="NAMESPACE")
    """NAMESPACE of the operator's pod and of the Lease."""
    identity: str = Field("raggrpo-operator", alias="POD_NAME")
    """POD_NAME: identifies the replica in the Lease and in Events."""
    trainer_image: str = ""
    """TRAINER_IMAGE for jobs without `spec.image`."""
    trainer_image_pull_policy: Annotated[PullPolicy, _in_any_case(PullPolicy)] = _choice(
        "IfNotPresent", PullPolicy
    )
    """TRAINER_IMAGE_PULL_POLICY."""
    key_folder: Path = Path("/etc/raggrpo/key")
    """KEY_FOLDER: where the Secret with the installation key is mounted."""
    leader_election: bool = Field(False, description="give true or false")
    """LEADER_ELECTION: needed with more than one replica."""
    lease_name: str = "raggrpo-operator"
    """LEASE_NAME."""
    resync_seconds: float = _number(300.0, 1, 86_400)
    """RESYNC_SECONDS: how often every job is reconciled without an event."""
    poll_seconds: float = _number(2.0, 0.05, 60)
    """POLL_SECONDS: how often a running attempt's progress is read; see `Pace`."""
    status_seconds: float = _number(10.0, 0, 3600)
    """STATUS_SECONDS between two status writes that differ only in progress."""
    start_grace_seconds: float = _number(120.0, 0, 3600)
    """START_GRACE_SECONDS: how long a pod may fail to start before the failure is final."""
    workers: int = _number(64, 1, 1024)
    """WORKERS: jobs reconciled concurrently."""
    http_port: int = _number(8080, 0, 65_535)
    """HTTP_PORT of /healthz, /readyz and /metrics; 0: any free one."""
    dashboard_port: int = _number(names.DASHBOARD_PORT, 1, 65_535)
    """DASHBOARD_PORT of a Ray head."""
    progress_port: int = _number(names.PROGRESS_PORT, 1, 65_535)
    """PROGRESS_PORT of a Ray head."""
    metrics_namespaces: Words = ()
    """METRICS_NAMESPACES that may scrape the trainers, separated by commas."""
    log_level: Annotated[LogLevel, _in_any_case(LogLevel)] = _choice("INFO", LogLevel)
    """LOG_LEVEL: DEBUG, INFO, WARNING or ERROR."""


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings. Raises SettingsError naming every wrong variable."""
    fields = {str(field.alias): field for field in Settings.model_fields.values()}
    given = {name: environment.get(PREFIX + name, "").strip() for name in fields}
    try:
        return Settings.model_validate({name: text for name, text in given.items() if text})
    except ValidationError as error:
        wrong = [str(problem["loc"][0]) for problem in error.errors()]
    raise SettingsError(
        "\n".join(
            f"{PREFIX}{name}={given[name]!r} cannot be used: {fields[name].description}"
            for name in wrong
        )
    )
