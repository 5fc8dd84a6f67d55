"""Monitors, alerts and dashboard of the chart."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from raggrpo_api import names
from raggrpo_operator.kubernetes_runtime.process.metrics import Metrics
from raggrpo_trainer.progress.metrics import PROBE_METRICS
from support.builders.trainer.metrics_page import trainer_page
from support.kubernetes.helm_chart import EVERYTHING, NAMESPACE, RELEASE, Chart, one

MONITORS: dict[str, Any] = {
    "metrics": {
        "serviceMonitor": {"enabled": True},
        "podMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
    }
}
GOLDEN_CLUSTER = Path(__file__).parents[1] / "golden" / "full" / "raycluster.yaml"
SELECTOR = re.compile(r"\b(raggrpo_[a-z0-9_]+)(\{[^}]*\})?")
"""A selector of series in a query: name and label matchers."""
MAX_ENDPOINTS = 8
"""Maximum number of retrieval endpoints of a job."""


def series() -> set[str]:
    """Return the names of all series of operator and trainers."""
    text = Metrics().text().decode() + trainer_page().decode()
    typed = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    suffixes = {"histogram": ("_bucket", "_count", "_sum")}
    return {name + end for name, kind in typed.items() for end in suffixes.get(kind, ("",))}


@pytest.mark.row("B26")
def test_alerts_and_dashboard_panels_use_existing_metrics(chart: Chart) -> None:
    manifests = chart.render(EVERYTHING)
    rules = one(manifests, "PrometheusRule")["spec"]["groups"]
    board = yaml.safe_load(one(manifests, "ConfigMap")["data"]["raggrpo.json"])
    queries = [rule["expr"] for group in rules for rule in group["rules"]]
    queries += [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [variable["query"] for variable in board["templating"]["list"]]

    names = {name for text in queries for name in re.findall(r"\braggrpo_[a-z0-9_]+", text)}
    assert len(names) > 15
    in_panels = " ".join(t["expr"] for panel in board["panels"] for t in panel["targets"])
    for name in ("effective_training_time_ratio", "lost_steps", "restarts_by_cause"):
        assert f"raggrpo_job_{name}" in in_panels
    assert names - series() == set()


def test_alerts_link_to_sections_of_the_runbook_page(chart: Chart) -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "respond-to-alerts.md").read_text()
    anchors = {heading.lower() for heading in re.findall(r"^## (\w+)$", page, re.MULTILINE)}
    values = {"metrics": {"prometheusRule": {"enabled": True, "runbooks": "https://runbooks"}}}

    groups = one(chart.render(values), "PrometheusRule")["spec"]["groups"]

    urls = [rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"]]
    assert {url.partition("#")[0] for url in urls} == {"https://runbooks"}
    assert sorted(url.partition("#")[2] for url in urls) == sorted(anchors)
    assert {"raggrpojobfailed", "raggrpojobstranded"} <= anchors


def test_alerts_have_no_link_without_runbook_page(chart: Chart) -> None:
    values = {"metrics": {"prometheusRule": {"enabled": True}}}

    groups = one(chart.render(values), "PrometheusRule")["spec"]["groups"]

    annotations = [set(rule["annotations"]) for group in groups for rule in group["rules"]]
    assert all(names == {"summary", "description"} for names in annotations)


def test_panels_of_jobs_filter_by_namespace(chart: Chart) -> None:
    board = yaml.safe_load(one(chart.render(EVERYTHING), "ConfigMap")["data"]["raggrpo.json"])

    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    of_jobs = [query for query in queries if "raggrpo_operator_" not in query]
    assert [query for query in of_jobs if 'namespace=~"$namespace"' not in query] == []


def test_monitors_are_omitted_without_kinds_of_prometheus(chart: Chart) -> None:
    monitoring = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
    served = [f"--api-versions=monitoring.coreos.com/v1/{kind}" for kind in monitoring]
    without = chart.render(EVERYTHING, "--api-versions=v1/Pod")
    with_prometheus = chart.render(EVERYTHING, "--api-versions=v1/Pod", *served)

    assert not monitoring & {each["kind"] for each in without}
    assert monitoring <= {each["kind"] for each in with_prometheus}


def test_service_monitor_selects_service_of_operator(chart: Chart) -> None:
    manifests = chart.render(EVERYTHING)
    service, monitor = one(manifests, "Service"), one(manifests, "ServiceMonitor")

    selector = monitor["spec"]["selector"]["matchLabels"]
    assert selector.items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]


def test_pod_monitor_selects_ray_heads_of_jobs(chart: Chart) -> None:
    monitor = one(chart.render(MONITORS), "PodMonitor")["spec"]
    head = yaml.safe_load(GOLDEN_CLUSTER.read_text())["spec"]["headGroupSpec"]["template"]

    assert monitor["selector"]["matchLabels"].items() <= head["metadata"]["labels"].items()
    ports = {each["name"]: each["containerPort"] for each in head["spec"]["containers"][0]["ports"]}
    assert ports[monitor["podMetricsEndpoints"][0]["port"]] == names.PROGRESS_PORT


@pytest.mark.parametrize(
    ("values", "selected"),
    [
        ({}, {"any": True}),
        ({"watchNamespaces": ["team-a", "team-b"]}, {"matchNames": ["team-a", "team-b"]}),
        ({"jobPolicy": {"allowedNamespaces": ["team-a"]}}, {"matchNames": ["team-a"]}),
    ],
)
def test_pod_monitor_selects_only_namespaces_with_jobs(
    chart: Chart, values: dict[str, Any], selected: dict[str, Any]
) -> None:
    monitor = one(chart.render(MONITORS | values), "PodMonitor")

    assert monitor["spec"]["namespaceSelector"] == selected


def test_monitors_ignore_labels_timestamps_and_redirects_of_targets(chart: Chart) -> None:
    manifests = chart.render(MONITORS)
    [service] = one(manifests, "ServiceMonitor")["spec"]["endpoints"]
    [pod] = one(manifests, "PodMonitor")["spec"]["podMetricsEndpoints"]

    assert pod["honorTimestamps"] is False
    for endpoint in (service, pod):
        assert endpoint["honorLabels"] is False
        assert endpoint["followRedirects"] is False


def test_series_of_largest_job_are_within_limits_of_pod_monitor(chart: Chart) -> None:
    monitor = one(chart.render(MONITORS), "PodMonitor")["spec"]
    [endpoint] = monitor["podMetricsEndpoints"]
    page = trainer_page(MAX_ENDPOINTS, dict.fromkeys(PROBE_METRICS, 0.5)).decode()
    samples = [line for line in page.splitlines() if not line.startswith("#")]

    [kept] = [each["regex"] for each in endpoint["metricRelabelings"] if each["action"] == "keep"]
    assert {sample.partition("{")[0] for sample in samples} == set(kept.split("|"))
    assert 2 * len(samples) < monitor["sampleLimit"] < 4 * len(samples)
    assert len(page) < 0.1 * 10**6
    assert monitor["bodySizeLimit"] == "1MB"
    assert 0 < monitor["labelLimit"] <= 64
    assert 0 < monitor["labelNameLengthLimit"] <= 256
    assert 253 <= monitor["labelValueLengthLimit"] <= 1024  # the longest name of a pod


@pytest.mark.parametrize("release", [RELEASE, "blue"])
def test_alerts_read_only_series_of_own_operator(chart: Chart, release: str) -> None:
    manifests = chart.render(MONITORS, release=release)
    [endpoint] = one(manifests, "ServiceMonitor")["spec"]["endpoints"]
    [job] = [
        each["replacement"] for each in endpoint["relabelings"] if each["targetLabel"] == "job"
    ]
    groups = one(manifests, "PrometheusRule")["spec"]["groups"]

    queries = [rule["expr"] for group in groups for rule in group["rules"]]
    selectors = [each for query in queries for each in SELECTOR.findall(query)]
    assert job == f"{NAMESPACE}/{one(manifests, 'Service')['metadata']['name']}"
    assert len(selectors) > len(queries)
    for name, matchers in selectors:
        assert f'job="{job}"' in matchers
        assert (f'namespace="{NAMESPACE}"' in matchers) is name.startswith("raggrpo_operator_")
