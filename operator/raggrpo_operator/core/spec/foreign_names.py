"""What other trainers call the fields of a job: verl, TRL, Lightning. One table, two readers.

`parse` hints at our field for a foreign name, `importing` translates whole configurations.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Foreign:
    """A field of another trainer's configuration."""

    path: str = ""
    """Ours below `spec`; empty: there is none."""
    note: str = ""
    """How the value differs, or why there is no counterpart."""


_ACTOR: Final = "actor_rollout_ref.actor"
_ROLLOUT: Final = "actor_rollout_ref.rollout"
_MODEL: Final = "actor_rollout_ref.model"
_PACKED: Final = "rows are packed by tokens: training.tokensPerMicroBatch"
_NO_OFFLOAD: Final = "state stays on the device; gradientCheckpointing saves memory"
_NOT_ADAPTIVE: Final = (
    "the rate is a function of the step (training.learningRateSchedule), AdamW adapts the rest"
)
_LOGPROBS: Final = "log-probabilities are computed with the trainer's own token budget"

VERL: Final[Mapping[str, Foreign]] = {
    "data.train_files": Foreign("data.trainFiles"),
    "data.val_files": Foreign("data.validationFiles"),
    "data.train_batch_size": Foreign("data.trainBatchSize"),
    "data.max_prompt_length": Foreign("data.maxPromptLength"),
    "data.max_response_length": Foreign("data.maxResponseLength"),
    "data.dataloader_num_workers": Foreign("data.numWorkers"),
    "data.train_max_samples": Foreign(
        "data.maxSamples", "verl takes a random choice, we the first"
    ),
    "data.val_max_samples": Foreign("validation.maxSamples"),
    "data.prompt_key": Foreign("data.columns.prompt"),
    "data.truncation": Foreign("data.allowTruncation", "error: false; we cut the question's end"),
    "data.seed": Foreign("training.seed"),
    "data.filter_overlong_prompts": Foreign(
        note="no row is dropped silently: preflight names the longest, data.allowTruncation cuts it"
    ),
    "data.val_batch_size": Foreign(note="validation generates all its prompts together"),
    "data.shuffle": Foreign(note="prompts are always shuffled, by training.seed"),
    "data.return_raw_chat": Foreign(note="conversations are always kept as they are"),
    "data.apply_chat_template_kwargs": Foreign(note="write the arguments into data.chatTemplate"),
    "data.reward_fn_key": Foreign(note="one reward for all rows: reward.functions"),
    f"{_MODEL}.path": Foreign("model.path"),
    f"{_MODEL}.custom_chat_template": Foreign("data.chatTemplate"),
    f"{_MODEL}.enable_gradient_checkpointing": Foreign("training.gradientCheckpointing"),
    f"{_MODEL}.use_remove_padding": Foreign(note="rows never hold padding"),
    f"{_MODEL}.lora_rank": Foreign(note="all parameters are trained; there is no LoRA yet"),
    f"{_MODEL}.trust_remote_code": Foreign(note="code from model folders is never run"),
    f"{_ACTOR}.optim.lr": Foreign("training.learningRate"),
    f"{_ACTOR}.optim.weight_decay": Foreign("training.weightDecay"),
    f"{_ACTOR}.optim.lr_warmup_steps": Foreign("training.warmupSteps"),
    f"{_ACTOR}.optim.lr_warmup_steps_ratio": Foreign(
        note="set training.warmupSteps to the ratio times the run's steps"
    ),
    f"{_ACTOR}.optim.lr_scheduler_type": Foreign("training.learningRateSchedule"),
    f"{_ACTOR}.optim.warmup_style": Foreign("training.learningRateSchedule"),
    f"{_ACTOR}.optim.min_lr_ratio": Foreign("training.minLearningRateRatio"),
    f"{_ACTOR}.optim.num_cycles": Foreign(note="Cosine is half a period, verl's 0.5"),
    f"{_ACTOR}.optim.total_training_steps": Foreign("training.decaySteps"),
    f"{_ACTOR}.ppo_mini_batch_size": Foreign("training.miniBatchPrompts"),
    f"{_ACTOR}.ppo_max_token_len_per_gpu": Foreign("training.tokensPerMicroBatch"),
    f"{_ACTOR}.ppo_micro_batch_size_per_gpu": Foreign(note=_PACKED),
    f"{_ACTOR}.ppo_micro_batch_size": Foreign(note=_PACKED),
    f"{_ACTOR}.use_dynamic_bsz": Foreign(note=_PACKED),
    f"{_ACTOR}.clip_ratio_low": Foreign("algorithm.clipRatioLow"),
    f"{_ACTOR}.clip_ratio_high": Foreign("algorithm.clipRatioHigh"),
    f"{_ACTOR}.clip_ratio": Foreign("algorithm.clipRatioLow", "and algorithm.clipRatioHigh"),
    f"{_ACTOR}.clip_ratio_c": Foreign("algorithm.dualClip"),
    f"{_ACTOR}.loss_agg_mode": Foreign("algorithm.lossAggregation"),
    f"{_ACTOR}.kl_loss_coef": Foreign("algorithm.klCoefficient", "0 unless use_kl_loss"),
    f"{_ACTOR}.use_kl_loss": Foreign("algorithm.klCoefficient", "false is 0"),
    f"{_ACTOR}.kl_loss_type": Foreign(note="the penalty is k3, which verl calls low_var_kl"),
    f"{_ACTOR}.entropy_coeff": Foreign(note="there is no entropy bonus"),
    f"{_ACTOR}.grad_clip": Foreign("training.maxGradNorm"),
    f"{_ACTOR}.use_torch_compile": Foreign(note="training.compile compiles the layers instead"),
    f"{_ACTOR}.fsdp_config.param_offload": Foreign(note=_NO_OFFLOAD),
    f"{_ACTOR}.fsdp_config.optimizer_offload": Foreign(note=_NO_OFFLOAD),
    f"{_ACTOR}.fsdp_config.grad_offload": Foreign(note=_NO_OFFLOAD),
    f"{_ROLLOUT}.n": Foreign("rollout.n"),
    f"{_ROLLOUT}.temperature": Foreign("rollout.temperature"),
    f"{_ROLLOUT}.top_p": Foreign("rollout.topP"),
    f"{_ROLLOUT}.top_k": Foreign(note="sampling is not cut by rank"),
    f"{_ROLLOUT}.gpu_memory_utilization": Foreign("rollout.gpuMemoryUtilization"),
    f"{_ROLLOUT}.tensor_model_parallel_size": Foreign("rollout.tensorParallelSize"),
    f"{_ROLLOUT}.enable_chunked_prefill": Foreign("rollout.enableChunkedPrefill"),
    f"{_ROLLOUT}.enable_prefix_caching": Foreign("rollout.enablePrefixCaching"),
    f"{_ROLLOUT}.enforce_eager": Foreign("rollout.enforceEager"),
    f"{_ROLLOUT}.max_num_seqs": Foreign("rollout.maxNumSeqs"),
    f"{_ROLLOUT}.max_num_batched_tokens": Foreign("rollout.maxNumBatchedTokens"),
    f"{_ROLLOUT}.name": Foreign(note="the engine is always vLLM"),
    f"{_ROLLOUT}.dtype": Foreign("training.precision", "one field for trainer and engine"),
    f"{_ROLLOUT}.free_cache_engine": Foreign(note="follows resources.placement"),
    f"{_ROLLOUT}.max_model_len": Foreign(note="sized from data.maxPromptLength and response"),
    f"{_ROLLOUT}.load_format": Foreign(note="weights come from the ranks"),
    f"{_ROLLOUT}.log_prob_micro_batch_size": Foreign(note=_LOGPROBS),
    f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu": Foreign(note=_LOGPROBS),
    f"{_ROLLOUT}.multi_turn.max_assistant_turns": Foreign(
        "retrieval.maxTurns", "searches, one less than the policy's turns"
    ),
    f"{_ROLLOUT}.multi_turn.enable": Foreign("retrieval.mode", "true is Search"),
    f"{_ROLLOUT}.multi_turn.max_tool_response_length": Foreign(
        "retrieval.maxPassageTokens", "tokens of one passage, not characters of all"
    ),
    f"{_ROLLOUT}.multi_turn.tool_config_path": Foreign(
        note="give the service in retrieval.endpoints: url, topK, timeoutSeconds"
    ),
    "algorithm.hybrid_grpo.group_size": Foreign("algorithm.groupSize"),
    "algorithm.group_size": Foreign("algorithm.groupSize"),
    "algorithm.norm_adv_by_std_in_grpo": Foreign("algorithm.normalizeByStd"),
    "algorithm.adv_estimator": Foreign(note="the objective is always GRPO"),
    "algorithm.use_kl_in_reward": Foreign(note="the penalty is in the loss: klCoefficient"),
    "algorithm.kl_ctrl.kl_coef": Foreign(note="used by verl for KL in the reward only"),
    "trainer.n_gpus_per_node": Foreign("resources.gpusPerNode"),
    "trainer.nnodes": Foreign("resources.nodes"),
    "trainer.total_epochs": Foreign("training.epochs"),
    "trainer.total_training_steps": Foreign("training.totalSteps"),
    "trainer.save_freq": Foreign("checkpoint.everySteps", "there is no -1"),
    "trainer.test_freq": Foreign("validation.everySteps", "0 is off, as -1 and 999999 are there"),
    "trainer.val_before_train": Foreign("validation.beforeTraining"),
    "trainer.default_local_dir": Foreign("checkpoint.path", "absolute, on a volume"),
    "trainer.max_actor_ckpt_to_keep": Foreign("checkpoint.keepLast", "2 or more"),
    "trainer.project_name": Foreign("monitoring.wandb.project", "only if W&B is wanted"),
    "trainer.experiment_name": Foreign(note="the job's metadata.name"),
    "trainer.logger": Foreign(
        note="history and TensorBoard are always written; W&B needs monitoring.wandb.project and "
        "WANDB_API_KEY in env by secretKeyRef"
    ),
    "trainer.critic_warmup": Foreign(note="GRPO has no critic"),
    "trainer.resume_mode": Foreign(note="a job always goes on from its newest checkpoint"),
    "custom_reward_function.path": Foreign(
        "reward.codeFrom.path", "its folder; the function takes one sample and is named in python"
    ),
}
"""Fields of verl's configuration by their full name."""

OTHERS: Final[Mapping[str, Foreign]] = {
    "hybrid_grpo": Foreign("algorithm.groupSize", "from its group_size"),
    "num_generations": Foreign("rollout.n"),
    "max_completion_length": Foreign("data.maxResponseLength"),
    "beta": Foreign("algorithm.klCoefficient"),
    "epsilon": Foreign("algorithm.clipRatioLow"),
    "epsilon_high": Foreign("algorithm.clipRatioHigh"),
    "scale_rewards": Foreign("algorithm.normalizeByStd"),
    "loss_type": Foreign("algorithm.lossAggregation"),
    "num_train_epochs": Foreign("training.epochs"),
    "max_steps": Foreign("training.totalSteps"),
    "max_epochs": Foreign("training.epochs"),
    "save_steps": Foreign("checkpoint.everySteps"),
    "every_n_train_steps": Foreign("checkpoint.everySteps"),
    "save_total_limit": Foreign("checkpoint.keepLast"),
    "save_top_k": Foreign("checkpoint.keepLast", "the best is kept besides: keepBest, bestBy"),
    "monitor": Foreign("checkpoint.bestBy", "Reward or a validation's score; never the loss"),
    "metric_for_best_model": Foreign("checkpoint.bestBy", "more is always better"),
    "greater_is_better": Foreign(note="what checkpoint.bestBy names is always better when larger"),
    "load_best_model_at_end": Foreign(
        note="the newest model is exported; status.bestStep names the best one's checkpoint"
    ),
    "save_best_only": Foreign("checkpoint.keepBest", "the newest are kept besides: keepLast"),
    "output_dir": Foreign("checkpoint.path"),
    "model_name_or_path": Foreign("model.path", "a folder"),
    "vllm_gpu_memory_utilization": Foreign("rollout.gpuMemoryUtilization"),
    "per_device_train_batch_size": Foreign("data.trainBatchSize", "prompts of a whole step"),
    "accumulate_grad_batches": Foreign(note=_PACKED),
    "gradient_accumulation_steps": Foreign(note=_PACKED),
    "gradient_clip_val": Foreign("training.maxGradNorm"),
    "batch_size": Foreign("data.trainBatchSize"),
    "num_workers": Foreign("data.numWorkers"),
    "max_length": Foreign("data.maxPromptLength", "and data.maxResponseLength"),
    "max_seq_length": Foreign("data.maxPromptLength", "and data.maxResponseLength"),
    "val_check_interval": Foreign("validation.everySteps"),
    "limit_val_batches": Foreign("validation.maxSamples", "prompts"),
    "log_every_n_steps": Foreign("monitoring.logEverySteps"),
    "log_level": Foreign("monitoring.logLevel"),
    "logging_level": Foreign("monitoring.logLevel"),
    "verbosity": Foreign("monitoring.logLevel"),
    "history_window": Foreign("monitoring.historyWindow"),
    "history_size": Foreign("monitoring.historyWindow"),
    "window_size": Foreign("monitoring.historyWindow"),
    "flush_secs": Foreign("monitoring.tensorboardFlushSeconds"),
    "devices": Foreign("resources.gpusPerNode"),
    "num_nodes": Foreign("resources.nodes"),
    "pin_memory": Foreign(note="on GPUs every batch goes through pinned memory"),
    "non_blocking": Foreign(note="on GPUs copies never block"),
    "persistent_workers": Foreign(
        note="data is prepared in threads of the driver, which live as long as it"
    ),
    "model_output": Foreign("monitoring.debug.modelOutput"),
    "rag_calls": Foreign("monitoring.debug.ragCalls"),
    "verbose_logging": Foreign("monitoring.debug"),
    "lr_scheduler": Foreign("training.learningRateSchedule"),
    "lr_schedule": Foreign("training.learningRateSchedule"),
    "warmup_steps": Foreign("training.warmupSteps"),
    "warmup_ratio": Foreign(note="set training.warmupSteps to the ratio times the run's steps"),
    "min_lr": Foreign("training.minLearningRateRatio", "as a share of learningRate"),
    "lr_decay_iters": Foreign("training.decaySteps"),
    "adaptive_learning_rate": Foreign(note=_NOT_ADAPTIVE),
    "adaptive_lr": Foreign(note=_NOT_ADAPTIVE),
    "precision": Foreign("training.precision", "16-mixed is FP16, bf16-mixed BF16"),
    "bf16": Foreign("training.precision", "BF16"),
    "fp16": Foreign("training.precision"),
    "amp": Foreign("training.precision", "one field for trainer and engine, which cannot conflict"),
}
"""Fields of TRL and Lightning by their last name."""

VALUES: Final[Mapping[str, str]] = {
    "16-mixed": "FP16, or BF16 where the device has it; one field serves trainer and engine",
    "16": "FP16, or BF16 where the device has it; one field serves trainer and engine",
    "bf16-mixed": "BF16",
    "bfloat16": "BF16",
    "float16": "FP16",
    "32": "FP32",
    "32-true": "FP32",
    "float32": "FP32",
    "recommended": "Fast",
    "recommended_fast": "Fast",
    "max_performance": "MaxPerformance",
    "maximum_performance": "MaxPerformance",
    "low_memory": "MemoryLimited",
    "memory_limited": "MemoryLimited",
    "debugging": "Debug",
    "minimal": "Light",
}
"""What other trainers' words for a choice are here."""

_BY_LAST: Final[Mapping[str, Foreign]] = {
    **{name.rpartition(".")[2]: foreign for name, foreign in reversed(list(VERL.items()))},
    **OTHERS,
}


def hint_for(name: str) -> str:
    """Return what to write instead of a foreign field, given by its last name; else nothing."""
    found = _BY_LAST.get(name)
    if found is None:
        return ""
    if not found.path:
        return f"remove it: {found.note}"
    note = f" ({found.note})" if found.note else ""
    return f"here it is spec.{found.path}{note}"
