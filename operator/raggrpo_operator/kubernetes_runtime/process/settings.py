"""`Settings` of the operator's process, read from the environment once. Decides nothing."""

import json
import os
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from raggrpo_api import names
from raggrpo_api.fields.kubernetes_names import NAMESPACE

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


def _namespaces(text: str) -> list[str]:
    """Return the names; kopf would take others for patterns, which it does not watch here."""
    found = _split(text)
    if not all(NAMESPACE.fullmatch(name) for name in found):
        raise ValueError("no namespace has such a name")
    return list(dict.fromkeys(found))


def _networks(text: str) -> list[str]:
    """Return networks as the API server writes them; a single address is one, too."""
    found = [ip_network(word, strict=False) for word in _split(text)]
    if not all(network.prefixlen for network in found):
        raise ValueError("everything is not a network of the API server")
    return [str(network) for network in found]


def _own_network(host: str) -> list[str]:
    """Return the network of an address; some clouds give the API server a name instead."""
    try:
        return [str(ip_network(ip_address(host)))]
    except ValueError:
        return []


Words = Annotated[tuple[str, ...], BeforeValidator(_split)]
Namespaces = Annotated[tuple[str, ...], BeforeValidator(_namespaces)]
Networks = Annotated[tuple[str, ...], BeforeValidator(_networks)]
OwnNetwork = Annotated[tuple[str, ...], BeforeValidator(_own_network)]
Rules = Annotated[tuple[dict[str, Any], ...], BeforeValidator(json.loads)]
SERVICE_HOST = "KUBERNETES_SERVICE_HOST"


class Settings(BaseModel):
    """How this operator runs; one attribute per variable `RAGGRPO_<NAME>`."""

    model_config = ConfigDict(frozen=True, alias_generator=str.upper)

    namespaces: Namespaces = Field(
        (), alias="WATCH_NAMESPACES", description="give names of namespaces, by commas"
    )
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
    poll_seconds: float = _number(1.0, 0.05, 60)
    """POLL_SECONDS: how often a running attempt's progress is read; see `Pace`."""
    status_seconds: float = _number(10.0, 0, 3600)
    """STATUS_SECONDS between two status writes that differ only in progress."""
    start_grace_seconds: float = _number(120.0, 0, 3600)
    """START_GRACE_SECONDS: how long a pod may fail to start before the failure is final."""
    workers: int = _number(24, 1, 1024)
    """WORKERS: jobs reconciled concurrently."""
    read_nodes: bool = Field(False, description="give true or false")
    """READ_NODES: whether nodes may be listed, whose labels tell the memory of their GPUs."""
    http_port: int = _number(8080, 0, 65_535)
    """HTTP_PORT of /healthz, /readyz and /metrics; 0: any free one."""
    dashboard_port: int = _number(names.DASHBOARD_PORT, 1, 65_535)
    """DASHBOARD_PORT of a Ray head."""
    progress_port: int = _number(names.PROGRESS_PORT, 1, 65_535)
    """PROGRESS_PORT of a Ray head."""
    metrics_namespaces: Words = ()
    """METRICS_NAMESPACES that may scrape the trainers, separated by commas."""
    restrict_egress: bool = Field(True, description="give true or false")
    """RESTRICT_EGRESS: whether jobs' pods reach only DNS, each other and what their job names."""
    api_server: Networks = Field((), description="give networks as 10.0.0.0/24, by commas")
    """API_SERVER: networks that jobs' pods never reach, separated by commas."""
    service_host: OwnNetwork = Field((), alias=SERVICE_HOST)
    """The API server's address, as Kubernetes itself tells every pod."""
    egress: Rules = Field((), description="give a JSON list of NetworkPolicyEgressRules")
    """EGRESS: further NetworkPolicyEgressRules of jobs' pods, a JSON list."""
    log_level: Annotated[LogLevel, _in_any_case(LogLevel)] = _choice("INFO", LogLevel)
    """LOG_LEVEL: DEBUG, INFO, WARNING or ERROR."""

    @property
    def api_server_networks(self) -> tuple[str, ...]:
        """All addresses of the API server that are known."""
        return tuple(dict.fromkeys((*self.api_server, *self.service_host)))


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings. Raises SettingsError naming every wrong variable."""
    fields = {str(field.alias): field for field in Settings.model_fields.values()}
    given = {name: environment.get(_variable(name), "").strip() for name in fields}
    try:
        return Settings.model_validate({name: text for name, text in given.items() if text})
    except ValidationError as error:
        wrong = [str(problem["loc"][0]) for problem in error.errors()]
    raise SettingsError(
        "\n".join(
            f"{_variable(name)}={given[name]!r} cannot be used: {fields[name].description}"
            for name in wrong
        )
    )


def _variable(name: str) -> str:
    return name if name == SERVICE_HOST else PREFIX + name
