"""Size limits of a job, to the byte."""

import json
from typing import Any

import pytest

from raggrpo_operator.core.rules import violations
from raggrpo_operator.core.spec.resolve import resolve, trainer_config
from raggrpo_operator.core.spec.violation import Reason, Violation
from support.builders.operator.jobs import make_job

KB = {"name": "kb", "url": "http://kb:8000/retrieve"}
CHECKPOINTS = "/mnt/runs/checkpoints"
BASE_TEXTS = (
    "/mnt/runs/model", "/mnt/runs/train.jsonl", CHECKPOINTS,
    "work", "work", "/mnt/runs", "Prompt", *KB.values(),
)  # fmt: skip
"""All texts of an unchanged job."""


def too_large(changes: dict[str, Any]) -> list[Violation]:
    job = make_job(changes)
    reported = violations(job, resolve(job))
    return [each for each in reported if each.reason is Reason.SPEC_TOO_LARGE]


def with_body(body: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"retrieval": {"mode": "Prompt", "endpoints": [KB | {"extraBody": body}], **changes}}


def with_templates(letters: int) -> dict[str, Any]:
    texts = {f"{number}": "x" * 16_000 for number in range(3)}
    return with_body(texts, promptTemplate="{passages}{prompt}" + "x" * letters)


@pytest.mark.parametrize(("letters", "is_rejected"), [(2010, False), (2011, True)])
def test_limit_of_all_env_variables_is_32_kib(letters: int, is_rejected: bool) -> None:
    lengths = [*[2048] * 15, letters]
    env = [{"name": f"A{number:02}", "value": "x" * n} for number, n in enumerate(lengths)]
    names = 16  # the third letter of each name
    env[0]["value"] = "x" * (2048 - names + 6)  # 15 × 2048 + 2010 + 38 = 32 KiB
    exceeded = [each for each in too_large({"env": env}) if each.path == "spec.env"]
    assert bool(exceeded) is is_rejected


@pytest.mark.parametrize(("more", "is_rejected"), [(0, False), (1, True)])
def test_limit_of_all_spec_texts_is_64_kib(more: int, is_rejected: bool) -> None:
    remaining = 64 * 1024 - sum(map(len, BASE_TEXTS)) + more
    body = {f"{number:03}": "x" * 253 for number in range(remaining // 256)}  # names count here
    body["z"] = "x" * (remaining % 256 - 2)
    exceeded = [
        each for each in too_large(with_body({"a": body})) if "strings of the spec" in each.message
    ]
    assert bool(exceeded) is is_rejected


def test_configuration_size_limit_includes_rejected_checkpoints() -> None:
    job = make_job(with_templates(14_000))
    config = trainer_config(job, resolve(job), number=1)
    checkpoint = len(json.dumps(CHECKPOINTS)) + 48
    whole = len(config.to_json()) + 64 * checkpoint + 2048

    [violation] = too_large(with_templates(14_000))

    assert violation.message == (
        f"the trainer's configuration may exceed its limit (up to {whole} bytes, limit 65536 bytes)"
    )
    excess = whole - 64 * 1024
    assert too_large(with_templates(14_000 - excess)) == []
    assert too_large(with_templates(14_001 - excess)) != []


def test_escaped_characters_count_as_six_bytes_toward_size_limit() -> None:
    assert too_large(with_body({"a": "\x01" * 9300})) != []
    assert too_large(with_body({"a": "\x01" * 9100})) == []


def test_checkpoint_path_size_counts_once_per_rejected_checkpoint() -> None:
    body = with_body({"a": "\x01" * 5000})
    path = f"/mnt/runs/{'a' * 200}/{'b' * 200}"
    assert too_large(body) == []
    assert too_large(body | {"checkpoint.path": path}) != []


def test_extra_body_keys_count_toward_configuration_size() -> None:
    [violation] = too_large(with_body({"a": {f"{number:0>256}": 1 for number in range(220)}}))
    assert violation.message.startswith("the trainer's configuration may exceed its limit")


@pytest.mark.parametrize(("name", "is_rejected"), [("中" * 85, False), ("中" * 85 + "a", True)])
def test_file_name_limit_is_255_bytes(name: str, is_rejected: bool) -> None:
    job = make_job({"checkpoint.path": f"/mnt/runs/{name}"})
    reasons = {each.reason for each in violations(job, resolve(job))}
    assert (Reason.PATH_TOO_LONG in reasons) is is_rejected
