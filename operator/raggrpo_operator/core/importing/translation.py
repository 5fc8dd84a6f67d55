"""Defaults of verl, and a job under construction from a verl configuration. Pure."""

import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic.alias_generators import to_camel

from raggrpo_api import names
from raggrpo_api.fields.json_values import iter_texts
from raggrpo_api.secrets.detection import HIDDEN
from raggrpo_api.secrets.redaction import redacted_words
from raggrpo_api.secrets.values import has_known_secret
from raggrpo_operator.core.spec.foreign_names import (
    OTHER_FIELDS,
    VERL_FIELDS,
    ForeignField,
    foreign_field,
    hint_for,
)
from raggrpo_operator.core.spec.parse import is_spec_field, valid_name

from .overrides import HOME, UnknownValue, Values
from .tools import Tool

MOUNT: Final = "/mnt/work"
CLAIM: Final = "work"
UNNAMED: Final = "verl-import"
"""Name of a job if the experiment name is unknown."""
ROLLOUT: Final = "actor_rollout_ref.rollout."
ACTOR: Final = "actor_rollout_ref.actor."
MODEL: Final = "actor_rollout_ref.model."
DEFAULTS: Final[Mapping[str, Any]] = {
    "data.train_batch_size": 1024,
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    f"{ACTOR}optim.lr": 1e-6,
    f"{ACTOR}optim.weight_decay": 0.01,
    f"{ACTOR}ppo_mini_batch_size": 256,
    f"{ACTOR}clip_ratio_low": 0.2,
    f"{ACTOR}clip_ratio_high": 0.2,
    f"{ACTOR}clip_ratio_c": 3.0,
    f"{ACTOR}loss_agg_mode": "token-mean",
    f"{ACTOR}grad_clip": 1.0,
    f"{ROLLOUT}n": 1,
    f"{ROLLOUT}temperature": 1.0,
    f"{ROLLOUT}gpu_memory_utilization": 0.5,
    f"{MODEL}enable_gradient_checkpointing": True,
    f"{MODEL}lora_alpha": 16,
    f"{MODEL}lora.alpha": 32,
    "algorithm.norm_adv_by_std_in_grpo": True,
    "trainer.n_gpus_per_node": 8,
    "trainer.total_epochs": 30,
    "trainer.save_freq": -1,
    "trainer.test_freq": -1,
    "trainer.val_before_train": True,
    "trainer.project_name": "verl_examples",
    "trainer.experiment_name": "gsm8k",
}
"""verl's defaults for the fields that affect a job."""
PRECISIONS: Final = {
    **dict.fromkeys(("auto", "bfloat16", "bf16", "bf16-mixed"), "BF16"),
    **dict.fromkeys(("float16", "half", "fp16", "16-mixed"), "FP16"),
    **dict.fromkeys(("float32", "float", "fp32", "32-true"), "FP32"),
}
OWN_BLOCKS: Final = (
    "actor_rollout_ref.",
    "critic.",
    "custom_reward_function.",
    "global_profiler.",
    "reward_model.",
)
"""Sections with verl's own fields, to which hints about other trainers do not apply."""
MIXED_BLOCKS: Final = ("algorithm.", "data.", "reward.", "trainer.")
"""Sections of verl to whose top level users add fields of other trainers."""


MAX_REASON: Final = 300
"""Maximum characters of the reason why a value is unknown."""
SECRET: Final = "it looks like a secret, which belongs in a Secret"
"""Why a value is not part of a job."""


@dataclass
class Imported:
    """A job as plain values, and a line for every field of verl's configuration."""

    job: dict[str, Any]
    mapped: list[str] = field(default_factory=list)
    unmapped: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


class Translation:
    """A job under construction, with a line for every field of verl's configuration."""

    def __init__(self, given: Values, inherited: Mapping[str, str], title: str) -> None:
        """`inherited` maps every value from a `defaults` list to its source file.

        `title` is the job's name if the configuration has no experiment name.
        """
        self._title = title
        self._default_paths: set[str] = set()
        """Paths of the job whose values are verl's defaults."""
        known = {name: _without_secret(each) for name, each in given.items()}
        self.unknown = {k: each for k, each in known.items() if isinstance(each, UnknownValue)}
        """Unknown values by field; these fields are omitted from the job."""
        self.given = {k: each for k, each in known.items() if k not in self.unknown}
        self.inherited = inherited
        self.spec: dict[str, Any] = {}
        self.translated: set[str] = set()
        kinds = ("mapped", "unmapped", "wrong", "missing")
        self.lines: dict[str, list[str]] = {kind: [] for kind in kinds}
        self.tools: list[Tool] = []

    def get(self, name: str) -> Any:
        """Return the value of verl's field, or verl's default."""
        value = self.given.get(name)
        return DEFAULTS.get(name) if value is None else value

    def are_known(self, *fields: str) -> bool:
        """Return whether the values of all fields are known."""
        return not self.unknown.keys() & set(fields)

    def raw_text(self, name: str) -> str:
        """Return the source text of a value, or ""."""
        return self.unknown[name].text if name in self.unknown else str(self.given.get(name, ""))

    def put(self, name: str, value: Any, note: str = "", path: str = "") -> None:
        """Set the counterpart of verl's field, unless its value is unknown."""
        if name in self.unknown:
            return
        path = path or VERL_FIELDS[name].path
        self.translated.add(name)
        *blocks, last = path.split(".")
        place = self.spec
        for block in blocks:
            place = place.setdefault(block, {})
        place[last] = value
        origin = ""
        if self.given.get(name) is None:
            self._default_paths.add(path)
            origin = ", verl's default"
        if file := self.inherited.get(name):
            origin = f", from {file}"
        note = f" ({note}{origin})" if note else f" ({origin[2:]})" if origin else ""
        self.lines["mapped"].append(f"{name} → spec.{path}: {shown(value)}{note}")

    def copy(self, name: str, change: Callable[[Any], Any] = lambda value: value) -> None:
        """Copy a field to its counterpart if the configuration or verl's defaults contain it."""
        if (value := self.get(name)) is not None:
            self.put(name, change(value))

    def report_error(self, name: str, reason: str) -> None:
        """Report an error in a field of verl's configuration."""
        self.lines["wrong"].append(f"{name}: {reason}")

    def volume_path(self, name: str, value: object) -> str:
        """Return a path on a volume; report an error if it is relative."""
        text = str(value)
        for home in (HOME, "~"):
            if text == home or text.startswith(f"{home}/"):
                return posixpath.normpath(MOUNT + text.removeprefix(home))
        if text.startswith("/"):
            return posixpath.normpath(text)
        below = f"{MOUNT}/models/" if name.endswith("model.path") else f"{MOUNT}/"
        moved = posixpath.normpath(below + text)
        self.report_error(
            name,
            f"{text} is a relative path, which depends on the working directory: changed to "
            f"{moved}",
        )
        return moved

    def report_remaining(self) -> None:
        """Report the fields that were not translated; inherited fields are grouped by file."""
        by_file: dict[str, list[str]] = {}
        for name, value in self.unknown.items():
            file = self.inherited.get(name)
            if file and not (name in VERL_FIELDS and VERL_FIELDS[name].path):
                by_file.setdefault(file, []).append(name)
                continue
            if name not in VERL_FIELDS:
                self.lines["unmapped"].append(f"{name}={shown(value.text)}: {_note(name, None)}")
                continue
            of = f" (from {file})" if file else ""
            line = f"{name}={shown(value.text)}{of}: {value.reason}: override it"
            self.lines["missing"].append(line)
        for name, value in self.given.items():
            if name in self.translated or value is None:
                continue
            known, file = _verl_field(name), self.inherited.get(name)
            if file:
                by_file.setdefault(file, []).append(name)
                continue
            if known is None and self._copy_foreign(name, value):
                continue
            self.lines["unmapped"].append(f"{name}={shown(value)}: {_note(name, known)}")
        for file, names_ in by_file.items():
            self.lines["unmapped"].append(f"defaults of {file}: {', '.join(names_)}")

    def _copy_foreign(self, name: str, value: object) -> bool:
        """Copy a field that is not verl's to its counterpart; return whether it was copied.

        It replaces a default of verl, but no value that the configuration specifies.
        """
        if _is_verls_own(name):
            return False
        path = _same_field(name)
        if not path:
            foreign = foreign_field(name, OTHER_FIELDS)
            if foreign is None or not foreign.path:
                return False
            path = foreign.path
            if foreign.values is not None:
                value = foreign.values.get(value) if isinstance(value, bool) else None
            elif path == "training.precision":
                value = PRECISIONS.get(str(value).lower())
            elif foreign.note:
                return False
        if not isinstance(value, bool | int | float | str):
            return False
        if self._is_set(path) and path not in self._default_paths:
            return False
        self._remove_default(path)
        self.put(name, value, "not a field of verl", path)
        return True

    def _remove_default(self, path: str) -> None:
        """Remove the line about a default of verl that is replaced."""
        lines = self.lines["mapped"]
        self.lines["mapped"] = [line for line in lines if f" → spec.{path}: " not in line]
        self._default_paths.discard(path)

    def _is_set(self, path: str) -> bool:
        place: Any = self.spec
        for name in path.split("."):
            if not isinstance(place, dict) or name not in place:
                return False
            place = place[name]
        return True

    def experiment_name(self) -> str:
        """Return the experiment name, else the title, else verl's default, or UNNAMED."""
        name = "trainer.experiment_name"
        if not self.are_known(name):
            return UNNAMED
        return str(self.given.get(name) or self._title or DEFAULTS[name])

    def imported(self) -> Imported:
        """Return the job and the lines of all fields."""
        name = valid_name(self.experiment_name(), prefix="verl-")
        if self.given.get("trainer.experiment_name"):
            self.lines["mapped"].append(f"trainer.experiment_name → metadata.name: {name}")
        self.spec["volumes"] = _volumes(self.spec)
        job = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": name},
            "spec": self.spec,
        }
        return Imported(job, **self.lines)


def _volumes(spec: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return a volume for the top folder of every path that is not below MOUNT."""
    paths = [
        *spec["data"].get("trainFiles", []),
        *spec["data"].get("validationFiles", []),
        spec.get("model", {}).get("path", MOUNT),
        spec.get("checkpoint", {}).get("path", MOUNT),
    ]
    tops = {"/" + path.split("/")[1] for path in paths if not path.startswith(f"{MOUNT}/")}
    volumes = [{"name": CLAIM, "claimName": CLAIM, "mountPath": MOUNT}]
    for top in sorted(tops - {MOUNT}):
        name = re.sub(r"[^a-z0-9]+", "-", top.lower()).strip("-") or "root"
        volumes.append({"name": f"{name}-volume", "claimName": name, "mountPath": top})
    return volumes


def _verl_field(name: str) -> ForeignField | None:
    """Return verl's field with this name, or the field of its nearest enclosing section."""
    while name and name not in VERL_FIELDS:
        name = name.rpartition(".")[0]
    return VERL_FIELDS.get(name)


def _same_field(name: str) -> str:
    """Return the path below `spec` of the field with this name in camelCase, or ""."""
    path = ".".join(map(to_camel, name.split(".")))
    return path if is_spec_field(path) else ""


def _is_verls_own(name: str) -> bool:
    """Return whether a field is in a part of verl's configuration that only verl defines."""
    is_deep = name.startswith(MIXED_BLOCKS) and name.count(".") > 1
    return name.startswith(OWN_BLOCKS) or is_deep


def _note(name: str, known: ForeignField | None) -> str:
    """Return a note about an untranslated field: the reason, or a known counterpart in a job."""
    if known is not None:
        return known.note or f"use spec.{known.path}, without this value"
    if name.startswith("critic."):
        return "GRPO has no critic"
    if _is_verls_own(name):  # a field of another trainer may have the same last name
        return "no counterpart"
    if path := _same_field(name):
        return f"not verl's; specify it as spec.{path}"
    hint = hint_for(name)
    return f"not verl's; {hint}" if hint else "no counterpart"


def _without_secret(value: Any) -> Any:
    """Return a value, or the reason why it must not be part of a job."""
    if isinstance(value, UnknownValue):
        # Cut after redaction: a cut secret would not be recognized.
        reason = shown(redacted_words(value.reason), MAX_REASON)
        return UnknownValue(redacted_words(value.text), reason)
    has_secrets = any(has_known_secret(text) for _, _, text in iter_texts(value, ""))
    return UnknownValue(HIDDEN, SECRET) if has_secrets else value


def shown(value: object, limit: int = 80) -> str:
    """Return a value for a message, with at most `limit` characters."""
    text = str(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
