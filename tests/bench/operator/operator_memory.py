"""Memory of the operator for the largest accepted jobs.

    PYTHONPATH=tests .venv/bin/python tests/bench/operator/operator_memory.py [--jobs 1000]

A real API server without nodes holds suspended jobs, ConfigMaps of maximum size with the label that
the operator selects, and rejected jobs whose free JSON has as many values as the API server
accepts. Fails if the operator's memory exceeds the limit of the chart.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import yaml

from bench.operator.operator_scale import NAMESPACE, Bench, job_of, running_operator
from raggrpo_api import limits, names
from raggrpo_operator.core.spec.quantity import parse_quantity
from support.fakes.fake_kuberay import Api, Manifest, path_of
from support.fakes.fake_kuberay_watch import FakeKubeRayWatch
from support.fakes.fake_ray import fake_ray
from tools.kind.api_server import ApiServer, running_api_server

FEATURE_ROWS = ("E10",)
"""Rows of docs/features.md that this benchmark measures."""
VALUES = Path(__file__).parents[3] / "helm" / "raggrpo-operator" / "values.yaml"
ENV_VALUE = 1800
PASSAGE_TEMPLATE = 10_000
FILES, FILE_NAME = 60, 200
FOREIGN, FOREIGN_BYTES = 100, 1_000_000
WIDE, WIDE_ROWS, WIDE_VALUES = 8, 190, 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description="memory of the operator with the largest jobs")
    parser.add_argument("--jobs", type=int, default=1000)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="raggrpo-bench-") as folder,
        running_api_server(Path(folder)) as server,
    ):
        peak = asyncio.run(measure(server, options.jobs))
    limit = parse_quantity(yaml.safe_load(VALUES.read_text())["resources"]["limits"]["memory"])
    print(f"{options.jobs} jobs: at most {peak / 2**20:.0f} MiB, the limit is {limit / 2**20:.0f}")
    if peak > limit:
        sys.exit("the operator would have been killed")


async def measure(server: ApiServer, num_jobs: int) -> int:
    server.kubectl("create", "namespace", NAMESPACE)
    api = Api(server.kubeconfig)
    path = path_of("raggrpo.io/v1alpha1", "raggrpojobs", NAMESPACE)
    async with fake_ray() as ray:
        bench = Bench(server, api, ray, FakeKubeRayWatch(api, NAMESPACE, ray), num_jobs)
        for number in range(num_jobs):
            await api.create(path, make_large_job(f"job-{number:04}"))
        for number in range(FOREIGN):
            await api.create(
                path_of("v1", "configmaps", NAMESPACE), make_foreign_record(f"theirs-{number}")
            )
        for number in range(WIDE):
            await api.create(path, make_wide_job(f"wide-{number}"))
        async with running_operator(bench) as operator:
            watching = asyncio.create_task(bench.watch_jobs())
            await bench.until("all are accepted", lambda: bench.all_are("Suspended"))
            watching.cancel()
            await asyncio.sleep(5)
    await api.close()
    return operator.peak_rss


def make_large_job(name: str) -> Manifest:
    """Return a job whose variables and texts are close to the maximum size."""
    raw = job_of(name)
    number = limits.MAX_ENV_BYTES // (ENV_VALUE + 100)
    raw["spec"]["env"] = [
        {"name": f"TEXT_{n}", "value": f"{name} " * (ENV_VALUE // 9)} for n in range(number)
    ]
    raw["spec"]["retrieval"] = {"passageTemplate": "{text}" + "x" * PASSAGE_TEMPLATE}
    folder = "/mnt/runs/" + "f" * FILE_NAME
    raw["spec"]["data"]["trainFiles"] = [f"{folder}/{n}.jsonl" for n in range(FILES)]
    raw["spec"]["suspend"] = True
    raw["metadata"]["annotations"] = {"theirs": "x" * 200_000}
    return raw


def make_wide_job(name: str) -> Manifest:
    raw = job_of(name)
    free = {"x": [[{"": 0}] * WIDE_VALUES] * WIDE_ROWS}
    endpoint = {"name": "kb", "url": "http://kb/x", "extraBody": free}
    raw["spec"] |= {"suspend": True, "retrieval": {"mode": "Prompt", "endpoints": [endpoint]}}
    return raw


def make_foreign_record(name: str) -> Manifest:
    labels = {names.LABEL_MANAGED_BY: names.MANAGER, names.LABEL_JOB: "job-0000"}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": labels},
        "data": {"text": "x" * FOREIGN_BYTES},
    }


if __name__ == "__main__":
    main()
