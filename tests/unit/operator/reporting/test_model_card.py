import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.job_variables import job_from_variables, job_variables
from raggrpo_api.status.job_status import JobStatus, StagingStatus
from raggrpo_api.trainer.staging import StagedSource
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.spec.sources import request_hash
from raggrpo_operator.errors import PermanentError
from raggrpo_operator.reporting.model_card import name_base, render_card
from support.builders.operator.jobs import make_job

HUB = {
    "model": {"source": "hf://org/base@main"},
    "data.trainFiles": [],
    "data.sources": ["hf://datasets/org/rows/train.jsonl"],
}
SUMMARY = {
    "step": 400,
    "totalSteps": 400,
    "restarts": 2,
    "exactMatchBefore": 0.25,
    "exactMatchAfter": 0.5,
    "exactMatchControl": None,
    "rewardFirst": 0.1,
    "rewardLast": 0.9,
    "bestStep": 300,
    "bestScore": "ValidationExactMatch 0.5100",
    "notLearning": None,
}


def make_card(job: RagGrpoJob, steps: dict[str, int], **summary: Any) -> str:
    return render_card(job, resolve(job), SUMMARY | summary, steps, {"torch": "2.13.0"})


def make_hub_job(**changes: Any) -> RagGrpoJob:
    job = make_job({**HUB, **changes})
    revisions = {"spec.model.source": "c0ffee", "spec.data.sources[0]": "beef"}
    sources = [
        StagedSource(field=field, path=f"/mnt/runs/{each}", revision=each, digest="d", bytes=1)
        for field, each in revisions.items()
    ]
    staging = StagingStatus(request_hash=request_hash(job.spec), sources=sources)
    return job.model_copy(update={"status": JobStatus(staging=staging)})


def test_card_contains_facts_of_run() -> None:
    card = make_card(make_hub_job(**{"training.lora": {"rank": 8}}), {"": 400, "best/": 300})

    metadata = yaml.safe_load(card.split("---")[1])
    assert metadata["base_model"] == ["org/base"]
    assert metadata["datasets"] == ["org/rows"]
    assert "lora" in metadata["tags"]
    for line in (
        "| Base model | hf://org/base@main, revision c0ffee |",
        "| Data | hf://datasets/org/rows/train.jsonl, revision beef |",
        "| Steps | 400 of 400 |",
        "| Adapters | LoRA, rank 8, alpha 16 |",
        "| Held-out exact match | 25.0% before, 50.0% after |",
        "| Best checkpoint | step 300, ValidationExactMatch 0.5100 |",
        "| Versions | torch 2.13.0 |",
        "- this folder: the model after step 400",
        "- `best/adapter/`: the adapter of that model in peft's format",
    ):
        assert line in card.splitlines()


def test_card_escapes_values_of_job() -> None:
    path = "/mnt/runs/<script>|&"
    card = make_card(make_job({"model": {"path": path}}), {"": 400})
    assert "| Base model | /mnt/runs/&lt;script>\\|&amp; |" in card
    assert "<script>" not in card


def test_adapter_names_repository_of_its_base(tmp_path: Path) -> None:
    job = make_hub_job()
    for folder in ("adapter", "best/adapter"):
        config = tmp_path / folder / "adapter_config.json"
        config.parent.mkdir(parents=True)
        config.write_text(json.dumps({"base_model_name_or_path": "/mnt/runs/c0ffee"}))

    name_base(tmp_path, job, resolve(job).spec.model.path)

    for file in tmp_path.rglob("*.json"):
        assert json.loads(file.read_text()) == {"base_model_name_or_path": "org/base"}


@pytest.mark.parametrize("link", ["adapter/adapter_config.json", "adapter", "best"])
def test_links_in_export_are_neither_followed_nor_replaced(tmp_path: Path, link: str) -> None:
    job = make_hub_job()
    path = resolve(job).spec.model.path
    outside = tmp_path / "outside"
    for name in ("secret.json", "adapter/secret.json"):
        (outside / name).parent.mkdir(exist_ok=True, parents=True)
        (outside / name).write_text(path)
    linked = tmp_path / "export" / link
    linked.parent.mkdir(parents=True)
    linked.symlink_to(outside / "secret.json" if linked.suffix else outside)

    name_base(tmp_path / "export", job, path)

    assert linked.is_symlink()
    assert {file.read_text() for file in outside.rglob("*.json")} == {path}


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (os.mkfifo, "it is not a regular file"),
        (lambda file: file.write_bytes(b"\xff\x00"), "it is not UTF-8"),
        (lambda file: file.write_text("x" * 600_000), "it has more than 524,288 bytes"),
    ],
)
def test_unreadable_adapter_is_reported_with_remedy(
    tmp_path: Path, make: Callable[[Path], object], problem: str
) -> None:
    job = make_hub_job()
    (tmp_path / "adapter").mkdir()
    make(tmp_path / "adapter" / "adapter_config.json")

    with pytest.raises(PermanentError, match="delete the folder of the export") as caught:
        name_base(tmp_path, job, resolve(job).spec.model.path)

    assert f"adapter_config.json cannot be read: {problem}" in str(caught.value)


def test_job_is_passed_in_variables_without_its_annotations() -> None:
    job = make_hub_job()
    metadata = job.metadata.model_copy(update={"annotations": {"large": "x" * 200_000}})
    variables = job_variables(job.model_copy(update={"metadata": metadata}))
    assert sum(map(len, variables.values())) < 4096
    read = job_from_variables(variables)
    assert (read.status, read.spec, read.metadata.uid) == (job.status, job.spec, job.metadata.uid)
