"""Options and output of the retrieval test, which two commands share."""

from collections.abc import Iterator, Mapping
from typing import Annotated

import typer

from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.rag_test import AS_CONFIGURED, EndpointTest, LoadLevel, RagTest, Variant
from raggrpo_cli.terminal import show

Seconds = Annotated[float, typer.Option("--seconds", min=0.1, help="Duration of each load level.")]
Most = Annotated[int, typer.Option("--most", min=1, max=4096, help="Maximum concurrent calls.")]


def show_results(results: RagTest, *, as_json: bool) -> None:
    """Print the results; exit with an error if an endpoint failed."""
    if as_json:
        show(results.model_dump_json(by_alias=True, indent=1))
    else:
        show("\n\n".join("\n".join(lines(each)) for each in results.endpoints))
    if any(each.failure for each in results.endpoints):
        raise typer.Exit(ExitCode.RETRIEVAL_UNAVAILABLE)


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
