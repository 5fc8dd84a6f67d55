"""Scripts and configurations modeled on verl's published examples."""

GSM8K = """
set -x

python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_files=$HOME/data/gsm8k/train.parquet \\
    data.val_files=$HOME/data/gsm8k/test.parquet \\
    data.train_batch_size=1024 \\
    data.max_prompt_length=512 \\
    data.max_response_length=1024 \\
    data.filter_overlong_prompts=True \\
    data.truncation='error' \\
    actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct \\
    actor_rollout_ref.actor.optim.lr=1e-6 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=40 \\
    actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.actor.kl_loss_coef=0.001 \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \\
    actor_rollout_ref.rollout.n=5 \\
    trainer.critic_warmup=0 \\
    trainer.logger=['console','wandb'] \\
    trainer.project_name='verl_grpo_example_gsm8k' \\
    trainer.experiment_name='qwen2_7b_function_rm' \\
    trainer.n_gpus_per_node=8 \\
    trainer.nnodes=1 \\
    trainer.save_freq=-1 \\
    trainer.test_freq=5 \\
    trainer.total_epochs=15 $@
"""
ARRAYS = """
#!/usr/bin/env bash
MODEL_PATH=${MODEL_PATH:-/mnt/models/Qwen3-4B}
TRAIN_FILE=${TRAIN_FILE:-$HOME/data/math/train.parquet}
ROLLOUT_N=${ROLLOUT_N:-5}
case "${DEVICE}" in
    npu)
        ROLLOUT_N=16
        ;;
esac
DATA=(
    data.train_files=${TRAIN_FILE}
    data.max_prompt_length=512
)
MODEL=(
    actor_rollout_ref.model.path=${MODEL_PATH}
    actor_rollout_ref.rollout.n=${ROLLOUT_N}
)
python3 -m verl.trainer.main_ppo "${DATA[@]}" "${MODEL[@]}" "$@"
"""
SEARCH = """
hydra:
  searchpath: [file://verl/trainer/config]
defaults: [ppo_trainer, _self_]
data:
  train_files: ~/data/searchR1_processed_direct/train.parquet
  max_prompt_length: 4096
  max_response_length: 3000
  train_batch_size: 256
actor_rollout_ref:
  model: {path: /mnt/models/Qwen2.5-3B-Instruct}
  rollout:
    name: sglang
    n: 5
    prompt_length: ${data.max_prompt_length}
    multi_turn:
      enable: True
      max_assistant_turns: 3
      tool_config_path: config/tool_config/search_tool_config.yaml
trainer: {total_training_steps: 100, n_gpus_per_node: 8, test_freq: 999999}
"""
