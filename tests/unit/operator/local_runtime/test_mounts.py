from pathlib import Path

import pytest

from raggrpo_api.job import RagGrpoJob
from raggrpo_operator.core.rules import violations
from raggrpo_operator.core.spec.claims import named_volumes
from raggrpo_operator.core.spec.path_fields import path_fields
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.spec.violation import errors
from raggrpo_operator.local_runtime.mounts import apply_mounts, machine_problems, read_mounts
from raggrpo_operator.local_runtime.overrides import InvalidOptions
from support.builders.operator.jobs import SAMPLES, make_job, make_sample

VOLUMES = [
    {"name": "data", "claimName": "datasets", "mountPath": "/mnt/data", "readOnly": True},
    {"name": "deep", "claimName": "special", "mountPath": "/mnt/data/special"},
    {"name": "ckpt", "claimName": "checkpoints", "mountPath": "/mnt/checkpoints"},
]
MOUNTS = {"datasets": "/home/d", "special": "/home/s", "checkpoints": "/home/c"}


def nowhere(path: str) -> bool:
    return not path.startswith("/mnt")


def make_cluster_job() -> RagGrpoJob:
    return make_job(
        {
            "model.path": "/mnt/data/special/model",
            "data.trainFiles": ["/mnt/data/train.jsonl", "/opt/in-the-image.jsonl"],
            "checkpoint.path": "/mnt/checkpoints/small",
            "reward.codeFrom": {"path": "/mnt/data"},
            "retrieval.endpoints": [
                {"name": "kb", "managed": {"corpus": "/mnt/data/corpus.jsonl"}}
            ],
            "volumes": VOLUMES,
        }
    )


def test_mounts_rewrite_paths_on_volumes() -> None:
    spec = apply_mounts(make_cluster_job(), MOUNTS, nowhere).spec

    assert dict(path_fields(spec)) == {
        "spec.model.path": "/home/s/model",
        "spec.data.trainFiles[0]": "/home/d/train.jsonl",
        "spec.data.trainFiles[1]": "/opt/in-the-image.jsonl",
        "spec.retrieval.endpoints[0].managed.corpus": "/home/d/corpus.jsonl",
        "spec.reward.codeFrom.path": "/home/d",
        "spec.checkpoint.path": "/home/c/small",
        "spec.volumes[0].mountPath": "/home/d",
        "spec.volumes[1].mountPath": "/home/s",
        "spec.volumes[2].mountPath": "/home/c",
    }


def test_mounts_do_not_change_value_origins() -> None:
    job = make_cluster_job()
    assert resolve(apply_mounts(job, MOUNTS, nowhere)).origins == resolve(job).origins


def test_mount_is_not_required_if_volume_path_exists_locally() -> None:
    job = make_cluster_job()
    assert apply_mounts(job, {}, lambda _: True) == job


def test_nested_volume_path_is_unchanged_when_parent_is_mounted() -> None:
    exists = {"/home/d", "/home/c", "/mnt/data/special"}.__contains__
    mounts = {"datasets": "/home/d", "checkpoints": "/home/c"}
    assert (
        apply_mounts(make_cluster_job(), mounts, exists).spec.model.path
        == "/mnt/data/special/model"
    )


def test_missing_mounts_are_reported_with_flags() -> None:
    with pytest.raises(InvalidOptions) as caught:
        apply_mounts(make_cluster_job(), {"special": "/home/s"}, nowhere)

    assert caught.value.problems == (
        "--mount datasets=/path/to/folder  # required: it replaces volume data at /mnt/data",
        "--mount checkpoints=/path/to/folder  # required: it replaces volume ckpt at "
        "/mnt/checkpoints",
    )


def test_mount_is_not_required_for_unused_volume() -> None:
    unused = {"name": "tmp", "claimName": "scratch", "mountPath": "/mnt/scratch"}
    job = make_job({"volumes": [{"name": "w", "claimName": "w", "mountPath": "/mnt/runs"}, unused]})
    assert apply_mounts(job, {"w": "/home/w"}, nowhere).spec.model.path == "/home/w/model"


def test_unknown_claim_is_reported_with_suggestion() -> None:
    with pytest.raises(InvalidOptions) as caught:
        apply_mounts(make_cluster_job(), {**MOUNTS, "dataset": "/home/x"}, nowhere)

    assert caught.value.problems == (
        "--mount dataset=/home/x: no volume uses claim dataset (claims: datasets, special, "
        "checkpoints); --mount datasets=/home/x  # replaces volume data at /mnt/data",
    )


def test_mount_is_rejected_for_job_without_volumes() -> None:
    with pytest.raises(InvalidOptions, match="the job has no volumes; omit the option"):
        apply_mounts(make_job({"volumes": []}), {"x": "/home/x"}, nowhere)


def test_mount_of_missing_folder_is_rejected() -> None:
    with pytest.raises(InvalidOptions, match="mkdir -p /home/d"):
        apply_mounts(make_cluster_job(), MOUNTS, {"/home/s", "/home/c"}.__contains__)


def test_mount_of_invalid_path_is_rejected() -> None:
    mounts = MOUNTS | {"datasets": "/home/a\nb"}
    with pytest.raises(InvalidOptions, match="control characters") as caught:
        apply_mounts(make_cluster_job(), mounts, nowhere)
    assert all(problem.isprintable() for problem in caught.value.problems)


def test_mount_options_become_absolute_folders() -> None:
    assert read_mounts(["work=data"], lambda folder: f"/here/{folder}") == {"work": "/here/data"}


@pytest.mark.parametrize("option", ["work", "work=", "=x"])
def test_malformed_mount_is_reported_with_syntax(option: str) -> None:
    with pytest.raises(InvalidOptions, match="expected --mount CLAIM=DIR"):
        read_mounts([option], str)


def test_duplicate_claim_in_mount_options_is_rejected() -> None:
    with pytest.raises(InvalidOptions, match="claim w is specified twice"):
        read_mounts(["w=/a", "w=/b"], str)


@pytest.mark.row("B32")
@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_sample_jobs_are_valid_with_mounts(path: Path) -> None:
    job = make_sample(path)
    mounts = {volume.claim_name: f"/home/{volume.name}" for volume in named_volumes(job)}
    here = apply_mounts(job, mounts, nowhere)
    assert errors(violations(here, resolve(here))) == ()
    assert not any(place.startswith("/mnt") for _, place in path_fields(here.spec))


@pytest.mark.parametrize(
    ("changes", "num_gpus", "flags"),
    [
        ({}, 0, ["--set resources.device=CPU"]),
        ({}, 1, []),
        ({"resources.gpusPerNode": 8}, 2, ["--set resources.gpusPerNode=2"]),
        ({"resources.device": "CPU"}, 0, []),
        ({"resources.device": "CPU", "resources.nodes": 2}, 0, ["--set resources.nodes=1"]),
    ],
)
def test_machine_problems_suggest_command_line_flags(
    changes: dict[str, object], num_gpus: int, flags: list[str]
) -> None:
    problems = machine_problems(resolve(make_job(changes)).spec, num_gpus)
    assert [problem[problem.index("--set") :] for problem in problems] == flags


def test_default_volumes_are_replaced_by_folders() -> None:
    job = make_job({"checkpoint": {}, "volumes": [], "model": {"source": "hf://org/model"}})
    folders = {volume.claim_name: f"/home/me/{volume.name}" for volume in named_volumes(job)}

    spec = resolve(apply_mounts(job, folders, lambda _: True)).spec

    assert spec.checkpoint.path == "/home/me/runs/checkpoints"
    assert spec.staging.path == "/home/me/scratch/staged"
    assert [each.mount_path for each in spec.volumes] == ["/home/me/runs", "/home/me/scratch"]


def test_volume_with_claim_template_is_replaced_by_name_of_created_claim() -> None:
    volume = {"name": "runs", "mountPath": "/mnt/runs", "claimTemplate": {"size": "1Gi"}}
    job = make_job({"volumes": [volume]})

    moved = apply_mounts(job, {"small-runs": "/home/me/runs"}, lambda _: True)

    assert moved.spec.checkpoint.path == "/home/me/runs/checkpoints"
