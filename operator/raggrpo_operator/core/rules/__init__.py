"""What makes a job unfit to run: RULES is the table of contents, one module per subject.

A rule is a small generator that yields its objections. All rules run, so that a user sees every
problem at once. Those marked "on facts" yield nothing until preflight has read model and data.
"""

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.trainer.preflight import Facts
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.resolve import Resolved
from raggrpo_operator.core.spec.violation import Severity, Violation

from . import (
    batch,
    checkpoint,
    cluster,
    lengths,
    limits,
    memory,
    monitoring,
    names_and_secrets,
    numerics,
    paths,
    retrieval,
    reward,
    world,
)
from .rule_input import Rule, RuleInput

RULES: tuple[Rule, ...] = (
    batch.group_size_equals_n,
    batch.group_has_a_baseline,
    batch.batch_feeds_all_ranks,
    batch.mini_batch_divides_batch,
    batch.micro_batch_holds_a_row,
    lengths.run_has_one_target,
    lengths.steps_can_be_counted,  # on facts
    lengths.batch_fits_data,
    lengths.data_may_repeat,  # on facts
    lengths.engine_step_holds_a_sequence,
    lengths.sequence_fits_context,  # on facts
    lengths.passages_leave_room,
    lengths.searches_leave_room,
    memory.utilization_in_range,
    memory.training_state_fits,  # on facts
    memory.gpu_memory_is_known,  # on facts
    memory.activations_fit,  # on facts
    memory.weights_fit_engine,  # on facts
    memory.kv_cache_holds_sequences,  # on facts
    memory.eager_only_where_memory_is_short,
    memory.shm_within_memory,
    memory.memory_covers_estimate,
    memory.retriever_memory_covers_index,  # on facts
    world.gpus_are_asked_for,
    world.rollout_gpus_match_placement,
    world.rollout_engines_match_placement,
    world.tensor_parallel_divides_gpus,
    world.tensor_parallel_divides_heads,  # on facts
    world.workers_fit_cpus,
    world.ray_version_is_the_same,  # on facts
    world.async_needs_disaggregation,
    world.rollout_optimisations_stay_on,
    retrieval.endpoint_has_one_source,
    retrieval.index_has_its_model,
    retrieval.protocol_fits_role,
    retrieval.fields_fit_protocol,
    retrieval.calls_carry_the_question,
    retrieval.body_is_json_and_no_text_of_it,
    retrieval.passages_need_a_retriever,
    retrieval.rag_score_needs_both_endpoints,
    retrieval.actor_writes_required_fields,
    retrieval.endpoints_are_used,
    retrieval.templates_have_their_placeholders,
    reward.reward_is_complete,
    reward.judge_can_grade,
    reward.reward_fields_are_used,
    reward.some_reward_counts,
    reward.columns_are_named,
    checkpoint.restarts_need_checkpoints,
    checkpoint.checkpoints_come_in_time,
    checkpoint.two_checkpoints_are_kept,
    checkpoint.backups_meet_checkpoints,
    checkpoint.best_is_measured,
    checkpoint.validation_has_files,
    paths.checkpoint_lies_on_a_volume,
    paths.index_can_be_kept,
    paths.other_paths_lie_on_volumes,
    paths.volumes_reach_all_pods,
    monitoring.wandb_has_a_key,
    monitoring.wandb_is_used,
    monitoring.debug_lines_are_written,
    names_and_secrets.names_are_unique,
    names_and_secrets.env_is_not_reserved,
    names_and_secrets.headers_are_not_reserved,
    names_and_secrets.secrets_have_variables_of_their_own,
    names_and_secrets.mount_paths_are_free,
    names_and_secrets.values_have_one_source,
    names_and_secrets.secrets_come_by_reference,
    names_and_secrets.urls_can_be_called,
    cluster.image_is_a_name,
    cluster.gpu_resource_is_extended,
    cluster.priority_class_is_not_the_clusters,
    cluster.tolerations_are_whole,
    limits.amounts_are_in_range,
    limits.path_parts_are_short,
    limits.texts_fit_into_an_object,
    limits.configuration_fits,
    numerics.temperature_is_positive,
    numerics.top_p_keeps_logprobs_exact,
    numerics.learning_rate_is_usual,
    numerics.clip_range_is_sane,
    numerics.dual_clip_is_above_one,
    numerics.warmup_ends_within_run,
    numerics.decay_is_used,
    numerics.attention_is_available,
    numerics.bf16_is_available,  # on facts
    numerics.row_layout_is_exact,  # on facts: completions in one row must not see each other
    numerics.backoff_grows,
)


def violations(
    job: RagGrpoJob, resolved: Resolved, facts: Facts | None = None, *, in_pods: bool = True
) -> tuple[Violation, ...]:
    """Return everything the rules object to, errors before warnings."""
    given = RuleInput(
        job=job,
        spec=resolved.spec,
        origins=resolved.origins,
        facts=facts or Facts(),
        sizing=size(resolved.spec, facts),
        in_pods=in_pods,
    )
    found = [violation for rule in RULES for violation in rule(given)]
    return tuple(sorted(found, key=lambda violation: violation.severity is Severity.WARNING))
