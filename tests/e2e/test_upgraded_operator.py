"""Upgrade the operator to two replicas during a run, and kill the leader."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tools.kind.images import REPOSITORY, Images, build_operator_image
from tools.kind.kubernetes import Kubernetes
from tools.kind.operator_release import install, kill, leader
from tools.kind.training_job import TrainingJob, attempts, make_job, watch_ray_clusters

pytestmark = pytest.mark.long

STEPS = 100
SOURCES = ("operator", "trainer_image", "helm", "crds", "requirements")
FILES = ("pyproject.toml", "README.md", "LICENSE", "Dockerfile", ".dockerignore")
FIELD = "ofNextRelease"
TAKEOVER_SECONDS = 20


@pytest.fixture
def next_sources(tmp_path: Path) -> Path:
    """The sources of a next release: TrainerConfig has one more field."""
    for name in SOURCES:
        shutil.copytree(REPOSITORY / name, tmp_path / name)
    for name in FILES:
        shutil.copy(REPOSITORY / name, tmp_path)
    project, rollout = (
        tmp_path / "pyproject.toml",
        tmp_path / "operator/raggrpo_api/spec/rollout.py",
    )
    project.write_text(project.read_text().replace('version = "', 'version = "99.', 1))
    rollout.write_text(rollout.read_text() + '    of_next_release: bool = True\n    """Later."""\n')
    path = os.pathsep.join([str(tmp_path / "operator"), str(tmp_path / "trainer_image")])
    subprocess.run(
        [sys.executable, "-m", "raggrpo_operator.crd"],
        env={**os.environ, "PYTHONPATH": path},
        check=True,
    )
    return tmp_path


@pytest.fixture
def replaceable_operator(cluster: Kubernetes, operator: Images) -> Iterator[Images]:
    """The operator; the current version is installed again after the test."""
    yield operator
    install(cluster, operator, REPOSITORY)


def record(job: TrainingJob, attempt: int) -> dict[str, Any]:
    """Return the configuration of an attempt from its ConfigMap."""
    config_map = job.cluster.read("configmap", job.record(attempt), "-n", job.namespace)
    config: dict[str, Any] = json.loads(config_map["data"]["config.json"])
    return config


@pytest.mark.row("B28")
@pytest.mark.timeout(3600)
def test_running_job_survives_operator_upgrade_and_leader_loss(
    cluster: Kubernetes, replaceable_operator: Images, seeded: str, next_sources: Path
) -> None:
    # Nothing may start from the image that the next release would give to new jobs.
    later = replace(replaceable_operator, trainer="raggrpo/trainer:never-made")
    later = replace(later, operator=build_operator_image(next_sources))
    job = TrainingJob(cluster, seeded, "steady")
    with watch_ray_clusters(cluster, seeded) as clusters:
        cluster.apply(make_job("steady", "", STEPS), namespace=seeded)
        status = job.wait_for_steps(5, attempt=1)
        assert status["pinned"]["image"].endswith(replaceable_operator.trainer)

        install(cluster, later, next_sources)
        job.wait_for_steps(job.status()["attempts"][0].get("toStep", 0) + 2, attempt=1)
        job.kill_driver()
        status = job.wait_for_steps(5, attempt=2)
        assert status["attempts"][0]["tier"] == "WarmCluster"
        first, second = (record(job, number) for number in (1, 2))
        assert first["schemaDigest"] == second["schemaDigest"]
        assert FIELD not in second["rollout"]

        install(cluster, later, next_sources, replicas=2)
        before, _ = leader(cluster)
        killed = datetime.now(UTC)
        kill(cluster, before)
        job.kill_driver()
        job.wait_for_steps(1, attempt=3)
        after, since = leader(cluster)
        assert after != before
        assert (since - killed).total_seconds() < TAKEOVER_SECONDS

        assert attempts(job.status()) == [
            (1, "ProgramError", "First"),
            (2, "ProgramError", "WarmCluster"),
            (3, None, "WarmCluster"),
        ]
        assert job.submissions() == {
            "steady-a1": "FAILED", "steady-a2": "FAILED", "steady-a3": "RUNNING",
        }  # fmt: skip
        assert clusters() == [f"{job.cluster_name(1)} ADDED"]
    job.kubectl("delete", "rgj", "steady")
