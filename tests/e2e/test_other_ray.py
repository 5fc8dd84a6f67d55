"""A job keeps its Ray version when its image, or the image behind its tag, changes."""

import pytest

from raggrpo_api.names import ANNOTATION_RETRY, LABEL_JOB
from tools.kind.images import OTHER_RAY, Images, build_other_ray_image, push_to_registry, retag
from tools.kind.jobs import condition, has_ended, wait_for_status
from tools.kind.kubernetes import Kubernetes
from tools.kind.training_job import TrainingJob, attempts, make_job, watch_ray_clusters

pytestmark = pytest.mark.long

STEPS = 20
NAME = "raggrpo/trainer:moving"
"""A tag without a registry digest on the nodes, so pods can refer to it only by name."""
END_SECONDS = 240


@pytest.mark.row("C13")
@pytest.mark.timeout(3600)
def test_changed_ray_version_is_rejected_on_resume(
    cluster: Kubernetes, operator: Images, seeded: str
) -> None:
    other = build_other_ray_image(operator.trainer)
    retag(NAME, operator.trainer)
    job = TrainingJob(cluster, seeded, "stays")

    def retry_with(image: str) -> None:
        job.patch(suspend=False, image=image)
        job.kubectl("annotate", "--overwrite", "rgj", job.name, f"{ANNOTATION_RETRY}={image[-63:]}")
        wait_for_status(
            cluster, seeded, job.name, lambda status: not has_ended(status), END_SECONDS
        )

    with watch_ray_clusters(cluster, seeded) as clusters:
        cluster.apply(make_job(job.name, NAME, STEPS), namespace=seeded)
        job.wait_for_steps(2, attempt=1)
        ray_version = job.status()["pinned"]["rayVersion"]
        job.patch(suspend=True)
        job.wait_until_freed(60)

        retag(NAME, other)
        job.patch(suspend=False)
        status = wait_for_status(cluster, seeded, job.name, has_ended, END_SECONDS)
        assert attempts(status)[-1][1] == "ImageChanged"
        message = condition(status, "Failed")["message"]
        assert f"now has Ray {OTHER_RAY}, but the job started with {ray_version}" in message
        for image in (other, NAME):
            retry_with(image)
            status = wait_for_status(cluster, seeded, job.name, has_ended, END_SECONDS)
            assert status["phase"] == "Failed"
            message = condition(status, "Failed")["message"]
            assert (
                f"the image has Ray {OTHER_RAY}, but the job started with Ray {ray_version}"
                in message
            )
        # One for the first attempt, and one whose head reported the other Ray version.
        assert sum(each.endswith("ADDED") for each in clusters()) == 2

    retry_with(operator.trainer)
    done = job.wait_for_complete()
    assert done["pinned"]["rayVersion"] == ray_version
    assert attempts(done) == [
        (1, "Suspended", "First"),
        (2, "ImageChanged", "NewCluster"),
        (3, "Succeeded", "NewCluster"),
    ]


@pytest.mark.row("C13")
@pytest.mark.timeout(3600)
def test_pods_of_resumed_job_use_image_digest_of_first_pod(
    cluster: Kubernetes, operator: Images, seeded: str
) -> None:
    image = push_to_registry(operator.trainer)
    job = TrainingJob(cluster, seeded, "pinned")

    def images() -> set[str]:
        """Return the images of the containers in the Ray pods."""
        path = "-o=jsonpath={.items[*].spec.containers[*].image}"
        of_job = ("pods", "-l", f"{LABEL_JOB}={job.name}")
        return set(job.kubectl("get", *of_job, path).split())

    cluster.apply(make_job(job.name, image, STEPS), namespace=seeded)
    job.wait_for_steps(2, attempt=1)
    assert images() == {image}
    name, _, digest = job.status()["pinned"]["imageId"].partition("@")
    assert (name, digest.partition(":")[0]) == (image.rpartition(":")[0], "sha256")

    job.patch(suspend=True)
    job.wait_until_freed(60)
    job.patch(suspend=False)
    job.wait_for_steps(2, attempt=2)
    assert images() == {f"{image}@{digest}"}
    assert attempts(job.wait_for_complete())[-1] == (2, "Succeeded", "NewCluster")
