"""A real Prometheus scrapes the operator, a trainer and pods that forge metrics."""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from raggrpo_api import names
from raggrpo_operator.kube.cluster_objects import JobKey
from raggrpo_operator.kubernetes_runtime.process.metrics import Metrics
from support.builders.operator.jobs import make_job
from support.builders.trainer.metrics_page import trainer_page
from support.kubernetes.helm_chart import NAMESPACE, RELEASE, Chart, one
from support.kubernetes.prometheus import (
    Prometheus,
    Series,
    Target,
    head_target,
    prometheus,
    service_target,
)
from support.processes.ports import free_port

INTERVAL = "500ms"
VALUES: dict[str, Any] = {
    "metrics": {
        "serviceMonitor": {"enabled": True, "interval": INTERVAL},
        "podMonitor": {"enabled": True, "interval": INTERVAL},
        "prometheusRule": {"enabled": True},
    }
}
SCRAPE_JOB = f"{NAMESPACE}/{RELEASE}"
GOLDEN_CLUSTER = Path(__file__).parents[1] / "golden" / "full" / "raycluster.yaml"
TRAINER_METRICS = Path("helm/raggrpo-operator/files/trainer-metrics.txt")
FORGED = f'job="{SCRAPE_JOB}",namespace="{NAMESPACE}",instance="i",pod="operator-0"'
VICTIM = f'job="{SCRAPE_JOB}",namespace="team-a",name="demo",pod="head-0"'
FORGED_PAGE = f"""
raggrpo_operator_kuberay_available{{{FORGED}}} 1
raggrpo_operator_namespaces_of_other_operators{{{FORGED}}} 7
raggrpo_job_phase{{{VICTIM},phase="Failed"}} 1
raggrpo_job_reconcile_failing{{{VICTIM}}} 1
raggrpo_job_waiting_for_endpoint{{{VICTIM}}} 1
raggrpo_step{{{VICTIM},exported_namespace="team-a",exported_job="{SCRAPE_JOB}"}} 666
raggrpo_total_steps{{{VICTIM}}} 666 {int(time.time() - 240) * 1000}
raggrpo_reward_mean{{endpoint="other",exported_name="demo"}} 666
up{{job="apiserver",namespace="kube-system"}} 1
ALERTS{{alertname="RagGrpoOperatorDown",alertstate="firing"}} 1
kube_node_info{{node="n"}} 1
"""


@dataclass(frozen=True)
class Page:
    """The response of a server: a body, or a redirect to another server."""

    body: bytes = b""
    location: str = ""


REJECTED = {
    "samples": Page(b"".join(b'raggrpo_step{x="%d"} 1\n' % each for each in range(5_000))),
    "labels": Page(b"raggrpo_step{%s} 1\n" % b",".join(b'x%d="y"' % each for each in range(60))),
    "label name": Page(b'raggrpo_step{%s="y"} 1\n' % (b"x" * 1_000)),
    "label value": Page(b'raggrpo_step{x="%s"} 1\n' % (b"y" * 10_000)),
    "body": Page(b"raggrpo_step 1\n" + b"# HELP raggrpo_step x\n" * 100_000),
}
"""Pages that exceed a limit of the PodMonitor."""


@dataclass(frozen=True)
class Scene:
    """A server and its targets."""

    server: Prometheus
    operator: Target
    trainer: Target
    forged: Target
    unlabeled: Target
    rejected: Mapping[str, Target]
    """Pods whose pages exceed a limit or redirect, by attack."""


@contextmanager
def served(page: Page) -> Iterator[int]:
    """Serve a page on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302 if page.location else 200)
            self.send_header("Location", page.location)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(page.body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def operator_page() -> bytes:
    metrics = Metrics()
    metrics.kuberay.set(1)
    metrics.jobs.update(JobKey("team-a", "demo"), make_job())
    return metrics.text()


def head_labels(job: str) -> dict[str, str]:
    cluster = yaml.safe_load(GOLDEN_CLUSTER.read_text())
    labels: dict[str, str] = cluster["spec"]["headGroupSpec"]["template"]["metadata"]["labels"]
    return labels | {names.LABEL_JOB: job}


def served_head(stack: ExitStack, namespace: str, job: str, page: Page) -> Target:
    return head_target(namespace, head_labels(job), stack.enter_context(served(page)))


@pytest.fixture(scope="module", params=[{}, {"overrideHonorLabels": True}], ids=["", "override"])
def scene(
    chart: Chart, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Scene]:
    """Prometheus after all targets were scraped."""
    manifests = chart.render(VALUES)
    with ExitStack() as stack:
        head = partial(served_head, stack)
        service = one(manifests, "Service")
        operator = service_target(service, stack.enter_context(served(Page(operator_page()))))
        trainer = head("team-a", "demo", Page(trainer_page()))
        forged = head("team-b", "apiserver", Page(FORGED_PAGE.encode()))
        unlabeled = head("team-b", "", Page(FORGED_PAGE.encode()))
        redirect = Page(location=f"http://{operator.instance}/metrics")
        pages = REJECTED | {"redirect": redirect}
        rejected = {name: head("team-b", "attack", page) for name, page in pages.items()}
        pods = [trainer, forged, unlabeled, *rejected.values()]
        folder = tmp_path_factory.mktemp("prometheus")
        server = stack.enter_context(prometheus(folder, manifests, operator, pods, request.param))
        scraped = len([operator, trainer, forged, *rejected])
        server.wait_for("up", lambda series: len(series) >= scraped)
        yield Scene(server, operator, trainer, forged, unlabeled, rejected)


def series_of(scene: Scene, target: Target) -> list[Series]:
    """Return all series of a target but those that Prometheus writes itself."""
    series = scene.server.query(f'{{instance="{target.instance}"}}')
    return [each for each in series if not is_own(each)]


def is_own(series: Series) -> bool:
    return series.labels["__name__"].startswith(("scrape_", "up"))


def test_series_of_forged_pod_have_its_own_namespace_name_and_fixed_job(scene: Scene) -> None:
    series = series_of(scene, scene.forged)

    assert {each.labels["__name__"] for each in series} == {
        "raggrpo_step", "raggrpo_total_steps", "raggrpo_reward_mean",
    }  # fmt: skip
    identities = {
        tuple(each.labels[key] for key in ("namespace", "name", "job")) for each in series
    }
    assert identities == {("team-b", "apiserver", f"{SCRAPE_JOB}-trainers")}
    assert not [key for each in series for key in each.labels if key.startswith("exported_")]
    assert set(TRAINER_METRICS.read_text().split()) >= {e.labels["__name__"] for e in series}


def test_forged_pod_does_not_change_series_of_other_jobs_and_targets(scene: Scene) -> None:
    [step] = scene.server.query('raggrpo_step{namespace="team-a"}')
    assert (step.labels["name"], step.value) == ("demo", 0)
    [failed] = scene.server.query('raggrpo_job_phase{phase="Failed"}')
    assert (failed.labels["namespace"], failed.labels["name"], failed.value) == (
        "team-a",
        "demo",
        0,
    )
    assert {each.labels["job"] for each in scene.server.query("up")} == {
        SCRAPE_JOB,
        f"{SCRAPE_JOB}-trainers",
    }
    assert scene.server.query('{__name__=~"ALERTS|kube_.*",namespace!=""}') == []


def test_forged_timestamps_are_ignored(scene: Scene) -> None:
    [age] = scene.server.query('time() - timestamp(raggrpo_total_steps{namespace="team-b"})')
    assert age.value < 60


def test_pod_without_job_label_is_not_scraped(scene: Scene) -> None:
    assert scene.server.query(f'{{instance="{scene.unlabeled.instance}"}}') == []


@pytest.mark.parametrize("attack", [*REJECTED, "redirect"])
def test_page_that_exceeds_limit_or_redirects_is_rejected(scene: Scene, attack: str) -> None:
    target = scene.rejected[attack]

    [up] = scene.server.query(f'up{{instance="{target.instance}"}}')
    assert up.value == 0
    assert series_of(scene, target) == []


def test_series_of_operator_and_trainer_have_namespace_and_name_of_job(scene: Scene) -> None:
    of_jobs = scene.server.query('{__name__=~"raggrpo_job_.*"}')
    of_operator = scene.server.query("raggrpo_operator_kuberay_available")
    [calls] = scene.server.query('raggrpo_retrieval_calls_total{outcome="Answered"}')

    assert len(of_jobs) > 20
    assert {(e.labels["namespace"], e.labels["name"]) for e in of_jobs} == {("team-a", "demo")}
    assert {(e.labels["job"], e.labels["namespace"]) for e in of_operator} == {
        (SCRAPE_JOB, NAMESPACE)
    }
    assert calls.labels["endpoint"] == "endpoint-0"
    assert (calls.labels["namespace"], calls.labels["name"]) == ("team-a", "demo")


def test_forged_pod_neither_raises_nor_silences_alerts(chart: Chart, scene: Scene) -> None:
    groups = one(chart.render(VALUES), "PrometheusRule")["spec"]["groups"]
    queries = {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}

    firing = {name for name, query in queries.items() if scene.server.query(query)}

    assert firing == {"RagGrpoJobPendingTooLong"}  # the job is pending


def test_forged_pod_does_not_hide_missing_operator(chart: Chart, tmp_path: Path) -> None:
    manifests = chart.render(VALUES)
    stopped = service_target(one(manifests, "Service"), free_port())
    groups = one(manifests, "PrometheusRule")["spec"]["groups"]
    [query] = [
        rule["expr"]
        for group in groups
        for rule in group["rules"]
        if rule["alert"] == "RagGrpoOperatorDown"
    ]
    with ExitStack() as stack:
        forged = served_head(stack, "team-b", RELEASE, Page(FORGED_PAGE.encode()))
        server = stack.enter_context(prometheus(tmp_path, manifests, stopped, [forged], {}))
        server.wait_for("up", lambda series: len(series) == 2)

        assert server.query('raggrpo_step{namespace="team-b"}')
        assert server.query(query)
