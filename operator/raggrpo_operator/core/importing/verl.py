"""Translation of a verl configuration into a job, with a line for every field. Pure.

Defaults of verl that differ from ours are specified in the job, so that the job trains as in verl.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Final

from raggrpo_api.secrets.redaction import redacted_words
from raggrpo_api.spec.training import TrainingSpec
from raggrpo_operator.core.spec.parse import HUB_ID

from .composition import Read
from .lora import map_lora
from .numeric_fields import with_numbers
from .overrides import Values
from .references import resolve_references
from .retrieval import has_search, map_retrieval, read_tool_file
from .translation import ACTOR, DEFAULTS, PRECISIONS, ROLLOUT, Imported, Translation

NEVER_STEPS: Final = 999_999
"""Minimum `test_freq` that means no validation."""
EVERY_STEPS: Final = 100

SCHEDULES: Final = {"constant": "Constant", "linear": "Linear", "cosine": "Cosine"}
LOSSES: Final = {
    "token-mean": "TokenMean",
    "seq-mean-token-mean": "SequenceMean",
    "seq-mean-token-sum-norm": "FixedLength",
}
_MODULE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\.py")
COPIED_FIELDS: Final = (
    "data.train_batch_size",
    "data.max_prompt_length",
    "data.max_response_length",
    "data.dataloader_num_workers",
    "data.prompt_key",
    "data.seed",
    "actor_rollout_ref.model.custom_chat_template",
    "actor_rollout_ref.model.enable_gradient_checkpointing",
    f"{ACTOR}optim.lr",
    f"{ACTOR}optim.weight_decay",
    f"{ACTOR}grad_clip",
    f"{ACTOR}clip_ratio_low",
    f"{ACTOR}clip_ratio_high",
    f"{ACTOR}clip_ratio_c",
    f"{ROLLOUT}temperature",
    f"{ROLLOUT}top_p",
    f"{ROLLOUT}gpu_memory_utilization",
    f"{ROLLOUT}enable_chunked_prefill",
    f"{ROLLOUT}enable_prefix_caching",
    f"{ROLLOUT}enforce_eager",
    f"{ROLLOUT}max_num_seqs",
    "algorithm.norm_adv_by_std_in_grpo",
    "trainer.n_gpus_per_node",
    "trainer.nnodes",
)
"""Fields whose values are copied unchanged to their counterparts."""
CUSTOM_REWARDS: Final = ("custom_reward_function", "reward.custom_reward_function")
"""Sections of a reward function in a file, in older and newer releases of verl."""
ANSWER_FORMATS: Final = {"gsm8k": "####", "math": "\\boxed{}", "searchr1": "<answer>"}
"""How verl's rewards mark an answer, by a part of the data file's path."""
CLIPS: Final = {
    f"{ACTOR}clip_ratio_low": "clipRatioLow",
    f"{ACTOR}clip_ratio_high": "clipRatioHigh",
}
"""Fields of verl that default to `clip_ratio`, and their counterparts in `spec.algorithm`."""


NO_FILES: Final[Mapping[str, str]] = MappingProxyType({})


def import_verl(
    given: Values,
    inherited: Mapping[str, str] = NO_FILES,
    missing: Sequence[str] = (),
    read: Read = lambda _: None,
    title: str = "",
) -> Imported:
    """Return the job that corresponds to a verl configuration.

    `title` is the job's name if the configuration has no experiment name.
    `inherited` maps every value from a `defaults` list to its source file. `missing` are the
    unavailable files. `read` returns the tool configuration. Raises ValueError for a value of the
    wrong type.
    """
    values, number_lines = with_numbers(resolve_references(given, DEFAULTS))
    translation = Translation(values, inherited, title)
    translation.lines["wrong"] += number_lines
    translation.lines["missing"] += map(redacted_words, missing)
    read_tool_file(translation, read)
    for map_section in (
        _data,
        _model_and_training,
        map_lora,
        _rollout,
        map_retrieval,
        _reward,
        _run,
    ):
        map_section(translation)
    translation.report_remaining()
    return translation.imported()


def _data(this: Translation) -> None:
    for name in ("data.train_files", "data.val_files"):
        value = this.given.get(name)
        if value is not None:
            files = value if isinstance(value, list) else [value]
            this.put(name, [this.volume_path(name, each) for each in files])
    for name in COPIED_FIELDS:
        if this.are_known(f"{ACTOR}clip_ratio") or name not in CLIPS or name in this.given:
            this.copy(name)
    if (limit := this.get("data.train_max_samples")) is not None:
        this.put("data.train_max_samples", max(0, int(limit)))
    if (limit := this.given.get("data.val_max_samples")) is not None and limit > 0:
        this.put("data.val_max_samples", limit)
    if (cut := this.get("data.truncation")) is not None:
        this.put("data.truncation", cut != "error", "" if cut == "error" else f"was {cut}")
    search = has_search(this)
    answer = "reward_model.ground_truth.target" if search else "reward_model.ground_truth"
    this.spec.setdefault("data", {}).setdefault("columns", {})["answer"] = answer
    this.lines["mapped"].append(
        f"reward_model.ground_truth (a column of verl's files) → spec.data.columns.answer: {answer}"
    )


def _model_and_training(this: Translation) -> None:
    name = "actor_rollout_ref.model.path"
    if (model := this.get(name)) is not None:
        if HUB_ID.fullmatch(str(model)):
            note = "a name on a hub; for a folder, specify model.path"
            this.put(name, f"hf://{model}", note, "model.source")
        else:
            this.put(name, this.volume_path(name, model))
    batch, mini = this.get("data.train_batch_size"), this.get(f"{ACTOR}ppo_mini_batch_size")
    if not this.are_known("data.train_batch_size") or (mini and mini < batch):
        this.put(f"{ACTOR}ppo_mini_batch_size", mini)
    elif this.are_known(f"{ACTOR}ppo_mini_batch_size"):
        this.translated.add(f"{ACTOR}ppo_mini_batch_size")
        if f"{ACTOR}ppo_mini_batch_size" in this.given and mini > batch:
            this.report_error(
                f"{ACTOR}ppo_mini_batch_size", f"{mini} prompts of a batch of {batch}"
            )
        else:
            this.lines["mapped"].append(f"{ACTOR}ppo_mini_batch_size → the whole batch: {mini}")
    clip = this.given.get(f"{ACTOR}clip_ratio")
    if clip is not None and not CLIPS.keys() <= this.given.keys():
        this.put(f"{ACTOR}clip_ratio", clip)
        for name, field in CLIPS.items():
            this.spec["algorithm"][field] = this.given.get(name, clip)
    loss = this.get(f"{ACTOR}loss_agg_mode")
    if loss in LOSSES:
        this.put(f"{ACTOR}loss_agg_mode", LOSSES[loss])
    uses_kl = bool(this.get(f"{ACTOR}use_kl_loss"))
    coefficient = this.get(f"{ACTOR}kl_loss_coef")
    this.translated |= {f"{ACTOR}use_kl_loss", f"{ACTOR}kl_loss_coef"}
    if f"{ACTOR}use_kl_loss" in this.given:
        this.lines["mapped"].append(
            f"{ACTOR}use_kl_loss → whether klCoefficient is above 0: {uses_kl}"
        )
    if uses_kl:
        this.put(f"{ACTOR}kl_loss_coef", 0.001 if coefficient is None else coefficient)
    elif coefficient is not None:
        why = "off" if this.are_known(f"{ACTOR}use_kl_loss") else "unknown"
        this.lines["unmapped"].append(f"{ACTOR}kl_loss_coef={coefficient}: use_kl_loss is {why}")
    if (warm := this.get(f"{ACTOR}optim.lr_warmup_steps")) is not None and warm > 0:
        this.put(f"{ACTOR}optim.lr_warmup_steps", warm)
    steps, ratio = this.get("trainer.total_training_steps"), f"{ACTOR}optim.lr_warmup_steps_ratio"
    if steps and this.get(ratio):
        this.put(ratio, int(steps * this.get(ratio)), "", "training.warmupSteps")
    _schedule(this)
    dtype = this.given.get(f"{ROLLOUT}dtype")
    if dtype is not None:
        precision = PRECISIONS.get(str(dtype).lower())
        if precision is None:
            this.report_error(f"{ROLLOUT}dtype", f"{dtype} is not a precision: changed to BF16")
        this.put(f"{ROLLOUT}dtype", precision or "BF16", f"was {dtype}")
    estimator = this.given.get("algorithm.adv_estimator")
    if estimator not in (None, "grpo"):
        this.report_error(
            "algorithm.adv_estimator", f"{estimator} is not GRPO; the job trains with GRPO"
        )


def _schedule(this: Translation) -> None:
    """Map the learning rate schedule, which older releases of verl call `warmup_style`."""
    names = [f"{ACTOR}optim.lr_scheduler_type", f"{ACTOR}optim.warmup_style"]
    name = next((each for each in names if this.given.get(each) is not None), None)
    schedule = SCHEDULES.get(str(this.given.get(name)).lower()) if name else "Constant"
    if name and schedule is None:
        this.report_error(
            name, f"{this.given[name]} is not a supported schedule: changed to Constant"
        )
    if name:
        this.put(name, schedule or "Constant")
    if schedule not in ("Linear", "Cosine"):
        return
    this.copy(f"{ACTOR}optim.min_lr_ratio")
    cycles = this.given.get(f"{ACTOR}optim.num_cycles")
    if cycles is not None and cycles != 0.5:
        this.report_error(
            f"{ACTOR}optim.num_cycles",
            f"{cycles} is not supported, only 0.5 (half a period): changed to 0.5",
        )
    if (decay := this.given.get(f"{ACTOR}optim.total_training_steps")) is not None and decay > 0:
        this.put(f"{ACTOR}optim.total_training_steps", decay)


def _rollout(this: Translation) -> None:
    n = this.get(f"{ROLLOUT}n")
    group = next(
        (
            (name, this.given[name])
            for name in ("algorithm.hybrid_grpo.group_size", "algorithm.group_size")
            if this.given.get(name) is not None
        ),
        None,
    )
    if group is not None and this.are_known(f"{ROLLOUT}n"):
        this.translated.add(group[0])
        if group[1] != n:
            this.report_error(group[0], f"{group[1]} differs from rollout.n: changed to {n}")
        else:
            this.lines["mapped"].append(f"{group[0]} → spec.algorithm.groupSize: {n}")
    if n < 2 and this.are_known(f"{ROLLOUT}n"):
        this.report_error(f"{ROLLOUT}n", f"{n} completion per group has no advantage: changed to 2")
        n = 2
    this.put(f"{ROLLOUT}n", n)
    this.put(f"{ROLLOUT}n", n, "", "algorithm.groupSize")
    if (gpus := this.given.get(f"{ROLLOUT}tensor_model_parallel_size")) is not None:
        if gpus > 1:
            this.report_error(
                f"{ROLLOUT}tensor_model_parallel_size",
                f"{gpus} is not supported, as a colocated engine has one GPU: changed to 1",
            )
        this.put(f"{ROLLOUT}tensor_model_parallel_size", 1)
    _token_limits(this, n)


def _token_limits(this: Translation, n: int) -> None:
    """Map the token limits; raise limits too small for a sequence or a prompt's n completions."""
    lengths = ("data.max_prompt_length", "data.max_response_length")
    if not this.are_known(*lengths, f"{ROLLOUT}n"):
        for name in (f"{ROLLOUT}max_num_batched_tokens", f"{ACTOR}ppo_max_token_len_per_gpu"):
            if this.given.get(name) and name not in this.inherited:
                this.put(name, this.given[name])
        return
    length = sum(this.get(each) for each in lengths)
    tokens = this.given.get(f"{ROLLOUT}max_num_batched_tokens")
    if tokens is not None:
        this.translated.add(f"{ROLLOUT}max_num_batched_tokens")
        if tokens < length:
            this.report_error(
                f"{ROLLOUT}max_num_batched_tokens",
                f"{tokens} is less than a sequence of {length} tokens: it will be computed",
            )
        else:
            this.put(f"{ROLLOUT}max_num_batched_tokens", tokens)
    row = this.get("data.max_prompt_length") + n * this.get("data.max_response_length")
    budget_name = f"{ACTOR}ppo_max_token_len_per_gpu"
    is_own = budget_name not in this.inherited
    budget = (this.given.get(budget_name) if is_own else 0) or 0
    if budget or row > TrainingSpec.model_fields["tokens_per_micro_batch"].default:
        if budget and budget < row:
            this.report_error(
                f"{ACTOR}ppo_max_token_len_per_gpu",
                f"{budget} is less than a prompt with its {n} completions: changed to {row}",
            )
        this.put(f"{ACTOR}ppo_max_token_len_per_gpu", max(budget, row))


def _reward(this: Translation) -> None:
    if _map_custom_reward(this):
        return
    given = this.given.get("data.train_files")
    files = given if isinstance(given, list) else [this.raw_text("data.train_files")]
    this.spec["reward"] = {"functions": [{"name": "ExactMatch"}]}
    what = "ExactMatch"
    formats = {_answer_format(str(file)) for file in files}
    if formats == {"####"}:
        this.spec["reward"]["answerMarker"] = "####"
        what = "ExactMatch after the marker ####"
    elif len(formats) > 1:
        this.report_error(
            "data.train_files",
            f"verl reads the answers of these files differently ({', '.join(sorted(formats))}), "
            "but a job has one reward.answerMarker: ask for one format in the prompts, or score "
            "with a reward function of type Python that reads the column data_source",
        )
    this.lines["mapped"].append(f"verl's reward by data_source → {what}; check it")


def _answer_format(file: str) -> str:
    """Return how verl marks the answer of a data set with this file."""
    name = file.lower()
    return next((form for key, form in ANSWER_FORMATS.items() if key in name), "the whole text")


def _map_custom_reward(this: Translation) -> bool:
    """Translate verl's reward function in a file; return whether there is one to import."""
    block = next((b for b in CUSTOM_REWARDS if this.given.get(f"{b}.path")), None)
    if block is None:
        return False
    path = this.given[f"{block}.path"]
    this.translated |= {f"{block}.path", f"{block}.name"}
    file = PurePosixPath(str(path))
    if not file.is_absolute() or not _MODULE.fullmatch(file.name):
        this.lines["unmapped"].append(
            "custom_reward_function: set reward.functions[0] to name Python, "
            "python package.module:function and signature Verl, and reward.codeFrom.path"
        )
        return False
    name = this.given.get(f"{block}.name") or "compute_score"
    target = f"{file.stem}:{name}"
    term = {"name": "Python", "python": target, "signature": "Verl"}
    this.spec["reward"] = {"functions": [term], "codeFrom": {"path": str(file.parent)}}
    this.lines["mapped"].append(f"custom_reward_function → reward Python {target}")
    return True


def _run(this: Translation) -> None:
    steps = this.given.get("trainer.total_training_steps")
    this.translated |= {"trainer.total_training_steps", "trainer.total_epochs"}
    if steps:
        this.put("trainer.total_training_steps", steps)
        if (epochs := this.given.get("trainer.total_epochs")) is not None:
            line = f"trainer.total_epochs={epochs}: total_training_steps takes precedence"
            this.lines["unmapped"].append(line)
    elif this.are_known("trainer.total_training_steps") or "trainer.total_epochs" in this.given:
        this.copy("trainer.total_epochs")
    save = int(this.get("trainer.save_freq"))
    if save < 1 and this.are_known("trainer.save_freq"):
        save = min(EVERY_STEPS, max(1, int(steps) // 2)) if steps else EVERY_STEPS
        this.report_error(
            "trainer.save_freq",
            f"{this.get('trainer.save_freq')} saves no checkpoint, so a failure would lose the "
            f"whole run: changed to every {save} steps",
        )
    this.put("trainer.save_freq", save)
    test = int(this.get("trainer.test_freq"))
    held_out = bool(this.spec["data"].get("validationFiles")) or not this.are_known(
        "data.val_files"
    )
    off = not 0 < test < NEVER_STEPS or not held_out
    this.put("trainer.test_freq", 0 if off else test, f"{test} is off" if off else "")
    this.put("trainer.val_before_train", bool(this.get("trainer.val_before_train")) and held_out)
    name = "trainer.default_local_dir"
    if this.are_known(name):
        folder = this.given.get(name)
        if folder is None:
            project = "trainer.project_name"
            below = [str(this.get(project))] if this.are_known(project) else []
            folder = "/".join(["checkpoints", *below, this.experiment_name()])
        this.put(name, this.volume_path(name, folder))
    this.translated |= {"trainer.experiment_name"}
    keep = this.given.get("trainer.max_actor_ckpt_to_keep")
    if keep is not None:
        if keep < 2:
            this.report_error(
                "trainer.max_actor_ckpt_to_keep",
                f"{keep} is below the minimum of 2",
            )
        this.put("trainer.max_actor_ckpt_to_keep", max(2, keep))
