r"""What a write of a job's status costs a real API server, by definitions of the CRD.

    PYTHONPATH=tests .venv/bin/python tests/bench/operator/status_write_cost.py \
        [crds/raggrpojobs.yaml OTHER.yaml ...]

Each definition is measured in turn, and the first one without its rules: processor time of
kube-apiserver for one status after the other, the median of the turns.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import yaml

from bench.operator.operator_scale import NAMESPACE, api_server_seconds, job_of
from raggrpo_api.schema.crd import CRD_FILE
from support.fakes.fake_kuberay import Api, path_of
from tools.kind.api_server import ApiServer, running_api_server

WRITES = 300


def main() -> None:
    parser = argparse.ArgumentParser(description="what a status costs the API server")
    parser.add_argument("files", nargs="*", type=Path, default=[CRD_FILE])
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    read = {str(file): yaml.safe_load(file.read_text()) for file in options.files}
    crds = {**read, "without rules": without_rules(next(iter(read.values())))}
    with (
        tempfile.TemporaryDirectory(prefix="raggrpo-bench-") as folder,
        running_api_server(Path(folder)) as server,
    ):
        server.kubectl("create", "namespace", NAMESPACE)
        seconds = asyncio.run(measure(server, crds, options.turns))
    for name, found in seconds.items():
        each = ", ".join(f"{1000 * one:.1f}" for one in found)
        print(f"{name}: {1000 * statistics.median(found):.1f} ms of a processor a status ({each})")


async def measure(
    server: ApiServer, crds: dict[str, dict[str, Any]], turns: int
) -> dict[str, list[float]]:
    api, seconds = Api(server.kubeconfig), dict[str, list[float]]()
    jobs = path_of("raggrpo.io/v1alpha1", "raggrpojobs", NAMESPACE)
    await api.create(jobs, job_of("job"))
    for _ in range(turns):
        for name, crd in crds.items():
            file = server.folder / "measured.json"
            file.write_text(json.dumps(crd))
            server.kubectl("replace", "-f", str(file))
            await write(api, jobs, WRITES)  # until the server takes the new definition
            before = api_server_seconds(server)
            await write(api, jobs, WRITES)
            used = api_server_seconds(server) - before
            seconds.setdefault(name, []).append(used / WRITES)
    await api.close()
    return seconds


async def write(api: Api, jobs: str, number: int) -> None:
    for step in range(number):
        status = {"phase": "Running", "attempt": 1, "progress": {"step": step}}
        await api.patch(f"{jobs}/job/status", {"status": status})


def without_rules(crd: dict[str, Any]) -> dict[str, Any]:
    """Return the definition without what CEL evaluates."""

    def stripped(part: Any) -> Any:
        if isinstance(part, list):
            return [stripped(each) for each in part]
        if not isinstance(part, dict):
            return part
        rules = "x-kubernetes-validations"
        return {name: stripped(each) for name, each in part.items() if name != rules}

    found: dict[str, Any] = stripped(crd)
    return found


if __name__ == "__main__":
    main()
