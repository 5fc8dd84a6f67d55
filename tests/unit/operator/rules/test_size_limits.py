"""How large a job may be, to the byte."""

import json
from typing import Any

import pytest

from raggrpo_operator.core.rules import violations
from raggrpo_operator.core.spec.resolve import resolve, trainer_config
from raggrpo_operator.core.spec.violation import Reason, Violation
from support.builders.operator.jobs import make_job

KB = {"name": "kb", "url": "http://kb:8000/retrieve"}
CHECKPOINTS = "/mnt/runs/checkpoints"
GIVEN = (
    "/mnt/runs/model", "/mnt/runs/train.jsonl", CHECKPOINTS,
    "work", "work", "/mnt/runs", "Prompt", *KB.values(),
)  # fmt: skip
"""All texts that such a job has anyhow."""


def too_large(changes: dict[str, Any]) -> list[Violation]:
    job = make_job(changes)
    found = violations(job, resolve(job))
    return [each for each in found if each.reason is Reason.SPEC_TOO_LARGE]


def with_body(body: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"retrieval": {"mode": "Prompt", "endpoints": [KB | {"extraBody": body}], **changes}}


def with_templates(letters: int) -> dict[str, Any]:
    texts = {f"{number}": "x" * 16_000 for number in range(3)}
    return with_body(texts, promptTemplate="{passages}{prompt}" + "x" * letters)


@pytest.mark.parametrize(("letters", "is_refused"), [(2010, False), (2011, True)])
def test_an_environment_may_have_32_kib(letters: int, is_refused: bool) -> None:
    lengths = [*[2048] * 15, letters]
    env = [{"name": f"A{number:02}", "value": "x" * n} for number, n in enumerate(lengths)]
    names = 16  # the third letter of each name
    env[0]["value"] = "x" * (2048 - names + 6)  # 15 × 2048 + 2010 + 38 = 32 KiB
    found = [each for each in too_large({"env": env}) if each.path == "spec.env"]
    assert bool(found) is is_refused


@pytest.mark.parametrize(("more", "is_refused"), [(0, False), (1, True)])
def test_a_specification_may_have_64_kib_of_texts(more: int, is_refused: bool) -> None:
    left = 64 * 1024 - sum(map(len, GIVEN)) + more
    body = {f"{number:03}": "x" * 253 for number in range(left // 256)}  # names count here
    body["z"] = "x" * (left % 256 - 2)
    found = [each for each in too_large(with_body({"a": body})) if "all texts" in each.message]
    assert bool(found) is is_refused


def test_a_configuration_keeps_room_for_what_recovery_adds() -> None:
    job = make_job(with_templates(14_000))
    config = trainer_config(job, resolve(job), number=1)
    checkpoint = len(json.dumps(CHECKPOINTS)) + 48
    whole = len(config.to_json()) + 64 * checkpoint + 2048

    [found] = too_large(with_templates(14_000))

    assert found.message == (
        f"the trainer's configuration may become too large ({whole} bytes, limit 65536 bytes)"
    )
    excess = whole - 64 * 1024
    assert too_large(with_templates(14_000 - excess)) == []
    assert too_large(with_templates(14_001 - excess)) != []


def test_signs_that_json_writes_with_six_bytes_count_as_six() -> None:
    assert too_large(with_body({"a": "\x01" * 9300})) != []
    assert too_large(with_body({"a": "\x01" * 9100})) == []


def test_a_long_path_counts_for_every_checkpoint_that_recovery_may_name() -> None:
    body = with_body({"a": "\x01" * 5000})
    path = f"/mnt/runs/{'a' * 200}/{'b' * 200}"
    assert too_large(body) == []
    assert too_large(body | {"checkpoint.path": path}) != []


def test_names_in_a_body_take_room_in_the_configuration() -> None:
    [found] = too_large(with_body({"a": {f"{number:0>256}": 1 for number in range(220)}}))
    assert found.message.startswith("the trainer's configuration may become too large")


@pytest.mark.parametrize(("name", "is_refused"), [("中" * 85, False), ("中" * 85 + "a", True)])
def test_a_file_name_may_have_255_bytes(name: str, is_refused: bool) -> None:
    job = make_job({"checkpoint.path": f"/mnt/runs/{name}"})
    found = {each.reason for each in violations(job, resolve(job))}
    assert (Reason.PATH_TOO_LONG in found) is is_refused
