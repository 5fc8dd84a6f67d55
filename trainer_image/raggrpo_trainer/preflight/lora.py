"""Check LoraTargets: the layers that get adapters (`training.lora`)."""

from pathlib import Path

from raggrpo_api.memory.model_families import model_family
from raggrpo_api.model_folder import CONFIG, UnsafeModel, read_model_json, require_safe_files
from raggrpo_api.spec.lora import LoraSpec
from raggrpo_api.trainer.preflight import CheckId

from .experiment import run_experiment
from .finding import Finding, finding_for, not_evaluated


def check_lora(folder: Path, lora: LoraSpec) -> Finding:
    """Return which layers get adapters; check ModelReadable reports an unreadable folder."""
    try:
        require_safe_files(folder)
        family = model_family(read_model_json(folder / CONFIG))
    except UnsafeModel:
        return not_evaluated(CheckId.LORA_TARGETS, "config.json cannot be read")
    result = run_experiment("lora_check", str(folder), lora.model_dump_json(by_alias=True))
    if problem := result["problem"]:
        prefix = "" if problem.startswith("training.lora") else "training.lora: "
        return finding_for(CheckId.LORA_TARGETS, [prefix + problem], "")
    share = 100 * result["adapted_parameters"] / result["parameters"]
    evidence = (
        f"adapters of rank {lora.rank} in {result['layers']} linear layers with {share:.3g} % of "
        "the model's parameters"
    )
    if family.num_experts:
        evidence += (
            f"; the {family.num_experts} experts are not adapted, since transformers stores them "
            "in one tensor per layer: train all parameters if they matter"
        )
    return finding_for(CheckId.LORA_TARGETS, [], evidence, is_unusual=bool(family.num_experts))
