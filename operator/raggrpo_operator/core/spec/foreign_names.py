"""Fields of other trainers (verl, TRL, Lightning) and their counterparts in a job.

Used by `parse` for hints and by `importing` to translate configurations.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pydantic.alias_generators import to_snake


@dataclass(frozen=True, slots=True)
class ForeignField:
    """A field in the configuration of another trainer."""

    path: str = ""
    """Path of the counterpart below `spec`, or "" without one."""
    note: str = ""
    """How the value differs, or why there is no counterpart."""
    values: Mapping[bool, str] | None = None
    """The counterpart's value by the foreign value; None: values are equal, or see the note."""


_ACTOR: Final = "actor_rollout_ref.actor"
_ROLLOUT: Final = "actor_rollout_ref.rollout"
_MODEL: Final = "actor_rollout_ref.model"
_PACKED: Final = "rows are packed up to the token budget training.tokensPerMicroBatch"
_ALL_LINEAR: Final = "a list of layers; [AllLinear] for all-linear"
_ONLY_LINEAR: Final = "only linear layers get adapters (training.lora.targets)"
_NO_EXCLUSION: Final = "training.lora.targets lists the layers that get adapters"
_NO_DROPOUT: Final = "adapters have no dropout"
_NO_ADAPTER: Final = "adapters start at zero; merge the adapter into the model of model.path"
_ONLY_ADAPTERS: Final = "with training.lora, only the adapters are trained"
_NOT_QUANTIZED: Final = (
    "a quantized model cannot be trained; with training.lora, the model is frozen in BF16"
)
_ORIGINAL_LORA: Final = "adapters are those of the LoRA paper, scaled by alpha / rank"
_FOLDER_OR_SOURCE: Final = "a folder; or model.source for a hub: hf://org/name@revision"
_DATA_SET: Final = "hf://datasets/org/name#split=train"
_SPLIT: Final = "hf://datasets/org/name#config=NAME&split=NAME"
_TOKEN: Final = "pass the token as HF_TOKEN in env, with secretKeyRef"
_NO_OFFLOAD: Final = "state stays on the GPU; gradientCheckpointing saves memory"
_NOT_ADAPTIVE: Final = "the learning rate depends on the step only (training.learningRateSchedule)"
_NO_LENGTH_PENALTY: Final = (
    "no reward depends on the length; a reward function of type Python can subtract a penalty"
)
_LOGPROBS: Final = "logprobs use the token budget of the trainer"

VERL_FIELDS: Final[Mapping[str, ForeignField]] = {
    "data.train_files": ForeignField("data.trainFiles"),
    "data.val_files": ForeignField("data.validationFiles"),
    "data.train_batch_size": ForeignField("data.trainBatchSize"),
    "data.max_prompt_length": ForeignField("data.maxPromptLength"),
    "data.max_response_length": ForeignField("data.maxResponseLength"),
    "data.dataloader_num_workers": ForeignField("data.numWorkers"),
    "data.train_max_samples": ForeignField(
        "data.maxSamples", "verl selects rows at random; a job uses the first rows"
    ),
    "data.val_max_samples": ForeignField("validation.maxSamples"),
    "data.prompt_key": ForeignField("data.columns.prompt"),
    "data.truncation": ForeignField(
        "data.allowTruncation", "error is false; otherwise the end of the question is cut"
    ),
    "data.seed": ForeignField("training.seed"),
    "data.filter_overlong_prompts": ForeignField(
        note="no row is dropped; data.allowTruncation shortens prompts that are too long"
    ),
    "data.val_batch_size": ForeignField(note="validation generates all its prompts together"),
    "data.shuffle": ForeignField(note="prompts are always shuffled, seeded with training.seed"),
    "data.return_raw_chat": ForeignField(note="conversations are always used unchanged"),
    "data.apply_chat_template_kwargs": ForeignField(note="set the arguments in data.chatTemplate"),
    "data.apply_chat_template_kwargs.enable_thinking": ForeignField(
        note="set data.chatTemplate to the model's template with {% set enable_thinking = false %} "
        "(or true) before it"
    ),
    "data.reward_fn_key": ForeignField(note="all rows use the rewards in reward.functions"),
    f"{_MODEL}.path": ForeignField("model.path"),
    f"{_MODEL}.custom_chat_template": ForeignField("data.chatTemplate"),
    f"{_MODEL}.enable_gradient_checkpointing": ForeignField("training.gradientCheckpointing"),
    f"{_MODEL}.use_remove_padding": ForeignField(note="rows have no padding"),
    f"{_MODEL}.lora_rank": ForeignField("training.lora.rank", "0 trains all parameters"),
    f"{_MODEL}.lora_alpha": ForeignField("training.lora.alpha"),
    f"{_MODEL}.target_modules": ForeignField("training.lora.targets", _ALL_LINEAR),
    f"{_MODEL}.exclude_modules": ForeignField(note=_NO_EXCLUSION),
    f"{_MODEL}.target_parameters": ForeignField(note=_ONLY_LINEAR),
    f"{_MODEL}.lora_adapter_path": ForeignField(note=_NO_ADAPTER),
    f"{_MODEL}.lora.rank": ForeignField("training.lora.rank", "0 trains all parameters"),
    f"{_MODEL}.lora.alpha": ForeignField("training.lora.alpha"),
    f"{_MODEL}.lora.target_modules": ForeignField("training.lora.targets", _ALL_LINEAR),
    f"{_MODEL}.lora.exclude_modules": ForeignField(note=_NO_EXCLUSION),
    f"{_MODEL}.lora.dropout": ForeignField(note=_NO_DROPOUT),
    f"{_MODEL}.lora.adapter_path": ForeignField(note=_NO_ADAPTER),
    f"{_MODEL}.lora.merge": ForeignField(note="engines always receive merged weights"),
    f"{_MODEL}.trust_remote_code": ForeignField(note="code from model folders is never run"),
    f"{_ACTOR}.optim.lr": ForeignField("training.learningRate"),
    f"{_ACTOR}.optim.weight_decay": ForeignField("training.weightDecay"),
    f"{_ACTOR}.optim.lr_warmup_steps": ForeignField("training.warmupSteps"),
    f"{_ACTOR}.optim.lr_warmup_steps_ratio": ForeignField(
        note="set training.warmupSteps to the ratio times the run's steps"
    ),
    f"{_ACTOR}.optim.lr_scheduler_type": ForeignField("training.learningRateSchedule"),
    f"{_ACTOR}.optim.warmup_style": ForeignField("training.learningRateSchedule"),
    f"{_ACTOR}.optim.min_lr_ratio": ForeignField("training.minLearningRateRatio"),
    f"{_ACTOR}.optim.num_cycles": ForeignField(
        note="Cosine always decays over half a period, which is num_cycles=0.5 in verl"
    ),
    f"{_ACTOR}.optim.total_training_steps": ForeignField("training.decaySteps"),
    f"{_ACTOR}.ppo_mini_batch_size": ForeignField("training.miniBatchPrompts"),
    f"{_ACTOR}.ppo_max_token_len_per_gpu": ForeignField("training.tokensPerMicroBatch"),
    f"{_ACTOR}.ppo_micro_batch_size_per_gpu": ForeignField(note=_PACKED),
    f"{_ACTOR}.ppo_micro_batch_size": ForeignField(note=_PACKED),
    f"{_ACTOR}.use_dynamic_bsz": ForeignField(note=_PACKED),
    f"{_ACTOR}.clip_ratio_low": ForeignField("algorithm.clipRatioLow"),
    f"{_ACTOR}.clip_ratio_high": ForeignField("algorithm.clipRatioHigh"),
    f"{_ACTOR}.clip_ratio": ForeignField("algorithm.clipRatioLow", "and algorithm.clipRatioHigh"),
    f"{_ACTOR}.clip_ratio_c": ForeignField("algorithm.dualClip"),
    f"{_ACTOR}.loss_agg_mode": ForeignField("algorithm.lossAggregation"),
    f"{_ACTOR}.kl_loss_coef": ForeignField(
        "algorithm.klCoefficient", "0 unless use_kl_loss is true"
    ),
    f"{_ACTOR}.use_kl_loss": ForeignField("algorithm.klCoefficient", "false corresponds to 0"),
    f"{_ACTOR}.kl_loss_type": ForeignField(note="the penalty is k3, which verl calls low_var_kl"),
    f"{_ACTOR}.entropy_coeff": ForeignField(note="there is no entropy bonus"),
    f"{_ACTOR}.grad_clip": ForeignField("training.maxGradNorm"),
    f"{_ACTOR}.use_torch_compile": ForeignField(
        note="training.compile compiles the layers instead"
    ),
    f"{_ACTOR}.fsdp_config.param_offload": ForeignField(note=_NO_OFFLOAD),
    f"{_ACTOR}.fsdp_config.optimizer_offload": ForeignField(note=_NO_OFFLOAD),
    f"{_ACTOR}.fsdp_config.grad_offload": ForeignField(note=_NO_OFFLOAD),
    f"{_ROLLOUT}.n": ForeignField("rollout.n"),
    f"{_ROLLOUT}.temperature": ForeignField("rollout.temperature"),
    f"{_ROLLOUT}.top_p": ForeignField("rollout.topP"),
    f"{_ROLLOUT}.top_k": ForeignField(note="top-k sampling is not supported"),
    f"{_ROLLOUT}.gpu_memory_utilization": ForeignField("rollout.gpuMemoryUtilization"),
    f"{_ROLLOUT}.tensor_model_parallel_size": ForeignField("rollout.tensorParallelSize"),
    f"{_ROLLOUT}.enable_chunked_prefill": ForeignField("rollout.enableChunkedPrefill"),
    f"{_ROLLOUT}.enable_prefix_caching": ForeignField("rollout.enablePrefixCaching"),
    f"{_ROLLOUT}.enforce_eager": ForeignField("rollout.enforceEager"),
    f"{_ROLLOUT}.max_num_seqs": ForeignField("rollout.maxNumSeqs"),
    f"{_ROLLOUT}.max_num_batched_tokens": ForeignField("rollout.maxNumBatchedTokens"),
    f"{_ROLLOUT}.name": ForeignField(note="the engine is always vLLM"),
    f"{_ROLLOUT}.dtype": ForeignField("training.precision", "one field for trainer and engine"),
    f"{_ROLLOUT}.free_cache_engine": ForeignField(note="resources.placement determines it"),
    f"{_ROLLOUT}.max_model_len": ForeignField(
        note="it is the sum of the two maximum lengths in data"
    ),
    f"{_ROLLOUT}.load_format": ForeignField(note="engines receive their weights from the ranks"),
    f"{_ROLLOUT}.log_prob_micro_batch_size": ForeignField(note=_LOGPROBS),
    f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu": ForeignField(note=_LOGPROBS),
    f"{_ROLLOUT}.multi_turn.max_assistant_turns": ForeignField(
        "retrieval.maxTurns", "counts searches, one less than the policy's turns"
    ),
    f"{_ROLLOUT}.multi_turn.enable": ForeignField("retrieval.mode", "true corresponds to Search"),
    f"{_ROLLOUT}.multi_turn.max_tool_response_length": ForeignField(
        "retrieval.maxPassageTokens", "counts tokens of one passage, not characters of all passages"
    ),
    f"{_ROLLOUT}.multi_turn.tool_config_path": ForeignField(
        note="specify the service in retrieval.endpoints: url, topK, timeoutSeconds"
    ),
    "algorithm.hybrid_grpo.group_size": ForeignField("algorithm.groupSize"),
    "algorithm.group_size": ForeignField("algorithm.groupSize"),
    "algorithm.norm_adv_by_std_in_grpo": ForeignField("algorithm.normalizeByStd"),
    "algorithm.adv_estimator": ForeignField(note="the objective is always GRPO"),
    "algorithm.use_kl_in_reward": ForeignField(
        note="the reward never contains a KL penalty; algorithm.klCoefficient adds one to the loss"
    ),
    "algorithm.kl_ctrl.kl_coef": ForeignField(note="verl uses it only for KL in the reward"),
    "algorithm.filter_groups": ForeignField(
        note="groups whose rewards are all equal are left out of the update, and no other prompts "
        "are sampled in their place"
    ),
    "reward_model.enable": ForeignField(
        note="a job loads no reward model; serve the model and specify a reward function of type "
        "Judge or Http"
    ),
    "reward_model.overlong_buffer": ForeignField(note=_NO_LENGTH_PENALTY),
    "reward_model.reward_kwargs.overlong_buffer_cfg": ForeignField(note=_NO_LENGTH_PENALTY),
    "trainer.n_gpus_per_node": ForeignField("resources.gpusPerNode"),
    "trainer.nnodes": ForeignField("resources.nodes"),
    "trainer.total_epochs": ForeignField("training.epochs"),
    "trainer.total_training_steps": ForeignField("training.totalSteps"),
    "trainer.save_freq": ForeignField("checkpoint.everySteps", "-1 is not supported"),
    "trainer.test_freq": ForeignField(
        "validation.everySteps", "0 disables validation, like -1 and 999999 in verl"
    ),
    "trainer.val_before_train": ForeignField("validation.beforeTraining"),
    "trainer.default_local_dir": ForeignField("checkpoint.path", "an absolute path on a volume"),
    "trainer.max_actor_ckpt_to_keep": ForeignField("checkpoint.keepLast", "2 or more"),
    "trainer.project_name": ForeignField("monitoring.wandb.project", "needed only for W&B"),
    "trainer.experiment_name": ForeignField(note="the job's metadata.name is used"),
    "trainer.logger": ForeignField(
        note="history and TensorBoard are always written; W&B needs monitoring.wandb.project and "
        "WANDB_API_KEY in env by secretKeyRef"
    ),
    "trainer.critic_warmup": ForeignField(note="GRPO has no critic"),
    "trainer.resume_mode": ForeignField(note="a job always resumes from its newest checkpoint"),
    "custom_reward_function.path": ForeignField(
        "reward.codeFrom.path",
        "the folder of the file; the function is specified in reward.functions[], with "
        "signature: Verl",
    ),
}
"""Fields of verl by full path."""

_ON_OFF: Final = {True: "Light", False: "Off"}
OTHER_FIELDS: Final[Mapping[str, ForeignField]] = {
    "hybrid_grpo": ForeignField("algorithm.groupSize", "the value of its group_size"),
    "num_generations": ForeignField("rollout.n"),
    "max_completion_length": ForeignField("data.maxResponseLength"),
    "beta": ForeignField("algorithm.klCoefficient"),
    "epsilon": ForeignField("algorithm.clipRatioLow"),
    "epsilon_high": ForeignField("algorithm.clipRatioHigh"),
    "scale_rewards": ForeignField("algorithm.normalizeByStd"),
    "loss_type": ForeignField("algorithm.lossAggregation"),
    "num_train_epochs": ForeignField("training.epochs"),
    "max_steps": ForeignField("training.totalSteps"),
    "max_epochs": ForeignField("training.epochs"),
    "save_steps": ForeignField("checkpoint.everySteps"),
    "every_n_train_steps": ForeignField("checkpoint.everySteps"),
    "save_total_limit": ForeignField("checkpoint.keepLast"),
    "max_checkpoints": ForeignField("checkpoint.keepLast"),
    "keep_last_n": ForeignField("checkpoint.keepLast"),
    "save_interval": ForeignField("checkpoint.everySteps"),
    "checkpoint_interval": ForeignField("checkpoint.everySteps"),
    "backup_interval": ForeignField("checkpoint.backup.everySteps"),
    "save_top_k": ForeignField(
        "checkpoint.keepLast", "keepBest and bestBy retain the best checkpoint in addition"
    ),
    "monitor": ForeignField("checkpoint.bestBy", "Reward or a validation score, never the loss"),
    "metric_for_best_model": ForeignField("checkpoint.bestBy", "always maximized"),
    "greater_is_better": ForeignField(note="checkpoint.bestBy is always maximized"),
    "load_best_model_at_end": ForeignField(
        note="the newest model is exported; status.bestStep names the best one's checkpoint"
    ),
    "save_best_only": ForeignField(
        "checkpoint.keepBest", "keepLast retains the newest checkpoints in addition"
    ),
    "output_dir": ForeignField("checkpoint.path"),
    "model_name_or_path": ForeignField("model.path", _FOLDER_OR_SOURCE),
    "hub_model_id": ForeignField("output.push", "hf://org/name"),
    "push_to_hub": ForeignField("output.push", "hf://org/name"),
    "output.private": ForeignField(note="a repository that a push creates is always private"),
    "vllm_gpu_memory_utilization": ForeignField("rollout.gpuMemoryUtilization"),
    "per_device_train_batch_size": ForeignField(
        "data.trainBatchSize", "counts the prompts of a whole step"
    ),
    "accumulate_grad_batches": ForeignField(note=_PACKED),
    "gradient_accumulation_steps": ForeignField(note=_PACKED),
    "gradient_clip_val": ForeignField("training.maxGradNorm"),
    "batch_size": ForeignField("data.trainBatchSize"),
    "num_workers": ForeignField("data.numWorkers"),
    "max_length": ForeignField("data.maxPromptLength", "and data.maxResponseLength"),
    "max_seq_length": ForeignField("data.maxPromptLength", "and data.maxResponseLength"),
    "max_sequence_length": ForeignField("data.maxPromptLength", "and data.maxResponseLength"),
    "val_check_interval": ForeignField("validation.everySteps"),
    "eval_steps": ForeignField("validation.everySteps"),
    "eval_interval": ForeignField("validation.everySteps"),
    "limit_val_batches": ForeignField("validation.maxSamples", "counts prompts"),
    "log_every_n_steps": ForeignField("monitoring.logEverySteps"),
    "log_interval": ForeignField("monitoring.logEverySteps"),
    "log_freq": ForeignField("monitoring.logEverySteps"),
    "logging_steps": ForeignField("monitoring.logEverySteps"),
    "monitor.interval": ForeignField("monitoring.logEverySteps"),
    "monitoring.interval": ForeignField("monitoring.logEverySteps"),
    "checkpoint.interval": ForeignField("checkpoint.everySteps"),
    "validation.interval": ForeignField("validation.everySteps"),
    "backup.interval": ForeignField("checkpoint.backup.everySteps"),
    "monitor.enable": ForeignField("monitoring.mode", "Light or Off", _ON_OFF),
    "monitoring.enable": ForeignField("monitoring.mode", "Light or Off", _ON_OFF),
    "minimal_mode": ForeignField(
        "monitoring.mode", "Light measures at intervals", {True: "Light", False: "Full"}
    ),
    "checkpoint.enable": ForeignField(note="a job always saves checkpoints"),
    "backup.enable": ForeignField("checkpoint.backup.url", "empty for no backups"),
    "wandb.enable": ForeignField("monitoring.wandb.project", "empty for no W&B run"),
    "validation.enable": ForeignField("validation.everySteps", "0 disables validation"),
    "model.name": ForeignField("model.path", _FOLDER_OR_SOURCE),
    "model.id": ForeignField("model.path", _FOLDER_OR_SOURCE),
    "model.revision": ForeignField("model.source", "hf://org/name@revision"),
    "model.token": ForeignField(note=_TOKEN),
    "hf_token": ForeignField(note=_TOKEN),
    "reward.name": ForeignField("reward.functions", "the name of each function"),
    "reward.weights": ForeignField("reward.functions", "the weight of each function"),
    "data.path": ForeignField("data.trainFiles"),
    "data.source": ForeignField("data.sources", "a list"),
    "data.name": ForeignField("data.sources", _DATA_SET),
    "dataset": ForeignField("data.sources", _DATA_SET),
    "dataset_name": ForeignField("data.sources", _DATA_SET),
    "dataset_config": ForeignField("data.sources", _SPLIT),
    "dataset_train_split": ForeignField("data.sources", _SPLIT),
    "dataset_test_split": ForeignField("data.validationSources", _SPLIT),
    "data.config": ForeignField("data.sources", _SPLIT),
    "data.split": ForeignField("data.sources", _SPLIT),
    "data.revision": ForeignField("data.sources", "hf://datasets/org/name@revision"),
    "agent.base_url": ForeignField(
        note="the application reads the URL of the gateway from OPENAI_BASE_URL"
    ),
    "agent.command": ForeignField("rollout.agent.container.command", "with type Container"),
    "agent.endpoint": ForeignField("rollout.agent.url", "with type Http"),
    "agent.env": ForeignField("rollout.agent.container.env", "with type Container; else env"),
    "agent.function": ForeignField("rollout.agent.python", "package.module:function"),
    "agent.image": ForeignField("rollout.agent.container.image", "with type Container"),
    "agent.max_steps": ForeignField("rollout.agent.maxTurns"),
    "agent.model": ForeignField("rollout.agent.policyModels", "a list"),
    "container.resources": ForeignField("rollout.agent.container.cpu", "and memory"),
    "container.volumes": ForeignField(note="the pods of an application have no volumes"),
    "env.value_from": ForeignField(note="write secretKeyRef: {name, key} next to name"),
    "monitoring.path": ForeignField("monitoring.logDir"),
    "top_k": ForeignField("retrieval.endpoints", "topK of each endpoint"),
    "topk": ForeignField("retrieval.endpoints", "topK of each endpoint"),
    "rollout.topk": ForeignField(note="top-k sampling is not supported"),
    "optimizer": ForeignField(note="the optimizer is always AdamW"),
    "rollout.max_tokens": ForeignField("data.maxResponseLength"),
    "max_new_tokens": ForeignField("data.maxResponseLength"),
    "num_samples_per_prompt": ForeignField("rollout.n"),
    "n_samples_per_prompt": ForeignField("rollout.n"),
    "kl_coef": ForeignField("algorithm.klCoefficient"),
    "kl_coeff": ForeignField("algorithm.klCoefficient"),
    "kl_beta": ForeignField("algorithm.klCoefficient"),
    "init_kl_coef": ForeignField("algorithm.klCoefficient"),
    "performance_freq": ForeignField("monitoring.performanceEverySteps"),
    "performance_log_freq": ForeignField("monitoring.performanceEverySteps"),
    "gpu_freq": ForeignField("monitoring.gpuEverySteps"),
    "gpu_monitor_freq": ForeignField("monitoring.gpuEverySteps"),
    "memory_freq": ForeignField("monitoring.gpuEverySteps"),
    "flops_freq": ForeignField("monitoring.flopsEverySteps"),
    "flops_profile_freq": ForeignField("monitoring.flopsEverySteps"),
    "plot_freq": ForeignField(note="raggrpo report draws the charts from the history"),
    "plot_interval": ForeignField(note="raggrpo report draws the charts from the history"),
    "fast_detection": ForeignField(
        note="a separate thread takes measurements, so they do not delay a step"
    ),
    "debug.enable": ForeignField(
        "monitoring.debug", "modelOutput, ragCalls and scoring are separate"
    ),
    "scoring": ForeignField("monitoring.debug.scoring"),
    "log_level": ForeignField("monitoring.logLevel"),
    "logging_level": ForeignField("monitoring.logLevel"),
    "verbosity": ForeignField("monitoring.logLevel"),
    "history_window": ForeignField("monitoring.historyWindow"),
    "history_size": ForeignField("monitoring.historyWindow"),
    "window_size": ForeignField("monitoring.historyWindow"),
    "flush_secs": ForeignField("monitoring.tensorboardFlushSeconds"),
    "flush_interval": ForeignField("monitoring.tensorboardFlushSeconds"),
    "devices": ForeignField("resources.gpusPerNode"),
    "num_nodes": ForeignField("resources.nodes"),
    "pin_memory": ForeignField(note="on GPUs every batch goes through pinned memory"),
    "non_blocking": ForeignField(note="on GPUs copies never block"),
    "persistent_workers": ForeignField(note="data is prepared in threads of the driver"),
    "model_output": ForeignField("monitoring.debug.modelOutput"),
    "rag_calls": ForeignField("monitoring.debug.ragCalls"),
    "verbose_logging": ForeignField("monitoring.debug"),
    "lr_scheduler": ForeignField("training.learningRateSchedule"),
    "lr_schedule": ForeignField("training.learningRateSchedule"),
    "use_peft": ForeignField("training.lora", "{} for the defaults"),
    "use_lora": ForeignField("training.lora", "{} for the defaults"),
    "peft_config": ForeignField("training.lora", "rank, alpha and targets"),
    "lora_config": ForeignField("training.lora", "rank, alpha and targets"),
    "r": ForeignField("training.lora.rank"),
    "lora_r": ForeignField("training.lora.rank"),
    "lora_rank": ForeignField("training.lora.rank"),
    "lora_dim": ForeignField("training.lora.rank"),
    "lora_alpha": ForeignField("training.lora.alpha"),
    "lora_target_modules": ForeignField("training.lora.targets", _ALL_LINEAR),
    "lora_target_parameters": ForeignField(note=_ONLY_LINEAR),
    "layers_to_transform": ForeignField(
        "training.lora.targets", "with the number of the layer, such as layers.3.mlp.up_proj"
    ),
    "rank_pattern": ForeignField(note="all adapters have the rank training.lora.rank"),
    "alpha_pattern": ForeignField(note="all adapters are scaled by training.lora.alpha"),
    "lora_dropout": ForeignField(note=_NO_DROPOUT),
    "lora.bias": ForeignField(note=_ONLY_ADAPTERS),
    "peft_config.bias": ForeignField(note=_ONLY_ADAPTERS),
    "lora_config.bias": ForeignField(note=_ONLY_ADAPTERS),
    "lora_bias": ForeignField(note=_ONLY_ADAPTERS),
    "modules_to_save": ForeignField(note=_ONLY_ADAPTERS),
    "lora_modules_to_save": ForeignField(note=_ONLY_ADAPTERS),
    "trainable_token_indices": ForeignField(note=_ONLY_ADAPTERS),
    "use_rslora": ForeignField(note=f"{_ORIGINAL_LORA}; for rsLoRA, set alpha · √rank"),
    "use_dora": ForeignField(note=_ORIGINAL_LORA),
    "init_lora_weights": ForeignField(note="A starts random and B at zero, as in the LoRA paper"),
    "adapter_name_or_path": ForeignField(note=_NO_ADAPTER),
    "load_in_4bit": ForeignField(note=_NOT_QUANTIZED),
    "load_in_8bit": ForeignField(note=_NOT_QUANTIZED),
    "quantization_config": ForeignField(note=_NOT_QUANTIZED),
    "use_qlora": ForeignField(note=_NOT_QUANTIZED),
    "warmup_steps": ForeignField("training.warmupSteps"),
    "warmup_ratio": ForeignField(
        note="set training.warmupSteps to the ratio times the run's steps"
    ),
    "min_lr": ForeignField("training.minLearningRateRatio", "as a share of learningRate"),
    "lr_decay_iters": ForeignField("training.decaySteps"),
    "adaptive_learning_rate": ForeignField(note=_NOT_ADAPTIVE),
    "adaptive_lr": ForeignField(note=_NOT_ADAPTIVE),
    "precision": ForeignField("training.precision", "FP16 for 16-mixed, BF16 for bf16-mixed"),
    "bf16": ForeignField("training.precision", "BF16"),
    "fp16": ForeignField("training.precision"),
    "amp": ForeignField(
        "training.precision", "one field sets both trainer and engine, so they cannot conflict"
    ),
}
"""Fields of TRL and Lightning by name."""

FOREIGN_VALUES: Final[Mapping[str, str]] = {
    "16-mixed": "FP16, or BF16 if the device supports it; one field serves trainer and engine",
    "16": "FP16, or BF16 if the device supports it; one field serves trainer and engine",
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
"""Values of other trainers and their counterparts."""

GENERIC_NAMES: Final = frozenset({"enable", "merge", "name", "path"})
"""Last names of verl's fields that mean something else in another block."""


def _suffixes(path: str) -> list[str]:
    """Return the path and its ends, longest first: a.b.c, b.c, c."""
    names = path.split(".")
    return [".".join(names[start:]) for start in range(len(names))]


_BY_SUFFIX: Final[Mapping[str, ForeignField]] = {
    suffix: foreign
    for name, foreign in reversed(list(VERL_FIELDS.items()))
    for suffix in _suffixes(name)
    if suffix not in GENERIC_NAMES
} | dict(OTHER_FIELDS)


def foreign_field(
    path: str, fields: Mapping[str, ForeignField] = _BY_SUFFIX
) -> ForeignField | None:
    """Return the foreign field that a path such as `monitor.interval` ends with."""
    return next((fields[suffix] for suffix in _suffixes(path) if suffix in fields), None)


def hint_for(path: str, value: object = None) -> str:
    """Return the remedy for a foreign field at a path below `spec`, or "".

    If the value is a mapping, the remedy names the counterparts of its fields.
    """
    if isinstance(value, Mapping):
        hints = {name: hint_for(f"{path}.{name}", inner) for name, inner in value.items()}
        if any(hints.values()):
            return "; ".join(f"{name}: {hint}" for name, hint in hints.items() if hint)
    *blocks, last = path.split(".")
    foreign = foreign_field(path) or foreign_field(".".join([*blocks, to_snake(last)]))
    if foreign is None:
        return ""
    if not foreign.path:
        return f"remove it: {foreign.note}"
    note = f" ({foreign.note})" if foreign.note else ""
    return f"use spec.{foreign.path}{note}"
