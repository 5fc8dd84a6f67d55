"""A small repository with the layout of verl: scripts, configurations, config groups and tools."""

from collections.abc import Mapping
from pathlib import Path

SCRIPT = """
set -x
ROOT="$(pwd)"
CONFIGS="$ROOT/examples/lookup/config"
TOOLS="$CONFIGS/tools/lookup.yaml"

python3 -m verl.trainer.main_ppo \\
    --config-path="$CONFIGS" \\
    --config-name='lookup_grpo' \\
    data.train_files="$HOME/data/lookup/train.parquet" \\
    actor_rollout_ref.model.path=/mnt/models/small \\
    actor_rollout_ref.rollout.n=4 \\
    actor_rollout_ref.rollout.multi_turn.tool_config_path="$TOOLS" \\
    trainer.total_training_steps=60 $@
"""
FILES: Mapping[str, str] = {
    "examples/lookup/run.sh": SCRIPT,
    "examples/lookup/config/lookup_grpo.yaml": """
hydra:
  searchpath:
    - file://verl/trainer/config
defaults:
  - ppo_trainer
  - _self_
data:
  train_batch_size: 64
actor_rollout_ref:
  rollout:
    multi_turn: {enable: True, max_assistant_turns: 4}
""",
    "examples/lookup/config/tools/lookup.yaml": """
tools:
  - class_name: "verl.tools.search_tool.SearchTool"
    config:
      retrieval_service_url: http://retriever.rag:9000/retrieve
      num_workers: 32
      rate_limit: 32
      topk: 5
      timeout: 12
      type: native
    tool_schema:
      type: function
      function: {name: search, parameters: {type: object}}
""",
    "verl/trainer/config/ppo_trainer.yaml": """
defaults:
  - model_engine: dp
  - actor@actor_rollout_ref.actor: ${model_engine}_actor
  - data@data: rows
  - _self_
actor_rollout_ref:
  rollout: {n: 1, temperature: 0.8, top_k: -1}
algorithm: {gamma: 1.0, adv_estimator: grpo}
trainer:
  project_name: lookups
  experiment_name: first
  save_freq: 20
  n_gpus_per_node: 2
""",
    "verl/trainer/config/model_engine/dp.yaml": "# @package _global_\nmodel_engine: dp\n",
    "verl/trainer/config/data/rows.yaml": """
train_batch_size: 1024
max_prompt_length: 700
max_response_length: 300
train_files: ~/data/none.parquet
""",
    "verl/trainer/config/actor/dp_actor.yaml": """
defaults:
  - ../optim@optim: adam
  - actor
  - _self_
grad_clip: 0.5
""",
    "verl/trainer/config/actor/actor.yaml": "grad_clip: 1.0\nppo_mini_batch_size: 32\n",
    "verl/trainer/config/optim/adam.yaml": "lr: 3e-6\nbetas: [0.9, 0.99]\n",
}


def write_tree(root: Path, changes: Mapping[str, str | None] | None = None) -> Path:
    """Write the files with changes (None omits a file); return the path of the script."""
    for name, text in {**FILES, **(changes or {})}.items():
        if text is not None:
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return root / "examples/lookup/run.sh"
