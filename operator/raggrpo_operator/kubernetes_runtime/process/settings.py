"""`Settings` of the operator's process, read from the environment once. Holds no decision."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from raggrpo_api import names

PREFIX = "RAGGRPO_"
Value = TypeVar("Value")


class SettingsError(Exception):
    """Variables that cannot be used, all of them, each with its remedy."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How this operator runs; one attribute per variable `RAGGRPO_<NAME>`."""

    namespaces: tuple[str, ...] = ()
    """WATCH_NAMESPACES, separated by commas; empty: the whole cluster."""
    own_namespace: str = "default"
    """NAMESPACE of the operator's pod; the Lease lies there."""
    identity: str = "raggrpo-operator"
    """POD_NAME; tells replicas apart in the Lease and in Events."""
    trainer_image: str = ""
    """TRAINER_IMAGE for jobs without `spec.image`."""
    trainer_image_pull_policy: str = "IfNotPresent"
    """TRAINER_IMAGE_PULL_POLICY."""
    key_folder: Path = Path("/etc/raggrpo/key")
    """KEY_FOLDER: where the Secret with the installation key is mounted."""
    leader_election: bool = False
    """LEADER_ELECTION: needed with more than one replica."""
    lease_name: str = "raggrpo-operator"
    """LEASE_NAME."""
    resync_seconds: float = 300.0
    """RESYNC_SECONDS: how often every job is looked at without an event."""
    poll_seconds: float = 2.0
    """POLL_SECONDS: how often a running attempt is asked for its progress; see `Pace`."""
    status_seconds: float = 10.0
    """STATUS_SECONDS between two status writes that differ in progress only."""
    start_grace_seconds: float = 120.0
    """START_GRACE_SECONDS: how long a pod may fail to start before that counts as final."""
    workers: int = 32
    """WORKERS: jobs that are reconciled at once."""
    http_port: int = 8080
    """HTTP_PORT of /healthz, /readyz and /metrics; 0: any free one."""
    dashboard_port: int = names.DASHBOARD_PORT
    """DASHBOARD_PORT of a Ray head."""
    progress_port: int = names.PROGRESS_PORT
    """PROGRESS_PORT of a Ray head."""
    metrics_namespaces: tuple[str, ...] = ()
    """METRICS_NAMESPACES that may scrape the trainers, separated by commas."""
    log_level: str = "INFO"
    """LOG_LEVEL: DEBUG, INFO, WARNING or ERROR."""


LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
PULL_POLICIES = ("Always", "IfNotPresent", "Never")


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings; raises SettingsError that names every wrong variable."""
    found, default = _Reader(environment), Settings()
    settings = Settings(
        namespaces=found.words("WATCH_NAMESPACES"),
        own_namespace=found.text("NAMESPACE", default.own_namespace),
        identity=found.text("POD_NAME", default.identity),
        trainer_image=found.text("TRAINER_IMAGE", default.trainer_image),
        trainer_image_pull_policy=found.choice(
            "TRAINER_IMAGE_PULL_POLICY", default.trainer_image_pull_policy, PULL_POLICIES
        ),
        key_folder=Path(found.text("KEY_FOLDER", str(default.key_folder))),
        leader_election=found.switch("LEADER_ELECTION", default.leader_election),
        lease_name=found.text("LEASE_NAME", default.lease_name),
        resync_seconds=found.number("RESYNC_SECONDS", default.resync_seconds, 1, 86_400),
        poll_seconds=found.number("POLL_SECONDS", default.poll_seconds, 0.05, 60),
        status_seconds=found.number("STATUS_SECONDS", default.status_seconds, 0, 3600),
        start_grace_seconds=found.number(
            "START_GRACE_SECONDS", default.start_grace_seconds, 0, 3600
        ),
        workers=int(found.number("WORKERS", default.workers, 1, 1024)),
        http_port=int(found.number("HTTP_PORT", default.http_port, 0, 65_535)),
        dashboard_port=int(found.number("DASHBOARD_PORT", default.dashboard_port, 1, 65_535)),
        progress_port=int(found.number("PROGRESS_PORT", default.progress_port, 1, 65_535)),
        metrics_namespaces=found.words("METRICS_NAMESPACES"),
        log_level=found.choice("LOG_LEVEL", default.log_level, LOG_LEVELS),
    )
    if found.problems:
        raise SettingsError("\n".join(found.problems))
    return settings


class _Reader:
    """Reads variables and collects what is wrong with them."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.problems: list[str] = []

    def text(self, name: str, default: str) -> str:
        return self._environment.get(PREFIX + name, "").strip() or default

    def words(self, name: str) -> tuple[str, ...]:
        return tuple(word.strip() for word in self.text(name, "").split(",") if word.strip())

    def choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        by_lower = {choice.lower(): choice for choice in choices}
        wanted = f"choose one of {', '.join(choices)}"
        return self._parsed(name, default, lambda text: by_lower[text.lower()], wanted)

    def number(self, name: str, default: float, low: float, high: float) -> float:
        def parse(text: str) -> float:
            value = float(text)
            if not low <= value <= high:
                raise ValueError(text)
            return value

        return self._parsed(name, default, parse, f"give a number from {low:g} to {high:g}")

    def switch(self, name: str, default: bool) -> bool:
        values = {"true": True, "1": True, "false": False, "0": False}
        return self._parsed(name, default, lambda text: values[text.lower()], "give true or false")

    def _parsed(
        self, name: str, default: Value, parse: Callable[[str], Value], wanted: str
    ) -> Value:
        text = self.text(name, "")
        if not text:
            return default
        try:
            return parse(text)
        except (KeyError, ValueError):
            self.problems.append(f"{PREFIX}{name}={text!r} cannot be used: {wanted}")
            return default
