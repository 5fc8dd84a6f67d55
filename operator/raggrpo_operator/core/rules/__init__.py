"""Rules that a job must meet. RULES lists all of them; each module covers one subject.

A rule yields violations. All rules run, so that users see all violations at once. The API server
also enforces each `SpecRule`, by evaluating its CEL expression on the specified values. Only the
API server enforces a `ServerRule`. All other rules need resolved values or, if marked "on facts",
the facts about model and data that preflight reported.
"""

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.trainer.preflight import Facts
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.resolve import Resolved
from raggrpo_operator.core.spec.violation import Severity, Violation

from . import (
    agent,
    batch,
    checkpoint,
    cluster,
    lengths,
    limits,
    lora,
    memory,
    monitoring,
    names_and_secrets,
    numerics,
    output,
    paths,
    retrieval,
    reward,
    servers,
    sources,
    world,
)
from .api_server import formats, frozen
from .base.rule_input import Rule, RuleInput
from .base.spec_rule import ServerRule, SpecRule, Validation

RULES: tuple[Rule | SpecRule | ServerRule, ...] = (
    batch.group_size_equals_n,
    batch.n_is_at_least_two,
    batch.group_size_is_at_least_two,
    batch.ranks_get_prompts,
    batch.ranks_get_completions,
    batch.ranks_get_equal_work,
    batch.mini_batch_divides_batch,
    batch.micro_batch_holds_a_sequence,
    batch.micro_batch_holds_a_group,
    lengths.run_has_a_target,
    lengths.run_has_one_target,
    lengths.epochs_fit_max_steps,  # on facts
    lengths.batch_fits_max_samples,
    lengths.batch_fits_data,  # on facts
    lengths.steps_fit_data,  # on facts
    lengths.engine_step_holds_a_sequence,
    lengths.sequence_fits_context,  # on facts
    lengths.passages_leave_room,
    lengths.truncated_passages_leave_room,
    lengths.searches_leave_room,
    memory.utilization_leaves_room_for_trainer,
    memory.utilization_leaves_room_for_cache,
    memory.training_state_fits,  # on facts
    memory.gpu_memory_is_known,  # on facts
    memory.activations_fit,  # on facts
    memory.weights_fit_engine,  # on facts
    memory.kv_cache_holds_sequences,  # on facts
    memory.eager_only_where_memory_is_short,
    memory.shm_is_below_memory,
    memory.derived_shm_is_below_memory,
    memory.memory_covers_estimate,
    memory.retriever_memory_covers_index,  # on facts
    world.gpus_are_requested,
    world.colocated_has_no_rollout_gpus,
    world.disaggregated_has_rollout_gpus,
    world.rollout_engines_match_placement,
    world.colocated_engine_has_one_gpu,
    world.tensor_parallel_divides_rollout_gpus,
    world.cpu_engine_is_one_process,
    world.tensor_parallel_divides_heads,  # on facts
    world.workers_fit_cpus,
    world.ray_version_is_unchanged,  # on facts
    world.async_needs_disaggregation,
    world.rollout_optimizations_are_enabled,
    retrieval.endpoint_has_one_source,
    retrieval.index_has_embedding_model,
    retrieval.embedding_model_is_used,
    retrieval.protocol_fits_role,
    retrieval.http_endpoint_has_url,
    retrieval.fields_fit_protocol,
    retrieval.calls_contain_the_question,
    retrieval.body_is_not_json_text,
    retrieval.passages_have_a_retriever,
    retrieval.rag_score_has_mode_reward,
    retrieval.rag_score_has_endpoints,
    retrieval.actor_writes_required_fields,
    retrieval.endpoints_are_used,
    retrieval.prompt_template_is_complete,
    retrieval.passage_template_is_complete,
    retrieval.templates_are_valid,
    reward.python_reward_has_function,
    reward.http_reward_has_url,
    reward.judge_has_model,
    reward.judge_has_a_range,
    reward.judge_can_grade,
    reward.reward_fields_are_used,
    reward.reward_has_weight,
    reward.prompt_column_is_named,
    reward.answer_column_is_named,
    reward.context_column_is_named,
    reward.template_context_is_named,
    agent.agent_has_no_retrieval_mode,
    agent.python_agent_has_function,
    agent.only_python_agent_has_interpreter,
    agent.http_agent_has_url,
    agent.container_agent_has_image,
    agent.container_agent_has_command,
    agent.http_agent_reaches_gateway,
    agent.only_http_agents_admit_pods,
    agent.processes_are_used,
    agent.gateway_variables_are_not_set,
    agent.identification_fits_type,
    agent.model_names_are_unique,
    agent.forward_url_is_a_base_url,
    agent.agent_urls_contain_no_secret,
    agent.request_depends_on_sample,
    agent.request_identifies_calls,
    checkpoint.restarts_need_checkpoints,
    checkpoint.checkpoints_precede_the_end,
    checkpoint.two_checkpoints_are_kept,
    checkpoint.backups_follow_checkpoints,
    checkpoint.start_has_one_source,
    checkpoint.start_is_another_folder,
    checkpoint.best_is_measured,
    checkpoint.validation_has_files,
    paths.checkpoint_is_on_a_volume,
    paths.checkpoint_is_writable,
    paths.volume_has_one_source,
    paths.index_path_is_writable,
    paths.other_paths_are_on_volumes,
    paths.volumes_reach_all_pods,
    sources.model_has_one_source,
    sources.data_has_one_source,
    sources.validation_has_one_source,
    sources.staging_folder_is_writable,
    output.push_keeps_the_source,
    monitoring.wandb_has_a_key,
    monitoring.wandb_is_used,
    monitoring.debug_lines_are_written,
    names_and_secrets.names_are_unique,
    names_and_secrets.pull_secrets_are_unique,
    names_and_secrets.mount_paths_are_unique,
    names_and_secrets.actor_fields_are_unique,
    names_and_secrets.env_is_not_reserved,
    names_and_secrets.headers_are_not_reserved,
    names_and_secrets.secret_variables_are_unique,
    names_and_secrets.mount_path_is_not_reserved,
    names_and_secrets.mount_path_has_no_colon,
    names_and_secrets.variable_has_one_source,
    names_and_secrets.header_has_one_source,
    names_and_secrets.ca_bundle_has_one_source,
    names_and_secrets.secret_names_have_no_value,
    names_and_secrets.values_contain_no_secret,
    names_and_secrets.urls_contain_no_secret,
    names_and_secrets.other_strings_contain_no_secret,
    servers.urls_are_valid,
    servers.urls_have_one_path,
    servers.servers_of_variables_are_listed,
    cluster.image_is_a_name,
    cluster.gpu_resource_is_extended,
    cluster.priority_class_is_not_reserved,
    cluster.toleration_equal_has_key,
    cluster.toleration_exists_has_no_value,
    limits.cpu_is_in_range,
    limits.memory_is_in_range,
    limits.shm_size_is_in_range,
    limits.retriever_memory_is_in_range,
    limits.agent_cpu_is_in_range,
    limits.agent_memory_is_in_range,
    limits.process_memory_is_in_range,
    limits.claim_size_is_in_range,
    limits.file_names_are_short,
    limits.environment_is_small,
    limits.texts_are_small,
    limits.configuration_fits,
    numerics.temperature_is_positive,
    numerics.temperature_is_in_range_of_engine,
    numerics.top_p_keeps_logprobs_exact,
    numerics.learning_rate_is_usual,
    numerics.clip_range_is_ordered,
    numerics.clip_ratio_high_is_positive,
    numerics.dual_clip_exceeds_clip_range,
    numerics.warmup_ends_within_run,
    numerics.decay_is_used,
    numerics.attention_supports_row_layout,
    numerics.flash_has_gpu,
    numerics.flash_has_16_bits,
    numerics.bf16_is_available,  # on facts
    numerics.row_layout_is_exact,  # on facts
    numerics.backoff_is_ordered,
    lora.lora_has_targets,
    lora.all_linear_is_the_only_target,
    lora.lora_targets_are_unique,
    lora.lora_targets_are_inner_layers,
    lora.rank_reduces_parameters,  # on facts
    formats.job_name_is_short,  # API server only
    formats.n_is_quoted,  # API server only
    formats.utilization_is_not_zero,  # API server only
    formats.node_selector_keys_are_labels,  # API server only
    formats.start_step_is_valid,  # API server only
    frozen.model_is_frozen,  # API server only
    frozen.optimization_is_frozen_while_running,  # API server only
)


def violations(
    job: RagGrpoJob, resolved: Resolved, facts: Facts | None = None, *, in_pods: bool = True
) -> tuple[Violation, ...]:
    """Return the violations of all rules, errors before warnings."""
    inputs = RuleInput(
        job=job,
        spec=resolved.spec,
        origins=resolved.origins,
        facts=facts or Facts(),
        sizing=size(resolved.spec, facts),
        in_pods=in_pods,
    )
    unsorted = [violation for rule in RULES for violation in rule(inputs)]
    return tuple(sorted(unsorted, key=lambda violation: violation.severity is Severity.WARNING))


def validations() -> dict[str, list[Validation]]:
    """Return the `x-kubernetes-validations` of the CRD, grouped by place in the CRD's schema."""
    by_place: dict[str, list[Validation]] = {}
    for rule in RULES:
        if isinstance(rule, SpecRule | ServerRule):
            for place, validation in rule.validations():
                by_place.setdefault(place, []).append(validation)
    return by_place
