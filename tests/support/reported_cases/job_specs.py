"""Reported cases about job files and about configurations of other trainers."""

from pathlib import Path
from typing import Any

from raggrpo_operator.core.importing.script import read_script
from raggrpo_operator.core.importing.verl import import_verl
from raggrpo_operator.core.spec.parse import parse_job
from raggrpo_operator.core.spec.world import total_steps
from support.builders.operator.jobs import make_job, make_raw_job
from support.reported_cases.case import case

FOREIGN: list[tuple[str, Any, list[str]]] = [
    ("spec.training", {"num_generations": 8}, ["use spec.rollout.n"]),
    ("spec.training", {"beta": 0.04}, ["use spec.algorithm.klCoefficient"]),
    ("spec.debug", {"enable": True}, ["enable: use spec.monitoring.debug"]),
    ("spec.retrieval", {"endpoints": [{"name": "kb", "top_k": 3}]}, ["write topK"]),
    ("spec.monitor", {"interval": 50}, ["interval: use spec.monitoring.logEverySteps"]),
    ("spec.monitor", "reward", ["use spec.checkpoint.bestBy"]),
    ("spec.max_checkpoints", 3, ["use spec.checkpoint.keepLast"]),
    ("spec.training.log_interval", 10, ["use spec.monitoring.logEverySteps"]),
    (
        "spec.training.max_sequence_length",
        1000,
        ["use spec.data.maxPromptLength (and data.maxResponseLength)"],
    ),
    ("spec.monitoring", {"flops_profile_freq": 50}, ["use spec.monitoring.flopsEverySteps"]),
    ("spec.monitoring", {"minimal_mode": True}, ["use spec.monitoring.mode"]),
    ("spec.monitoring", {"fast_detection": True}, ["remove it: a separate thread"]),
    (
        "spec.debug",
        {"verbose_logging": {"model_output": True, "rag_calls": True}},
        ["use spec.monitoring.debug.modelOutput", "use spec.monitoring.debug.ragCalls"],
    ),
    ("spec.rollout", {"top_k": 3}, ["remove it: top-k sampling is not supported"]),
    ("spec.rollout", {"topK": 3}, ["remove it: top-k sampling is not supported"]),
    ("spec.top_k", 3, ["use spec.retrieval.endpoints (topK of each endpoint)"]),
    ("spec.retrieval", {"top_k": 3}, ["use spec.retrieval.endpoints (topK of each endpoint)"]),
    (
        "spec.retrieval",
        {"endpoints": [{"name": "kb", "topk": 3}]},
        ["use spec.retrieval.endpoints (topK of each endpoint)"],
    ),
    ("spec.monitoring", {"enable": True}, ["use spec.monitoring.mode"]),
    ("spec.checkpoint.enable", True, ["a job always saves checkpoints"]),
    ("spec.validation", {"enable": True}, ["use spec.validation.everySteps"]),
    ("spec.training.enable", True, ["remove it; known fields: totalSteps"]),
    ("spec.algorithm", {"kl_coef": 0.1}, ["use spec.algorithm.klCoefficient"]),
    ("spec.training.init_kl_coef", 0.1, ["use spec.algorithm.klCoefficient"]),
    ("spec.model", {"name": "m", "path": "/m"}, ["use spec.model.path"]),
    ("spec.data.path", "/m", ["use spec.data.trainFiles"]),
    ("spec.training.optimizer", "adamw", ["remove it: the optimizer is always AdamW"]),
    ("spec.rollout", {"max_tokens": 9}, ["use spec.data.maxResponseLength"]),
    ("spec.checkpoint.interval", 9, ["use spec.checkpoint.everySteps"]),
    ("spec.validation", {"interval": 9}, ["use spec.validation.everySteps"]),
    ("spec.checkpoint.maxCheckpoints", 9, ["use spec.checkpoint.keepLast"]),
    ("spec.training.num_samples_per_prompt", 9, ["use spec.rollout.n"]),
    ("spec.checkpoint.everyStep", 5, ["did you mean everySteps"]),
    ("spec.data.maxPromptLengths", 5, ["maxPromptLength", " or "]),
]


@case(
    "J2",
    fault="A message about a name states the wrong rule",
    inputs=["7b-grpo", "Grpo", "a_b-", "", 7, "-"],
)
def name_rule_is_true_and_has_valid_example(_folder: Path, name: object) -> None:
    """The message about an invalid name has the rule, and its example is valid."""
    parsed = parse_job(make_raw_job({"metadata.name": name}))
    assert isinstance(parsed, tuple)
    [violation] = parsed
    rule, example = violation.remedy.split(", such as ")
    assert "starting with a letter and not ending with a hyphen" in rule
    assert not isinstance(parse_job(make_raw_job({"metadata.name": example})), tuple)


@case("J3", fault="A hint for a foreign field ignores where the field is", inputs=FOREIGN)
def foreign_field_has_true_counterpart(_folder: Path, given: tuple[str, Any, list[str]]) -> None:
    """The remedy names the counterpart in the job, or states truly that there is none."""
    place, value, expected = given
    parsed = parse_job(make_raw_job({place: value}))
    assert isinstance(parsed, tuple)
    remedies = "\n".join(violation.remedy for violation in parsed)
    assert [text for text in expected if text not in remedies] == [], remedies


SCRIPT = """
python3 -m verl.trainer.main_ppo \\
    data.train_files="['/data/gsm8k/train.parquet','/data/math/train.parquet']" \\
    data.train_batch_size=64 \\
    +data.apply_chat_template_kwargs.enable_thinking=False \\
    algorithm.filter_groups.enable=True \\
    algorithm.use_kl_in_reward=True \\
    reward_model.enable=False \\
    reward_model.overlong_buffer.enable=True \\
    reward_model.overlong_buffer.len=512 \\
    actor_rollout_ref.model.path=/models/m \\
    actor_rollout_ref.rollout.n=8 \\
    debug.verbose_logging.rag_calls=True \\
    monitor.flops_profile_freq=40 \\
    trainer.precision=16-mixed \\
    trainer.total_epochs=15
"""
EXPLAINED = {
    "enable_thinking": "{% set enable_thinking = false %}",
    "filter_groups.enable": "left out of the update",
    "overlong_buffer.enable": "no reward depends on the length",
    "overlong_buffer.len": "no reward depends on the length",
    "reward_model.enable": "a job loads no reward model",
    "use_kl_in_reward": "adds one to the loss",
    "data.train_files": "a job has one reward.answerMarker",
}


@case("J4", fault="An imported configuration silently loses fields")
def verl_script_is_mapped_or_explained(_folder: Path) -> None:
    """Each field of a verl script is mapped or explained; epochs count full batches."""
    imported = import_verl(read_script(SCRIPT).overrides, title="run_sales_rag")
    lines = [*imported.unmapped, *imported.wrong]
    for name, expected in EXPLAINED.items():
        assert any(name in line and expected in line for line in lines), (name, lines)
    assert imported.job["metadata"]["name"] == "run-sales-rag"
    spec = imported.job["spec"]
    assert "answerMarker" not in spec["reward"]
    assert spec["monitoring"] == {"debug": {"ragCalls": True}, "flopsEverySteps": 40}
    training = spec["training"]
    assert training["precision"] == "FP16"
    job = make_job({"training": {"epochs": training["epochs"]}, "data.trainBatchSize": 64})
    assert total_steps(job.spec, rows=1000) == 225


@case("J4", fault="A field of another section is copied by its last name")
def only_fields_of_the_policy_are_copied(_folder: Path) -> None:
    """Values of a critic, and of parts that only verl has, do not reach the job."""
    script = """
python3 -m verl.trainer.main_ppo data.train_files=/data/m.parquet critic.optim.lr=1.0 \\
    critic.ppo_mini_batch_size=16 critic.ppo_max_token_len_per_gpu=98304 \\
    critic.optim.lr_warmup_steps=10 critic.optim.min_lr_ratio=0.5 data.custom_cls.path=/x.py \\
    data.custom_cls.name=X algorithm.rollout_correction.enable=True global_profiler.enable=True \\
    actor_rollout_ref.model.path=/models/m actor_rollout_ref.rollout.n=4
"""
    imported = import_verl(read_script(script).overrides)
    assert [line for line in imported.mapped if "not a field of verl" in line] == []
    for name in ("custom_cls.path", "custom_cls.name", "rollout_correction", "global_profiler"):
        assert any(name in line and "no counterpart" in line for line in imported.unmapped), name
    assert sum("GRPO has no critic" in line for line in imported.unmapped) == 5


@case("J4", fault="A specified value loses against a default of the other trainer")
def specified_values_replace_defaults(_folder: Path) -> None:
    """Values of the same setup that are not verl's replace verl's defaults; names are the job's."""
    script = """
python3 -m verl.trainer.main_ppo "data.train_files=['/d/math.parquet','/d/searchR1.parquet']" \\
    actor_rollout_ref.model.path=/models/m actor_rollout_ref.rollout.n=4 \\
    +training.checkpoint_interval=50 +training.gradient_clip_val=0.5 +training.learning_rate=3e-6 \\
    +monitor.minimal_mode=True +retrieval.top_k=5 \\
    reward.custom_reward_function.path=/code/score.py
"""
    imported = import_verl(read_script(script).overrides, title="sales")
    spec = imported.job["spec"]
    assert spec["checkpoint"]["everySteps"] == 50
    assert spec["checkpoint"]["path"].endswith("/sales")
    assert spec["training"]["maxGradNorm"] == 0.5
    assert spec["training"]["learningRate"] == 3e-6
    assert spec["monitoring"]["mode"] == "Light"
    assert spec["reward"]["functions"][0]["python"] == "score:compute_score"
    assert any("retrieval.top_k=5: not verl's; use spec.retrieval.endpoints" in line
               for line in imported.unmapped)  # fmt: skip
    assert len([line for line in imported.mapped if "spec.checkpoint.everySteps" in line]) == 1
