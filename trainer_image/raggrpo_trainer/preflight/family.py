"""Check ModelFamily: the row layout in which training is exact, and support by the engine.

The layout is determined by an experiment on the CPU, in a separate process because it uses torch.
"""

import ast
import importlib.metadata
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raggrpo_api.memory.model_families import MEASURED_ARCHITECTURES, ModelFamily, model_family
from raggrpo_api.model_folder import CONFIG, UnsafeModel, read_model_json, require_safe_files
from raggrpo_api.spec.resources import Device
from raggrpo_api.spec.training import RowLayout
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.preflight import CheckId

from .experiment import run_experiment
from .finding import Finding, finding_for, not_evaluated

_REGISTRY_TABLES = (
    "_TEXT_GENERATION_MODELS",
    "_MULTIMODAL_MODELS",
    "_TRANSFORMERS_SUPPORTED_MODELS",
)
"""Tables of text generation models in vLLM's registry."""
_REMEDY = "use a model family listed in docs/reference/models.md"


@dataclass(frozen=True, slots=True)
class Layout:
    """The row layout in which training is exact."""

    row_layout: RowLayout | None
    """The layout; None if training is exact in no layout."""
    reason: str
    """Reason why shared-prefix rows, or all layouts, are not exact; "" if SharedPrefix is exact."""


@dataclass(frozen=True, slots=True)
class FamilyCheck:
    """The finding, and the row layout as a fact."""

    finding: Finding
    row_layout: RowLayout | None


def check_family(config: TrainerConfig) -> FamilyCheck:
    """Check the model family in config.json; check ModelReadable reports an unreadable file."""
    folder = Path(config.model.path)
    try:
        require_safe_files(folder)
        raw = read_model_json(folder / CONFIG)
    except UnsafeModel:
        return _not_evaluated("config.json cannot be read")
    family = model_family(raw)
    if not family.architecture:
        problem = (
            f"{folder}/config.json has no architectures: save the model with save_pretrained()"
        )
        return FamilyCheck(finding_for(CheckId.MODEL_FAMILY, [problem], ""), None)
    layout = best_layout(family, folder, config.data.max_sequence_length)
    on_cpu = config.resources.device is Device.CPU
    problems = [*_layout_problems(family, layout), *engine_problems(family, on_cpu=on_cpu)]
    evidence = family_evidence(family, layout, config.training.row_layout)
    return FamilyCheck(finding_for(CheckId.MODEL_FAMILY, problems, evidence), layout.row_layout)


def best_layout(family: ModelFamily, folder: Path, longest_row: int) -> Layout:
    """Return the best layout that is exact for rows of up to `longest_row` tokens."""
    limit = family.positions_change_at
    if limit is not None and longest_row > limit:
        reason = (
            f"its rotary positions depend on the batch beyond {limit} tokens, but rows may have "
            f"{longest_row} tokens: decrease data.maxPromptLength or maxResponseLength"
        )
        return Layout(None, reason)
    if family.architecture in MEASURED_ARCHITECTURES and family.is_measured:
        layout = Layout(RowLayout.SHARED_PREFIX, "")
    else:
        layout = layout_from_experiment(family, run_experiment("layout_check", str(folder)))
    is_windowed = family.window is not None and family.window < longest_row
    if layout.row_layout is RowLayout.SHARED_PREFIX and is_windowed:
        reason = f"its attention window has {family.window} tokens, but rows may have {longest_row}"
        return Layout(RowLayout.PADDED, reason)
    return layout


def layout_from_experiment(family: ModelFamily, result: Mapping[str, Any]) -> Layout:
    """Return the layout for a result of `layout_check`. Pure."""
    if result["problem"]:
        return Layout(None, result["problem"])
    shared, padded = (result["layouts"][layout] for layout in RowLayout)
    if shared["is_exact"]:
        return Layout(RowLayout.SHARED_PREFIX, "")
    if not padded["is_exact"]:
        return Layout(None, f"training is not exact in padded rows either: {_error(padded)}")
    if shared["problem"]:
        reason = f"its attention does not support shared-prefix rows: {_error(shared)}"
        return Layout(RowLayout.PADDED, reason)
    if family.state_layers:
        kinds = ", ".join(family.state_layers)
        return Layout(RowLayout.PADDED, f"its {kinds} layers have state: {_error(shared)}")
    return Layout(
        RowLayout.PADDED, f"training is not exact in shared-prefix rows: {_error(shared)}"
    )


def family_evidence(family: ModelFamily, layout: Layout, specified: RowLayout) -> str:
    """Return the evidence of the check: architecture, row layout, experts, engine."""
    rows = layout.row_layout or specified
    text = f"{family.architecture}: {rows} rows"
    if layout.reason:
        text += f" ({layout.reason})"
    if family.num_experts:
        text += f"; {family.num_experts} experts, trained without the router's auxiliary loss"
    return f"{text}; supported by {_engine()}"


def engine_problems(family: ModelFamily, *, on_cpu: bool) -> Iterator[str]:
    """Yield the reasons why the rollout engine cannot run the model. Does not import vLLM."""
    if family.architecture not in engine_architectures():
        engine = f"the rollout engine, {_engine()}"
        yield f"{family.architecture} is not supported by {engine}; {_REMEDY}"
    if family.architecture in MEASURED_ARCHITECTURES and family.activation not in ("", "silu"):
        yield f"hidden_act {family.activation}: {_engine()} supports only silu for this family"
    if on_cpu:
        yield from _cpu_engine_problems(family)


def _cpu_engine_problems(family: ModelFamily) -> Iterator[str]:
    remedy = "use another model, or set resources.device: GPU"
    if family.state_layers:
        kinds = ", ".join(family.state_layers)
        yield f"{kinds} layers: {_engine()} supports them only on GPUs; {remedy}"
    if family.head_size and family.head_size not in (sizes := cpu_head_sizes()):
        known = ", ".join(map(str, sorted(sizes)))
        yield f"head size {family.head_size}: {_engine()} supports only {known} on CPUs; {remedy}"


def engine_architectures() -> frozenset[str]:
    """Return the architectures in vLLM's registry."""
    architectures: set[str] = set()
    for node in _parse_vllm_module("model_executor/models/registry.py").body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Dict):
            continue
        if any(isinstance(name, ast.Name) and name.id in _REGISTRY_TABLES for name in node.targets):
            keys = (key.value for key in node.value.keys if isinstance(key, ast.Constant))
            architectures |= {str(key) for key in keys}
    return frozenset(architectures)


def cpu_head_sizes() -> frozenset[int]:
    """Return the head sizes that vLLM's attention kernels for CPUs support."""
    body = ast.walk(_parse_vllm_module("v1/attention/backends/cpu_attn.py"))
    functions = (node for node in body if isinstance(node, ast.FunctionDef))
    [sizes] = [each for each in functions if each.name == "get_supported_head_sizes"]
    [value] = [node.value for node in ast.walk(sizes) if isinstance(node, ast.Return)]
    assert value is not None
    return frozenset(ast.literal_eval(value))


def _parse_vllm_module(file: str) -> ast.Module:
    """Return the syntax tree of a vLLM module; importing it would take 8 s and much memory."""
    spec = importlib.util.find_spec("vllm")
    [root] = (spec and spec.submodule_search_locations) or [""]
    return ast.parse((Path(root) / file).read_text())


def _layout_problems(family: ModelFamily, layout: Layout) -> Iterator[str]:
    if layout.row_layout is None:
        yield f"{family.architecture} cannot be trained: {layout.reason}; {_REMEDY}"


def _error(layout: Mapping[str, Any]) -> str:
    if layout["problem"]:
        return str(layout["problem"])[:200]
    gradients = f"gradients by {100 * layout['gradient_error']:.2g} %"
    return f"logprobs differ by {layout['nats']:.2g} nats, {gradients}"


def _engine() -> str:
    names = importlib.metadata.packages_distributions().get("vllm", ["vllm"])
    return f"vLLM {importlib.metadata.version(names[0])}"


def _not_evaluated(reason: str) -> FamilyCheck:
    return FamilyCheck(not_evaluated(CheckId.MODEL_FAMILY, reason), None)
