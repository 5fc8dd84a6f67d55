import pytest

from raggrpo_api import names
from raggrpo_api.trainer.preflight import Facts
from raggrpo_operator.core.manifests.metadata import Manifest
from raggrpo_operator.core.manifests.reader_pod import (
    MAX_SECONDS,
    render_reader_pod,
    render_trainer_pod,
)
from raggrpo_operator.core.spec.quantity import parse_quantity
from raggrpo_operator.core.spec.resolve import resolve, trainer_config
from support.builders.operator.jobs import make_job
from support.builders.operator.manifests import make_clustered_job
from support.kubernetes.pod_security import violations_of_restricted

VOLUMES = [
    {"name": "runs", "claimName": "runs", "mountPath": "/mnt/runs"},
    {"name": "data", "claimName": "data", "mountPath": "/mnt/data", "readOnly": True},
]


def test_reader_pod_is_restricted_and_mounts_read_only() -> None:
    pod = render_reader_pod(make_job({"volumes": VOLUMES}), "small-reader-1", "trainer:1")

    [container] = pod["spec"]["containers"]
    mounts = {each["mountPath"]: each.get("readOnly") for each in container["volumeMounts"]}
    assert violations_of_restricted(pod["spec"]) == []
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert (mounts["/mnt/runs"], mounts["/mnt/data"]) == (True, True)


def test_reader_pod_does_not_get_job_env() -> None:
    env = [{"name": "WANDB_API_KEY", "secretKeyRef": {"name": "wandb", "key": "api-key"}}]

    pod = render_reader_pod(make_job({"env": env}), "small-reader-1", "trainer:1")

    assert "wandb" not in str(pod)


def test_reader_pod_has_deadline_and_owner_but_not_job_label() -> None:
    pod = render_reader_pod(make_job(), "small-reader-1", "trainer:1")

    assert pod["spec"]["activeDeadlineSeconds"] == 600
    assert pod["metadata"]["ownerReferences"][0]["uid"] == "5f1d"
    assert names.LABEL_JOB not in pod["metadata"]["labels"]
    assert names.LABEL_ROLE not in pod["metadata"]["labels"]


@pytest.mark.parametrize(("own", "image"), [("mine:2", "mine:2"), ("", "trainer:1")])
def test_reader_pod_prefers_job_image(own: str, image: str) -> None:
    pod = render_reader_pod(make_job({"image": own}), "small-reader-1", "trainer:1")

    assert pod["spec"]["containers"][0]["image"] == image


def make_trainer_pod(changes: dict[str, object], parameters: int, *, exports: bool) -> Manifest:
    job = make_clustered_job(make_job(changes), Facts(parameters=parameters))
    config = trainer_config(job, resolve(job, job.status.preflight.facts))
    return render_trainer_pod(job, "small-reader-1", "trainer:1", config, exports=exports)


@pytest.mark.parametrize("exports", [False, True])
def test_trainer_pod_has_memory_and_time_for_export_of_model(exports: bool) -> None:
    billions = 7
    pod = make_trainer_pod({"volumes": VOLUMES}, billions * 10**9, exports=exports)

    memory = parse_quantity(pod["spec"]["containers"][0]["resources"]["limits"]["memory"])
    seconds = pod["spec"]["activeDeadlineSeconds"]
    assert (memory > billions * 8e9) is exports
    # checkpoint (12 B per parameter), initial model, export and upload (4 B each) at 10 MB/s
    assert seconds == MAX_SECONDS + exports * billions * 24 * 10**9 // 10**7
    assert pod["spec"]["containers"][0]["command"] == ["sleep", str(seconds)]
    assert violations_of_restricted(pod["spec"]) == []


def test_trainer_pod_can_export_before_facts_are_known() -> None:
    pod = make_trainer_pod({"volumes": VOLUMES}, 0, exports=True)
    assert pod["spec"]["activeDeadlineSeconds"] == MAX_SECONDS
