"""Check ModelFamily: in which rows the model trains exactly, and whether the engine has it.

An experiment on the CPU answers the first, in a process of its own, because it imports torch.
"""

import ast
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raggrpo_api.memory.model_families import MEASURED_ARCHITECTURES, ModelFamily, model_family
from raggrpo_api.spec.resources import Device
from raggrpo_api.spec.training import RowLayout
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.preflight import CheckId

from .finding import Finding, finding_for, not_evaluated

EXPERIMENT_SECONDS = 240
_TABLES = ("_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS", "_TRANSFORMERS_SUPPORTED_MODELS")
"""Of vLLM's registry: what generates text."""
_LIST = "docs/reference/models.md lists the families that train"


@dataclass(frozen=True, slots=True)
class Layout:
    """The rows in which the model trains exactly."""

    row_layout: RowLayout | None
    """None: in none."""
    why: str
    """Why not in shared-prefix rows, or in none; "" for shared-prefix rows."""


@dataclass(frozen=True, slots=True)
class FamilyCheck:
    """The check's outcome."""

    finding: Finding
    row_layout: RowLayout | None


def check_family(config: TrainerConfig) -> FamilyCheck:
    """Decide from config.json; without a readable one another check has failed."""
    folder = Path(config.model.path)
    try:
        raw = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return _not_evaluated("config.json cannot be read")
    if not isinstance(raw, dict):
        return _not_evaluated("config.json is not a JSON object")
    family = model_family(raw)
    if not family.architecture:
        problem = f"{folder}/config.json names no architecture: save the model with its class"
        return FamilyCheck(finding_for(CheckId.MODEL_FAMILY, [problem], ""), None)
    layout = best_layout(family, folder, config.data.max_sequence_length)
    on_cpu = config.resources.device is Device.CPU
    problems = [*_unusable(family, layout), *engine_problems(family, on_cpu=on_cpu)]
    evidence = family_evidence(family, layout, config.training.row_layout)
    return FamilyCheck(finding_for(CheckId.MODEL_FAMILY, problems, evidence), layout.row_layout)


def best_layout(family: ModelFamily, folder: Path, longest_row: int) -> Layout:
    """Return the best layout that is exact for rows of up to `longest_row` tokens."""
    limit = family.positions_change_at
    if limit is not None and longest_row > limit:
        why = (
            f"its rotary positions depend on the batch beyond {limit} tokens, and a row may have "
            f"{longest_row}: shorten data.maxPromptLength or maxResponseLength"
        )
        return Layout(None, why)
    if family.architecture in MEASURED_ARCHITECTURES and family.is_measured:
        found = Layout(RowLayout.SHARED_PREFIX, "")
    else:
        found = layout_from_experiment(family, experiment(folder))
    is_hidden = family.window is not None and family.window < longest_row
    if found.row_layout is RowLayout.SHARED_PREFIX and is_hidden:
        why = f"some layers see {family.window} tokens, and a row may have {longest_row}"
        return Layout(RowLayout.PADDED, why)
    return found


def experiment(folder: Path) -> dict[str, Any]:
    """Run `layout_check` on the model's configuration and return what it wrote."""
    command = [sys.executable, "-m", "raggrpo_trainer.policy.layout_check", str(folder)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, env=env, timeout=EXPERIMENT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return {"problem": f"a small copy of it took more than {EXPERIMENT_SECONDS} s"}
    try:
        found: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = (child.stderr.strip().splitlines() or ["no output"])[-1]
        return {"problem": f"this image's transformers cannot build it: {last[:200]}"}
    return found


def layout_from_experiment(family: ModelFamily, found: Mapping[str, Any]) -> Layout:
    """Choose the layout by what was measured (pure)."""
    if found["problem"]:
        return Layout(None, found["problem"])
    shared, padded = (found["layouts"][layout] for layout in RowLayout)
    if shared["is_exact"]:
        return Layout(RowLayout.SHARED_PREFIX, "")
    if not padded["is_exact"]:
        return Layout(None, f"not exact in padded rows either: {_measured(padded)}")
    if shared["problem"]:
        why = f"its attention cannot be computed in shared-prefix rows: {_measured(shared)}"
        return Layout(RowLayout.PADDED, why)
    if family.state_layers:
        kinds = ", ".join(family.state_layers)
        return Layout(RowLayout.PADDED, f"{kinds} layers carry state: {_measured(shared)}")
    return Layout(RowLayout.PADDED, f"not exact in shared-prefix rows: {_measured(shared)}")


def family_evidence(family: ModelFamily, layout: Layout, wanted: RowLayout) -> str:
    """Return the check's evidence: what status says about the rows."""
    rows = layout.row_layout or wanted
    text = f"{family.architecture}: {rows} rows"
    if layout.why:
        text += f" ({layout.why})"
    if family.num_experts:
        text += f"; {family.num_experts} experts, trained without the router's auxiliary loss"
    return f"{text}; {_engine()} has it"


def engine_problems(family: ModelFamily, *, on_cpu: bool) -> Iterator[str]:
    """Yield why the rollout engine cannot run the model, read without importing vLLM."""
    if family.architecture not in engine_architectures():
        yield f"{family.architecture}: {_engine()}, which generates completions, lacks it; {_LIST}"
    if family.architecture in MEASURED_ARCHITECTURES and family.activation not in ("", "silu"):
        yield f"hidden_act {family.activation}: {_engine()} computes this family with silu alone"
    if on_cpu:
        yield from _cpu_engine_problems(family)


def _cpu_engine_problems(family: ModelFamily) -> Iterator[str]:
    remedy = "take another model, or resources.device: GPU"
    if family.state_layers:
        kinds = ", ".join(family.state_layers)
        yield f"its {kinds} layers: {_engine()} has them for GPUs; {remedy}"
    if family.head_size and family.head_size not in (sizes := cpu_head_sizes()):
        known = ", ".join(map(str, sorted(sizes)))
        yield f"heads of size {family.head_size}: on CPUs {_engine()} knows {known}; {remedy}"


def engine_architectures() -> frozenset[str]:
    """Return the classes in vLLM's registry."""
    found: set[str] = set()
    for node in _parsed("model_executor/models/registry.py").body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Dict):
            continue
        if any(isinstance(name, ast.Name) and name.id in _TABLES for name in node.targets):
            keys = (key.value for key in node.value.keys if isinstance(key, ast.Constant))
            found |= {str(key) for key in keys}
    return frozenset(found)


def cpu_head_sizes() -> frozenset[int]:
    """Return the head sizes of vLLM's attention kernels for CPUs."""
    body = ast.walk(_parsed("v1/attention/backends/cpu_attn.py"))
    functions = (node for node in body if isinstance(node, ast.FunctionDef))
    [sizes] = [each for each in functions if each.name == "get_supported_head_sizes"]
    [answer] = [node.value for node in ast.walk(sizes) if isinstance(node, ast.Return)]
    assert answer is not None
    return frozenset(ast.literal_eval(answer))


def _parsed(file: str) -> ast.Module:
    """Return a module of vLLM without importing it, which would take 8 s and much memory."""
    spec = importlib.util.find_spec("vllm")
    [root] = (spec and spec.submodule_search_locations) or [""]
    return ast.parse((Path(root) / file).read_text())


def _unusable(family: ModelFamily, layout: Layout) -> Iterator[str]:
    if layout.row_layout is None:
        yield f"{family.architecture} cannot be trained: {layout.why}; {_LIST}"


def _measured(layout: Mapping[str, Any]) -> str:
    if layout["problem"]:
        return str(layout["problem"])[:200]
    return f"{layout['nats']:.2g} nats off, gradient {100 * layout['gradient_error']:.2g} %"


def _engine() -> str:
    names = importlib.metadata.packages_distributions().get("vllm", ["vllm"])
    return f"vLLM {importlib.metadata.version(names[0])}"


def _not_evaluated(why: str) -> FamilyCheck:
    return FamilyCheck(not_evaluated(CheckId.MODEL_FAMILY, why), None)
