"""Preflight decisions for a small configuration of every causal model family of transformers.

PYTHONPATH=tests python -m support.engines.model_families --table docs/reference/models.md
"""

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from raggrpo_api.memory.model_families import model_family
from raggrpo_api.spec.training import RowLayout
from raggrpo_trainer.policy.layout_check import FamilyResult, check_family
from raggrpo_trainer.preflight.family import Layout, engine_architectures, layout_from_experiment

TABLE_MARKER = "<!-- made by `make models`; do not edit below -->"
_MIXED = {"num_hidden_layers": 4, "layer_types": ["conv", "conv", "full_attention", "conv"]}
GIVEN: dict[str, dict[str, Any]] = {
    # Values for fields without a default, or whose default no published model uses.
    "bamba": {"num_hidden_layers": 4, "attn_layer_indices": [2]},
    "deepseek_v2": {"num_experts_per_tok": 6, "first_k_dense_replace": 1, "topk_method": "greedy"},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "lfm2": _MIXED,
    "lfm2_moe": _MIXED,
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 48},
}


@dataclass(frozen=True)
class Measured:
    """Preflight result and row layout of one model family."""

    model_type: str
    architecture: str
    result: FamilyResult
    layout: Layout
    in_engine: bool

    @property
    def verdict(self) -> str:
        if self.layout.row_layout is None or not self.in_engine:
            return "rejected"
        return "shared-prefix" if self.layout.row_layout is RowLayout.SHARED_PREFIX else "padded"

    @property
    def why(self) -> str:
        missing = "" if self.in_engine else "not in vLLM"
        return "; ".join(filter(None, [self.layout.reason, missing]))


def families() -> Iterator[tuple[str, str]]:
    """Yield (model type, architecture) of each causal model family."""
    yield from MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()


def config_of(model_type: str) -> PreTrainedConfig:
    config: PreTrainedConfig = CONFIG_MAPPING[model_type](**GIVEN.get(model_type, {}))
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]]
    return config


def measure(model_type: str) -> Measured:
    architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]
    in_engine = architecture in engine_architectures()
    try:
        config = config_of(model_type)
    except Exception as error:  # some classes lack usable defaults
        result = FamilyResult(architecture, f"no default configuration: {error}"[:200])
        return Measured(model_type, architecture, result, Layout(None, result.problem), in_engine)
    result = check_family(config)
    results = {
        "problem": result.problem,
        "layouts": {
            layout: {
                "is_exact": each.is_exact,
                "nats": each.nats,
                "gradient_error": each.gradient_error,
                "problem": each.problem,
            }
            for layout, each in (result.layouts or {}).items()
        },
    }
    layout = layout_from_experiment(model_family(config.to_dict()), results)
    return Measured(model_type, architecture, result, layout, in_engine)


def table(measured: list[Measured]) -> str:
    """Return the table in Markdown."""
    counts = {v: sum(m.verdict == v for m in measured) for v in ("shared-prefix", "padded")}
    lines = [
        f"{len(measured)} families: {counts['shared-prefix']} train in shared-prefix rows, "
        f"{counts['padded']} in padded rows, "
        f"{len(measured) - sum(counts.values())} are rejected by preflight.",
        "",
        "| type | class | rows | shared-prefix: nats, gradient | padded: nats, gradient | why |",
        "|---|---|---|---|---|---|",
    ]
    for each in measured:
        numbers = [_numbers(each.result, layout) for layout in RowLayout]
        why = " ".join(each.why.split()).replace("|", "/")[:160]
        cells = [f"`{each.model_type}`", f"`{each.architecture}`", each.verdict, *numbers, why]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _numbers(result: FamilyResult, layout: RowLayout) -> str:
    if not result.layouts:
        return "–"
    measured = result.layouts[layout]
    return "–" if measured.problem else f"{measured.nats:.1e}, {measured.gradient_error:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path, required=True)
    path = parser.parse_args().table
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    measured = [measure(model_type) for model_type, _ in families()]
    head = path.read_text().split(TABLE_MARKER)[0]
    path.write_text(f"{head}{TABLE_MARKER}\n\n{table(measured)}")


if __name__ == "__main__":
    main()
