"""Render `raggrpo plan`: values with their origins, sizing terms and violations. Pure."""

import json
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.memory.parameters import adapter_parameters, checkpoint_bytes
from raggrpo_api.secrets.detection import HIDDEN
from raggrpo_api.spec.resources import Device
from raggrpo_api.spec.training import TrainingSpec
from raggrpo_api.status.sizing import Sizing
from raggrpo_api.trainer.preflight import Facts
from raggrpo_api.trainer.progress import CheckpointRef
from raggrpo_api.trainer.resume import Change
from raggrpo_operator.core.spec.quantity import format_count, format_size
from raggrpo_operator.core.spec.resolve import Resolved
from raggrpo_operator.core.spec.violation import Reason, Severity, Violation
from raggrpo_operator.core.spec.world import world

from .redacted_values import redacted_value
from .segments import segment_lines
from .sizing_text import INDENT, sizing_lines
from .step_work import work_lines

ORIGIN_WIDTH = 7


def render_plan(
    job: RagGrpoJob,
    resolved: Resolved,
    sizing: Sizing,
    violations: Sequence[Violation],
    facts: Facts | None = None,
    width: int = 100,
    *,
    pending: Sequence[Change] = (),
    start: CheckpointRef | None = None,
) -> str:
    """Return the plan as text with lines of at most `width` characters.

    `pending` are the changed values that the next attempt applies; it continues after the newest
    checkpoint of the job or, if the job has none, after the checkpoint `start` of another job.
    """
    sections = [
        _heading(job, resolved, facts),
        [
            "Values (origin: user, coupled, preset, default or sized)",
            *_values(resolved, sizing, _secrets(violations), width),
        ],
        ["Work of a step (at most)", *work_lines(resolved.spec)],
        ["Sizing", *sizing_lines(sizing, width)],
    ]
    newest = job.status.checkpoint or start
    if segments := [*segment_lines(job.status.segments, newest, pending)]:
        sections.append(["Segments (values: old → new)", *_indented(segments, width)])
    for title, severity in (("Errors", Severity.ERROR), ("Warnings", Severity.WARNING)):
        selected = [violation for violation in violations if violation.severity is severity]
        if selected:
            sections.append([f"{title} ({len(selected)})", *_violation_lines(selected, width)])
    return "\n\n".join("\n".join(lines) for lines in sections) + "\n"


def _heading(job: RagGrpoJob, resolved: Resolved, facts: Facts | None) -> list[str]:
    resources, processes = resolved.spec.resources, world(resolved.spec)
    unit = "rank" if resources.device is Device.CPU else "GPU"
    per_node = resources.ranks if resources.device is Device.CPU else resources.gpus_per_node
    layout = f"{resources.nodes} node(s) × {per_node} {unit}(s)"
    lines = [
        f"Job {job.metadata.name}, preset {job.spec.preset}",
        f"{resources.device}, {resources.placement}: {layout}, {processes.num_ranks} trainer "
        f"rank(s), {processes.num_engines} rollout engine(s)",
    ]
    if facts is None:
        return [*lines, "Model and data: not read yet (raggrpo check reads them)"]
    start = f"Prompts start with {facts.prompt_start}, which the tokenizer adds"
    return [
        *lines,
        f"Model: {facts.parameters:,} parameters, {facts.layers} layers × {facts.hidden_size}, "
        f"{facts.heads} heads, context {facts.context_length}; data: {facts.rows:,} rows",
        *_adapters(resolved.spec.training, facts),
        *_checkpoint(resolved.spec.training, facts),
        *([start] if facts.prompt_start else []),
    ]


def _adapters(training: TrainingSpec, facts: Facts) -> Iterator[str]:
    if training.lora is not None and facts.adapted_layers:
        trained = format_count(adapter_parameters(training, facts))
        yield (
            f"LoRA: rank {training.lora.rank} on {facts.adapted_layers} layers, {trained} of "
            f"{format_count(facts.parameters)} parameters trained"
        )


def _checkpoint(training: TrainingSpec, facts: Facts) -> Iterator[str]:
    if size := checkpoint_bytes(training, facts):
        full = checkpoint_bytes(training.model_copy(update={"lora": None}), facts)
        compared = f" ({format_size(full)} without adapters)" if training.lora is not None else ""
        yield f"Checkpoint: {format_size(size)}{compared}"


def _secrets(violations: Sequence[Violation]) -> tuple[str, ...]:
    """Return the paths of plain-text secrets, which must not be printed."""
    paths = (v.path for v in violations if v.reason is Reason.SECRET_IN_PLAIN_TEXT)
    return tuple(path.removeprefix("spec.") for path in paths)


def _values(
    resolved: Resolved, sizing: Sizing, secrets: Sequence[str], width: int
) -> Iterator[str]:
    sized = {
        "resources.cpu": sizing.cpu,
        "resources.memory": sizing.memory,
        "resources.shmSize": sizing.shm,
    }
    path_width = max(map(len, resolved.origins))
    value_width = width - len(INDENT) - path_width - ORIGIN_WIDTH - 4
    values = resolved.values()
    for path, resolved_value in values.items():
        value, origin = sized.get(path) or resolved_value, resolved.origins[path]
        is_secret = any(secret == path or secret.startswith(f"{path}.") for secret in secrets)
        shown = HIDDEN if is_secret else _shown(redacted_value(path, value, values))
        first, *rest = _wrapped(shown, value_width)
        yield f"{INDENT}{path:<{path_width}}  {origin:<{ORIGIN_WIDTH}}  {first}".rstrip()
        margin = " " * (len(INDENT) + path_width + ORIGIN_WIDTH + 4)
        yield from (margin + line for line in rest)


def _indented(lines: Sequence[str], width: int) -> Iterator[str]:
    for line in lines:
        yield from textwrap.wrap(
            line,
            width,
            initial_indent=INDENT,
            subsequent_indent=INDENT * 2,
            break_on_hyphens=False,
        )


def _violation_lines(violations: Sequence[Violation], width: int) -> Iterator[str]:
    for violation in violations:
        text = f"{violation.path}: {violation.message}"
        yield from textwrap.wrap(text, width, initial_indent=INDENT, subsequent_indent=INDENT * 2)
        yield from textwrap.wrap(
            f"→ {violation.remedy}", width, initial_indent=INDENT * 2, subsequent_indent=INDENT * 3
        )


def _shown(value: Any) -> str:
    return value if isinstance(value, str) and value.isprintable() and value else json.dumps(value)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]
