"""Render a sizing: totals, pods and sizing terms. Pure."""

import textwrap
from collections.abc import Iterator

from raggrpo_api.status.sizing import Sizing, SizingTerm
from raggrpo_operator.core.spec.quantity import format_size

INDENT = "  "
AMOUNT_WIDTH = 10
MIN_WIDTH = 8
"""Minimum width of a reason next to a long name."""
_UNITS = {
    "gpu": "per GPU",
    "shm": "/dev/shm per pod",
    "memory": "memory per pod",
    "headShm": "/dev/shm of the head",
    "headMemory": "memory of the head",
    "rolloutShm": "/dev/shm per engine pod",
    "rolloutMemory": "memory per engine pod",
    "preflightMemory": "memory of the preflight",
    "stagingMemory": "memory of the staging",
    "pushMemory": "memory of the push",
    "agentMemory": "memory per pod of the agent",
}


def sizing_lines(sizing: Sizing, width: int) -> Iterator[str]:
    """Yield totals, pods and terms as lines of at most `width` characters."""
    totals = {
        "GPUs of the job": str(sizing.gpus),
        "CPUs per pod": sizing.cpu,
        "memory per pod": sizing.memory,
        "/dev/shm per pod": sizing.shm,
    }
    yield from (f"{INDENT}{name:<18}{amount}" for name, amount in totals.items())
    yield f"{INDENT}pods in a cluster"
    for pod in sizing.pods:
        name = f"{pod.role} {pod.name}".rstrip()
        shm = f", /dev/shm {pod.shm}" if pod.shm else ""
        gpus = f", {pod.gpus} GPU(s)" if pod.gpus else ""
        size = f"{pod.cpu} CPU, {pod.memory}{shm}{gpus}"
        yield from textwrap.wrap(
            f"{pod.replicas} × {name}: {size}",
            width,
            initial_indent=INDENT * 2,
            subsequent_indent=INDENT * 3,
        )
    for resource in dict.fromkeys(term.resource for term in sizing.terms):
        terms = [term for term in sizing.terms if term.resource == resource]
        yield f"{INDENT}terms: {_UNITS.get(resource, resource)}"
        for term in terms:
            yield from _term(term, max(len(each.name) for each in terms), width)


def _term(term: SizingTerm, name_width: int, width: int) -> Iterator[str]:
    start = f"{INDENT * 2}{term.name:<{name_width}}  {format_size(term.bytes):>{AMOUNT_WIDTH}}  "
    reason_width = max(MIN_WIDTH, width - len(start))
    first, *rest = textwrap.wrap(term.reason, reason_width, break_on_hyphens=False) or [""]
    yield start + first
    yield from (" " * len(start) + line for line in rest)
