"""`Settings` of the operator process, read from the environment."""

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
    """Environment variables are invalid; the message has one line per variable."""


def _number(default: float, low: float, high: float) -> Any:
    return Field(default, ge=low, le=high, description=f"must be a number from {low:g} to {high:g}")


def _choice(default: str, choices: Any) -> Any:
    return Field(default, description=f"must be one of {', '.join(get_args(choices))}")


def _ignore_case(choices: Any) -> BeforeValidator:
    by_lower = {choice.lower(): choice for choice in get_args(choices)}
    return BeforeValidator(lambda text: by_lower.get(text.lower(), text))


def _split(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _namespaces(text: str) -> list[str]:
    """Return the namespaces. Raises ValueError if one is not a valid name.

    kopf treats other strings as patterns, which would need permissions on the whole cluster.
    """
    names_given = _split(text)
    if not all(NAMESPACE.fullmatch(name) for name in names_given):
        raise ValueError("not a namespace name")
    return list(dict.fromkeys(names_given))


def _networks(text: str) -> list[str]:
    """Return the networks in canonical form; a single address is a network of one address."""
    networks = [ip_network(word, strict=False) for word in _split(text)]
    if not all(network.prefixlen for network in networks):
        raise ValueError("a network that contains all addresses")
    return [str(network) for network in networks]


def _address_network(host: str) -> list[str]:
    """Return the network of one address, or [] if `host` is a name, which some clouds set."""
    try:
        return [str(ip_network(ip_address(host)))]
    except ValueError:
        return []


Words = Annotated[tuple[str, ...], BeforeValidator(_split)]
Namespaces = Annotated[tuple[str, ...], BeforeValidator(_namespaces)]
Networks = Annotated[tuple[str, ...], BeforeValidator(_networks)]
AddressNetwork = Annotated[tuple[str, ...], BeforeValidator(_address_network)]
Rules = Annotated[tuple[dict[str, Any], ...], BeforeValidator(json.loads)]
SERVICE_HOST = "KUBERNETES_SERVICE_HOST"


class Settings(BaseModel):
    """Settings of the operator, read from variables `RAGGRPO_<NAME>`."""

    model_config = ConfigDict(frozen=True, alias_generator=str.upper)

    namespaces: Namespaces = Field(
        (), alias="WATCH_NAMESPACES", description="must be comma-separated namespaces"
    )
    """WATCH_NAMESPACES: namespaces to watch, separated by commas; empty for all namespaces."""
    own_namespace: str = Field("default", alias="NAMESPACE")
    """NAMESPACE: namespace of the operator's pod and Lease."""
    identity: str = Field("raggrpo-operator", alias="POD_NAME")
    """POD_NAME: identity of the replica in the Lease and in Events."""
    trainer_image: str = ""
    """TRAINER_IMAGE: image of jobs without `spec.image`."""
    trainer_image_pull_policy: Annotated[PullPolicy, _ignore_case(PullPolicy)] = _choice(
        "IfNotPresent", PullPolicy
    )
    """TRAINER_IMAGE_PULL_POLICY: image pull policy of the pods of jobs."""
    key_folder: Path = Path("/etc/raggrpo/key")
    """KEY_FOLDER: mount path of the Secret with the installation key."""
    key_secret: str = "raggrpo-operator-key"
    """KEY_SECRET: name of that Secret, for messages."""
    leader_election: bool = Field(False, description="must be true or false")
    """LEADER_ELECTION: required with more than one replica."""
    lease_name: str = "raggrpo-operator"
    """LEASE_NAME: name of the Lease for leader election."""
    resync_seconds: float = _number(300.0, 1, 86_400)
    """RESYNC_SECONDS: interval at which all jobs are reconciled without an event."""
    poll_seconds: float = _number(1.0, 0.05, 60)
    """POLL_SECONDS: minimum interval between reads of a running attempt's progress; see `Pace`."""
    status_seconds: float = _number(10.0, 0, 3600)
    """STATUS_SECONDS: minimum interval between progress-only status writes."""
    start_grace_seconds: float = _number(120.0, 0, 3600)
    """START_GRACE_SECONDS: time after which the start problem of a pod is final."""
    workers: int = _number(24, 1, 1024)
    """WORKERS: maximum number of jobs that are reconciled concurrently; see `WorkQueue`."""
    read_nodes: bool = Field(False, description="must be true or false")
    """READ_NODES: whether to read GPU memory from node labels; requires `list` on nodes."""
    http_port: int = _number(8080, 0, 65_535)
    """HTTP_PORT: port of /healthz, /readyz and /metrics; 0 for any free port."""
    dashboard_port: int = _number(names.DASHBOARD_PORT, 1, 65_535)
    """DASHBOARD_PORT: dashboard port of Ray heads."""
    progress_port: int = _number(names.PROGRESS_PORT, 1, 65_535)
    """PROGRESS_PORT: port of the progress server on Ray heads."""
    metrics_namespaces: Words = ()
    """METRICS_NAMESPACES: namespaces that may scrape the trainers, separated by commas."""
    restrict_egress: bool = Field(True, description="must be true or false")
    """RESTRICT_EGRESS: whether a job's pods reach only DNS, each other and hosts in its spec."""
    api_server: Networks = Field((), description="must be comma-separated CIDRs")
    """API_SERVER: networks that pods of jobs may never reach, separated by commas."""
    service_host: AddressNetwork = Field((), alias=SERVICE_HOST)
    """KUBERNETES_SERVICE_HOST: address of the API server, set by Kubernetes in every pod."""
    egress: Rules = Field((), description="must be a JSON list of NetworkPolicyEgressRules")
    """EGRESS: additional NetworkPolicyEgressRules for the pods of jobs, as a JSON list."""
    log_level: Annotated[LogLevel, _ignore_case(LogLevel)] = _choice("INFO", LogLevel)
    """LOG_LEVEL: minimum level of log records (DEBUG, INFO, WARNING or ERROR)."""

    @property
    def api_server_networks(self) -> tuple[str, ...]:
        """All known networks of the API server."""
        return tuple(dict.fromkeys((*self.api_server, *self.service_host)))


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings. Raises SettingsError if variables are invalid."""
    fields = {str(field.alias): field for field in Settings.model_fields.values()}
    values = {name: environment.get(_variable(name), "").strip() for name in fields}
    try:
        return Settings.model_validate({name: text for name, text in values.items() if text})
    except ValidationError as error:
        invalid = [str(problem["loc"][0]) for problem in error.errors()]
    raise SettingsError(
        "\n".join(
            f"{_variable(name)}={values[name]!r} is invalid: it {fields[name].description}"
            for name in invalid
        )
    )


def _variable(name: str) -> str:
    return name if name == SERVICE_HOST else PREFIX + name
