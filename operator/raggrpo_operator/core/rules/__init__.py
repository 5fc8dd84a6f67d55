"""What makes a job unfit to run: RULES is the table of contents, one module per subject.

A rule is a small generator that yields what it objects to; all of them run, so that a user sees
every problem at once. Rules on facts stay silent until preflight has read them.
"""

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.preflight import Facts
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.resolve import Resolved
from raggrpo_operator.core.spec.violation import Severity, Violation

from . import (
    batch,
    checkpoint,
    lengths,
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
    batch.group_size_equals_n,  # C1: the group is what was sampled
    batch.group_has_a_baseline,  # C1: a group of one has no advantage
    batch.batch_feeds_all_ranks,  # C2
    batch.mini_batch_divides_batch,  # C3: counted in prompts
    batch.micro_batch_holds_a_row,  # C3
    lengths.run_has_one_target,  # C17: success is reaching it
    lengths.batch_fits_data,  # C17
    lengths.data_may_repeat,  # C17, on facts
    lengths.engine_step_holds_a_sequence,  # C6
    lengths.sequence_fits_context,  # C6, on facts
    lengths.passages_leave_room,  # C8
    lengths.searches_leave_room,  # C8
    memory.utilization_in_range,  # C4
    memory.training_state_fits,  # C4, on facts
    memory.activations_fit,  # C4, on facts
    memory.weights_fit_engine,  # C5, on facts
    memory.eager_only_where_memory_is_short,  # C7
    memory.shm_within_memory,  # C12
    memory.memory_covers_estimate,  # C12
    memory.retriever_memory_covers_index,  # C20, on facts
    world.gpus_are_asked_for,  # C12
    world.rollout_gpus_match_placement,  # C12
    world.tensor_parallel_divides_gpus,  # C5
    world.tensor_parallel_divides_heads,  # C5, on facts
    world.workers_fit_cpus,  # C12
    world.ray_version_is_the_same,  # C13, on facts
    world.async_needs_disaggregation,  # C16: a colocated engine cannot generate while training
    world.rollout_optimisations_stay_on,  # A3
    retrieval.endpoint_has_one_source,  # B21
    retrieval.dense_index_has_vectors,  # B21
    retrieval.protocol_fits_role,  # A14
    retrieval.passages_need_a_retriever,  # A4
    retrieval.rag_score_needs_both_endpoints,  # A4
    retrieval.actor_writes_required_fields,  # A14: the field that was once missed
    retrieval.endpoints_are_used,  # A4
    retrieval.templates_have_their_placeholders,  # C8
    reward.reward_is_complete,  # A14
    reward.reward_fields_are_used,  # A14
    reward.some_reward_counts,  # C19
    reward.columns_are_named,  # A14
    checkpoint.restarts_need_checkpoints,  # C9
    checkpoint.checkpoints_come_in_time,  # C9
    checkpoint.two_checkpoints_are_kept,  # C10
    checkpoint.backups_meet_checkpoints,  # A27
    checkpoint.validation_has_files,  # A8
    paths.checkpoint_lies_on_a_volume,  # C11
    paths.other_paths_lie_on_volumes,  # C11
    paths.volumes_reach_all_pods,  # C11
    monitoring.wandb_has_a_key,  # A23: else the run goes on without it
    monitoring.wandb_is_used,  # A23
    names_and_secrets.names_are_unique,  # C14
    names_and_secrets.env_is_not_reserved,  # C14
    names_and_secrets.mount_paths_are_free,  # C14
    names_and_secrets.values_have_one_source,  # C15
    names_and_secrets.secrets_come_by_reference,  # C15
    numerics.temperature_is_positive,  # C19
    numerics.top_p_keeps_logprobs_exact,  # C19
    numerics.learning_rate_is_usual,  # C19
    numerics.clip_range_is_sane,  # C19
    numerics.warmup_ends_within_run,  # C19
    numerics.attention_is_available,  # C18
    numerics.backoff_grows,  # B6
)


def violations(
    job: RagGrpoJob, resolved: Resolved, facts: Facts | None = None
) -> tuple[Violation, ...]:
    """Return everything the rules object to, errors before warnings."""
    given = RuleInput(
        job=job,
        spec=resolved.spec,
        origins=resolved.origins,
        facts=facts or Facts(),
        sizing=size(resolved.spec, facts),
    )
    found = [violation for rule in RULES for violation in rule(given)]
    return tuple(sorted(found, key=lambda violation: violation.severity is Severity.WARNING))
