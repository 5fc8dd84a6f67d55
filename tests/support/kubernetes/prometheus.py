"""A Prometheus server with the configuration that the Prometheus operator generates for the chart.

Kubernetes discovery is replaced by static targets with the labels that discovery would report.
"""

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from support.kubernetes.helm_chart import Manifest, one
from support.processes.ports import free_port
from tools.kind.go_programs import tool_folder

DEADLINE_SECONDS = 60.0


@dataclass(frozen=True)
class Target:
    """A local server, and the labels that discovery reports for the pod behind it."""

    port: int
    namespace: str
    discovered: Mapping[str, str]

    @property
    def instance(self) -> str:
        return f"127.0.0.1:{self.port}"

    def static_config(self) -> dict[str, Any]:
        labels = {"namespace": self.namespace, **self.discovered}
        prefixed = {f"__meta_kubernetes_{name}": value for name, value in labels.items()}
        return {"targets": [self.instance], "labels": prefixed}


@dataclass(frozen=True)
class Series:
    """A series with its newest value."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Prometheus:
    """A running server."""

    url: str

    def query(self, expression: str) -> list[Series]:
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": expression})
        series = answer.raise_for_status().json()["data"]["result"]
        return [Series(each["metric"], float(each["value"][1])) for each in series]

    def wait_for(self, expression: str, condition: Callable[[list[Series]], bool]) -> list[Series]:
        """Return the result of a query as soon as it meets the condition."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition(series := self.query(expression)):
            assert time.monotonic() < deadline, f"{expression}: {series}"
            time.sleep(0.1)
        return series


def service_target(service: Manifest, port: int) -> Target:
    """Return the target behind a Service with one port."""
    discovered = _labels("service", service["metadata"]["labels"]) | {
        "service_name": service["metadata"]["name"],
        "endpoint_port_name": service["spec"]["ports"][0]["name"],
        "pod_name": "operator-0",
    }
    return Target(port, service["metadata"]["namespace"], discovered)


def head_target(namespace: str, labels: Mapping[str, str], port: int) -> Target:
    """Return the head pod of a Ray cluster."""
    discovered = _labels("pod", labels) | {
        "pod_name": "head-0",
        "pod_phase": "Running",
        "pod_container_name": "ray-head",
        "pod_container_port_name": "progress",
    }
    return Target(port, namespace, discovered)


def _labels(source: str, labels: Mapping[str, str]) -> dict[str, str]:
    plain = {_label_name(name): value for name, value in labels.items()}
    return {f"{source}_label_{name}": value for name, value in plain.items()} | {
        f"{source}_labelpresent_{name}": "true" for name in plain
    }


def _label_name(name: str) -> str:
    return "".join(each if each.isalnum() else "_" for each in name)


@contextmanager
def prometheus(
    folder: Path,
    manifests: Sequence[Manifest],
    operator: Target,
    pods: Sequence[Target],
    overrides: Mapping[str, Any],
) -> Iterator[Prometheus]:
    """Run a server with the monitors and rules of a rendered chart; `overrides` are fields of the
    Prometheus resource."""
    config = _config(manifests, operator, pods, overrides)
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    (folder / "rules.yaml").write_text(yaml.safe_dump(one(manifests, "PrometheusRule")["spec"]))
    address = f"127.0.0.1:{free_port()}"
    command: list[str | Path] = [
        tool_folder("prometheus") / "prometheus",
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            _wait_until_ready(f"http://{address}", process, folder / "log")
            yield Prometheus(f"http://{address}")
        finally:
            process.terminate()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        try:
            if httpx.get(f"{url}/-/ready").is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)


def _config(
    manifests: Sequence[Manifest],
    operator: Target,
    pods: Sequence[Target],
    overrides: Mapping[str, Any],
) -> dict[str, Any]:
    monitors = {
        "service": one(manifests, "ServiceMonitor"),
        "pod": one(manifests, "PodMonitor"),
        "overrides": overrides,
    }
    program = tool_folder("prometheus-config") / "prometheus-config"
    generated = subprocess.run(
        [program], input=json.dumps(monitors), capture_output=True, text=True, check=False
    )
    assert generated.returncode == 0, generated.stderr
    # The config reloader substitutes these variables.
    text = generated.stdout.replace("$(SHARD)", "0").replace("$(POD_NAME)", "prometheus-0")
    config: dict[str, Any] = yaml.safe_load(text)
    for scrape in config["scrape_configs"]:
        targets = [operator] if scrape["job_name"].startswith("serviceMonitor/") else pods
        del scrape["kubernetes_sd_configs"]
        scrape["static_configs"] = [each.static_config() for each in targets]
    config["rule_files"] = ["rules.yaml"]
    return config
