"""`raggrpo rag-test JOB.yaml`: test the retrieval endpoints of a job, also under load."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated

import typer

from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.rag_test import AS_CONFIGURED, EndpointTest, LoadLevel, RagTest, Variant
from raggrpo_api.trainer.sealed_config import seal
from raggrpo_cli.job_file import JobFile, Sets, fail
from raggrpo_cli.local_job import Endpoints, Mounts, load_local_job
from raggrpo_cli.recorded_job import DirOption
from raggrpo_cli.terminal import show
from raggrpo_operator.core.spec.resolve import trainer_config
from raggrpo_operator.local_runtime.secret_values import trainer_env

COMMAND = (sys.executable, "-m", "raggrpo_trainer.retrieval.rag_test")


def rag_test(
    job_file: JobFile,
    dir: DirOption = None,  # noqa: A002
    mount: Mounts = None,
    endpoint: Endpoints = None,
    set_: Sets = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, help="Duration of each load level.")
    ] = 5.0,
    most: Annotated[
        int, typer.Option("--most", min=1, max=4096, help="Maximum concurrent calls.")
    ] = 32,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Test the retrieval endpoints: a single call, request variants, load, one training step."""
    job, resolved, *_ = load_local_job(job_file, dir, sets=set_, endpoints=endpoint, mounts=mount)
    config = trainer_config(job, resolved)
    if not config.retrieval.external:
        fail(
            "spec.retrieval.endpoints: all endpoints are managed and not running; specify the URL "
            "of a running service with --endpoint NAME=URL"
        )
    results = _measure(config, trainer_env(resolved.spec, os.environ), seconds, most)
    if as_json:
        show(results.model_dump_json(by_alias=True, indent=1))
    else:
        show("\n\n".join("\n".join(lines(each)) for each in results.endpoints))
    if any(each.failure for each in results.endpoints):
        raise typer.Exit(ExitCode.RETRIEVAL_UNAVAILABLE)


def _measure(config: TrainerConfig, env: Mapping[str, str], seconds: float, most: int) -> RagTest:
    """Measure the endpoints in a trainer process, with the client that training uses."""
    process = subprocess.run(
        [*COMMAND, str(seconds), str(most)],
        env={**env, **seal(config.to_json())},
        stdout=subprocess.PIPE,
        check=False,
    )
    if process.returncode:
        raise typer.Exit(process.returncode)  # the process has printed the error
    return RagTest.model_validate_json(process.stdout)


def lines(test: EndpointTest) -> Iterator[str]:
    """Yield the output lines for one endpoint."""
    yield f"endpoint {test.name} ({test.url})"
    if test.failure:
        yield (
            f"  FAILED {test.failure}; check that the service is running "
            "and that its url and headers are correct"
        )
        return
    yield f"  first call {test.first_seconds:.3f} s"
    yield from map(_variant, test.variants)
    yield f"  {'in flight':>9}{'answers/s':>11}{'p50':>9}{'p95':>9}{'p99':>9}  failed"
    yield from map(_level, test.levels)
    if test.saturates_at:
        yield (
            f"  saturated at {test.saturates_at} calls in flight: with more calls, only "
            "the latency increases (limit: retrieval.endpoints[].maxConcurrency)"
        )
    else:
        yield "  not saturated: the last level still increased throughput, or calls failed"
    if test.step is not None:
        yield (
            f"  one step, {test.step.questions} questions: {test.step.seconds:.1f} s, failed: "
            f"{_failures(test.step.failures)}"
        )


def _variant(variant: Variant) -> str:
    """Return the line of a variant; only the body that the job sends must succeed."""
    if variant.failure and variant.name == AS_CONFIGURED:
        return f"  {variant.name:<20} FAILED {variant.failure}"
    if variant.failure:
        cause = variant.failure.partition(":")[0]
        return f"  {variant.name:<20} not supported by the service ({cause}), not used by the job"
    return f"  {variant.name:<20} {variant.passages} passages in {variant.seconds:.3f} s"


def _level(level: LoadLevel) -> str:
    cells = ["–" if each is None else f"{each:.3f}" for each in (level.p50, level.p95, level.p99)]
    seconds = "".join(f"{cell:>9}" for cell in cells)
    return f"  {level.in_flight:>9}{level.per_second:>11.1f}{seconds}  {_failures(level.failures)}"


def _failures(by_cause: Mapping[str, int]) -> str:
    return ", ".join(f"{cause} {number}" for cause, number in by_cause.items()) or "0"
