"""Translate verl's configuration into a job, and tell what became of every field; pure.

What verl decides by default and we otherwise is written out, so that the job trains what the
original would have trained.
"""

import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from raggrpo_api import names
from raggrpo_operator.core.spec.foreign_names import VERL

from .overrides import HOME, Values, resolved

MOUNT: Final = "/mnt/work"
CLAIM: Final = "work"
NEVER: Final = 999_999
"""A `test_freq` from here on means never."""
EVERY_STEPS: Final = 100

_R: Final = "actor_rollout_ref.rollout."
_A: Final = "actor_rollout_ref.actor."
DEFAULTS: Final[Mapping[str, Any]] = {
    "data.train_batch_size": 1024,
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    f"{_A}optim.lr": 1e-6,
    f"{_A}optim.weight_decay": 0.01,
    f"{_A}ppo_mini_batch_size": 256,
    f"{_A}clip_ratio_low": 0.2,
    f"{_A}clip_ratio_high": 0.2,
    f"{_A}loss_agg_mode": "token-mean",
    f"{_A}grad_clip": 1.0,
    f"{_R}n": 1,
    f"{_R}temperature": 1.0,
    f"{_R}gpu_memory_utilization": 0.5,
    f"{_R}tensor_model_parallel_size": 2,
    "actor_rollout_ref.model.enable_gradient_checkpointing": True,
    "algorithm.norm_adv_by_std_in_grpo": True,
    "trainer.n_gpus_per_node": 8,
    "trainer.total_epochs": 30,
    "trainer.save_freq": -1,
    "trainer.test_freq": -1,
    "trainer.val_before_train": True,
    "trainer.project_name": "verl_examples",
    "trainer.experiment_name": "gsm8k",
}
"""What verl takes where its configuration is silent, as far as a job depends on it."""
LOSSES: Final = {
    "token-mean": "TokenMean",
    "seq-mean-token-mean": "SequenceMean",
    "seq-mean-token-sum-norm": "FixedLength",
}
PRECISIONS: Final = {"bfloat16": "BF16", "float32": "FP32", "auto": "BF16", "float16": "BF16"}
PLAIN: Final = (
    "data.train_batch_size data.max_prompt_length data.max_response_length "
    "data.dataloader_num_workers data.prompt_key data.seed "
    "actor_rollout_ref.model.custom_chat_template "
    "actor_rollout_ref.model.enable_gradient_checkpointing "
    f"{_A}optim.lr {_A}optim.weight_decay {_A}grad_clip {_A}clip_ratio_low {_A}clip_ratio_high "
    f"{_R}temperature {_R}top_p {_R}gpu_memory_utilization {_R}tensor_model_parallel_size "
    f"{_R}enable_chunked_prefill {_R}enable_prefix_caching {_R}enforce_eager {_R}max_num_seqs "
    "algorithm.norm_adv_by_std_in_grpo trainer.n_gpus_per_node trainer.nnodes"
).split()
"""Fields whose value is the same in a job."""


@dataclass
class Imported:
    """A job as plain values, and one line for every field of the original."""

    job: dict[str, Any]
    mapped: list[str] = field(default_factory=list)
    unmapped: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def import_verl(given: Values) -> Imported:
    """Return the job that a configuration amounts to."""
    found = _Translation(resolved(given))
    for part in (_data, _model_and_training, _rollout, _retrieval, _reward, _run):
        part(found)
    found.tell_the_rest()
    return found.imported()


class _Translation:
    def __init__(self, given: Values) -> None:
        self.given = given
        self.spec: dict[str, Any] = {}
        self.seen: set[str] = set()
        self.lines: dict[str, list[str]] = {"mapped": [], "unmapped": [], "wrong": []}

    def get(self, name: str) -> Any:
        """Return verl's value of a field, its default if the configuration is silent."""
        value = self.given.get(name)
        return DEFAULTS.get(name) if value is None else value

    def put(self, name: str, value: Any, note: str = "", path: str = "") -> None:
        """Set the counterpart of verl's field."""
        path = path or VERL[name].path
        self.seen.add(name)
        *blocks, last = path.split(".")
        place = self.spec
        for block in blocks:
            place = place.setdefault(block, {})
        place[last] = value
        origin = "" if self.given.get(name) is not None else ", verl's default"
        note = f" ({note}{origin})" if note else f" ({origin[2:]})" if origin else ""
        self.lines["mapped"].append(f"{name} → spec.{path}: {_shown(value)}{note}")

    def same(self, name: str, change: Callable[[Any], Any] = lambda value: value) -> None:
        """Set the counterpart if the configuration or verl gives a value."""
        if (value := self.get(name)) is not None:
            self.put(name, change(value))

    def wrong(self, name: str, reason: str) -> None:
        self.lines["wrong"].append(f"{name}: {reason}")

    def path(self, name: str, value: object) -> str:
        """Return a path below the volume; tells of one that is not absolute."""
        text = str(value)
        for home in (HOME, "~"):
            if text == home or text.startswith(f"{home}/"):
                return posixpath.normpath(MOUNT + text.removeprefix(home))
        if text.startswith("/"):
            return posixpath.normpath(text)
        below = f"{MOUNT}/models/" if name.endswith("model.path") else f"{MOUNT}/"
        moved = posixpath.normpath(below + text)
        what = "a name on a hub or a relative path" if "model" in name else "a relative path"
        self.wrong(name, f"{text} is {what}, which depends on where a pod starts: now {moved}")
        return moved

    def tell_the_rest(self) -> None:
        """List every field of the original that was not translated."""
        for name, value in self.given.items():
            if name not in self.seen and value is not None:
                known = VERL.get(name)
                note = known.note if known else ""
                if not note:
                    note = "GRPO has no critic" if name.startswith("critic.") else "no counterpart"
                self.lines["unmapped"].append(f"{name}={_shown(value)}: {note}")

    def imported(self) -> Imported:
        experiment = f"{self.get('trainer.experiment_name')}"
        name = re.sub(r"[^a-z0-9]+", "-", experiment.lower()).strip("-")[:44].strip("-")
        if not name[:1].isalpha():
            name = f"verl-{name}"[:44].strip("-")
        self.lines["mapped"].append(f"trainer.experiment_name → metadata.name: {name}")
        self.spec["volumes"] = _volumes(self.spec)
        job = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": name},
            "spec": self.spec,
        }
        return Imported(job, **self.lines)


def _data(this: _Translation) -> None:
    for name in ("data.train_files", "data.val_files"):
        value = this.given.get(name)
        if value is not None:
            files = value if isinstance(value, list) else [value]
            this.put(name, [this.path(name, each) for each in files])
    for name in PLAIN:
        this.same(name)
    if (limit := this.get("data.train_max_samples")) is not None:
        this.put("data.train_max_samples", max(0, int(limit)))
    if (cut := this.get("data.truncation")) is not None:
        this.put("data.truncation", cut != "error", "" if cut == "error" else f"was {cut}")
    search = _searches(this)
    answer = "reward_model.ground_truth.target" if search else "reward_model.ground_truth"
    this.spec["data"].setdefault("columns", {})["answer"] = answer
    this.lines["mapped"].append(
        f"reward_model.ground_truth (a column of verl's files) → spec.data.columns.answer: {answer}"
    )


def _model_and_training(this: _Translation) -> None:
    name = "actor_rollout_ref.model.path"
    if this.get(name) is not None:
        this.put(name, this.path(name, this.get(name)))
    batch, mini = this.get("data.train_batch_size"), this.get(f"{_A}ppo_mini_batch_size")
    if mini and mini < batch:
        this.put(f"{_A}ppo_mini_batch_size", mini)
    else:
        this.seen.add(f"{_A}ppo_mini_batch_size")
        if f"{_A}ppo_mini_batch_size" in this.given and mini > batch:
            this.wrong(f"{_A}ppo_mini_batch_size", f"{mini} prompts of a batch of {batch}")
    clip = this.given.get(f"{_A}clip_ratio")
    if clip is not None and f"{_A}clip_ratio_low" not in this.given:
        this.put(f"{_A}clip_ratio", clip)
        this.spec["algorithm"]["clipRatioHigh"] = clip
    loss = this.get(f"{_A}loss_agg_mode")
    if loss in LOSSES:
        this.put(f"{_A}loss_agg_mode", LOSSES[loss])
    uses_kl = bool(this.get(f"{_A}use_kl_loss"))
    coefficient = this.get(f"{_A}kl_loss_coef")
    this.seen |= {f"{_A}use_kl_loss", f"{_A}kl_loss_coef"}
    if f"{_A}use_kl_loss" in this.given:
        this.lines["mapped"].append(
            f"{_A}use_kl_loss → whether klCoefficient is above 0: {uses_kl}"
        )
    if uses_kl:
        this.put(f"{_A}kl_loss_coef", 0.001 if coefficient is None else coefficient)
    if (warm := this.get(f"{_A}optim.lr_warmup_steps")) is not None and warm > 0:
        this.put(f"{_A}optim.lr_warmup_steps", warm)
    steps, ratio = this.get("trainer.total_training_steps"), f"{_A}optim.lr_warmup_steps_ratio"
    if steps and this.get(ratio):
        this.put(ratio, int(steps * this.get(ratio)), "", "training.warmupSteps")
    dtype = this.given.get(f"{_R}dtype")
    if dtype is not None:
        this.put(f"{_R}dtype", PRECISIONS.get(str(dtype), "BF16"), f"was {dtype}")
    estimator = this.given.get("algorithm.adv_estimator")
    if estimator not in (None, "grpo"):
        this.wrong("algorithm.adv_estimator", f"{estimator} is not GRPO; the job trains with GRPO")


def _rollout(this: _Translation) -> None:
    n = this.get(f"{_R}n")
    group = next(
        (
            (name, this.given[name])
            for name in ("algorithm.hybrid_grpo.group_size", "algorithm.group_size")
            if this.given.get(name) is not None
        ),
        None,
    )
    if group is not None:
        this.seen.add(group[0])
        if group[1] != n:
            this.wrong(
                group[0], f"is {group[1]}, rollout.n is {n}: a group is a prompt's n, now {n}"
            )
    if n < 2:
        this.wrong(f"{_R}n", f"{n} completion has no advantage within its group: now 2")
        n = 2
    this.put(f"{_R}n", n)
    this.put(f"{_R}n", n, "", "algorithm.groupSize")
    length = this.get("data.max_prompt_length") + this.get("data.max_response_length")
    tokens = this.given.get(f"{_R}max_num_batched_tokens")
    if tokens is not None:
        this.seen.add(f"{_R}max_num_batched_tokens")
        if tokens < length:
            this.wrong(
                f"{_R}max_num_batched_tokens",
                f"{tokens} does not hold a sequence of {length} tokens: now sized",
            )
        else:
            this.put(f"{_R}max_num_batched_tokens", tokens)
    row = this.get("data.max_prompt_length") + n * this.get("data.max_response_length")
    budget = this.given.get(f"{_A}ppo_max_token_len_per_gpu") or 0
    if budget or row > 16384:
        if budget and budget < row:
            this.wrong(
                f"{_A}ppo_max_token_len_per_gpu",
                f"{budget} does not hold a prompt with its {n} completions: now {row}",
            )
        this.put(f"{_A}ppo_max_token_len_per_gpu", max(budget, row))


def _retrieval(this: _Translation) -> None:
    turn = f"{_R}multi_turn."
    if not _searches(this):
        return
    this.put(f"{turn}enable", "Search")
    if (turns := this.given.get(f"{turn}max_assistant_turns")) is not None:
        this.put(f"{turn}max_assistant_turns", max(1, int(turns) - 1), f"of {turns} turns")
    limit = this.given.get(f"{turn}max_tool_response_length", 256)
    this.seen.add(f"{turn}max_tool_response_length")
    this.wrong(
        f"{turn}max_tool_response_length",
        f"cuts all search results together to {limit} characters, in their middle; here "
        "retrieval.maxPassageTokens keeps tokens of each passage",
    )
    this.spec["retrieval"]["endpoints"] = [
        {"name": "search", "url": "http://127.0.0.1:8000/retrieve", "topK": 3}
    ]
    this.lines["unmapped"].append(
        "the search tool: its prompts say <tool_call>, here the policy writes "
        "<search>query</search>; say so in data.systemPrompt, and give the service in retrieval.endpoints"
    )


def _reward(this: _Translation) -> None:
    files = str(this.given.get("data.train_files", "")).lower()
    if this.given.get("custom_reward_function.path"):
        this.lines["unmapped"].append(
            "custom_reward_function: reward a function of yours that takes one sample: "
            "reward.functions[0].name Python, python package.module:function, codeFrom.path"
        )
        this.seen |= {"custom_reward_function.path", "custom_reward_function.name"}
    this.spec["reward"] = {"functions": [{"name": "ExactMatch"}]}
    what = "ExactMatch"
    if "gsm8k" in files:
        this.spec["reward"]["answerMarker"] = "####"
        what = "ExactMatch after the marker ####"
    this.lines["mapped"].append(f"the reward verl chooses by data_source → {what}; check it")


def _run(this: _Translation) -> None:
    steps = this.given.get("trainer.total_training_steps")
    this.seen |= {"trainer.total_training_steps", "trainer.total_epochs"}
    if steps:
        this.put("trainer.total_training_steps", steps)
    else:
        this.same("trainer.total_epochs")
    save = int(this.get("trainer.save_freq"))
    if save < 1:
        this.wrong(
            "trainer.save_freq",
            f"{save} saves no checkpoint, so that any failure costs the whole run: now every "
            f"{EVERY_STEPS} steps",
        )
    this.put("trainer.save_freq", save if save > 0 else EVERY_STEPS)
    test = int(this.get("trainer.test_freq"))
    held_out = bool(this.spec["data"].get("validationFiles"))
    off = not 0 < test < NEVER or not held_out
    this.put("trainer.test_freq", 0 if off else test, f"{test} is off" if off else "")
    this.put("trainer.val_before_train", bool(this.get("trainer.val_before_train")) and held_out)
    project, experiment = this.get("trainer.project_name"), this.get("trainer.experiment_name")
    this.seen |= {"trainer.experiment_name"}
    folder = this.given.get("trainer.default_local_dir")
    if folder is None or "${" in str(folder):
        folder = f"checkpoints/{project}/{experiment}"
    name = "trainer.default_local_dir"
    this.put(name, this.path(name, folder))
    keep = this.given.get("trainer.max_actor_ckpt_to_keep")
    if keep is not None:
        if keep < 2:
            this.wrong("trainer.max_actor_ckpt_to_keep", f"{keep} leaves none while one is written")
        this.put("trainer.max_actor_ckpt_to_keep", max(2, keep))


def _searches(this: _Translation) -> bool:
    turn = f"{_R}multi_turn."
    tool = str(this.given.get(f"{turn}tool_config_path", ""))
    files = str(this.given.get("data.train_files", "")).lower()
    return "search" in tool or "searchr1" in files


def _volumes(spec: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return a volume for the first part of every path that is not below MOUNT."""
    paths = [
        *spec["data"].get("trainFiles", []),
        *spec["data"].get("validationFiles", []),
        spec.get("model", {}).get("path", MOUNT),
        spec["checkpoint"]["path"],
    ]
    tops = {"/" + path.split("/")[1] for path in paths if not path.startswith(f"{MOUNT}/")}
    volumes = [{"name": CLAIM, "claimName": CLAIM, "mountPath": MOUNT}]
    for top in sorted(tops - {MOUNT}):
        name = re.sub(r"[^a-z0-9]+", "-", top.lower()).strip("-") or "root"
        volumes.append({"name": f"{name}-volume", "claimName": name, "mountPath": top})
    return volumes


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
