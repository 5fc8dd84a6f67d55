import pytest

from raggrpo_api import names
from raggrpo_operator.core.manifests.reader_pod import render_reader_pod
from support.builders.operator.jobs import make_job
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
