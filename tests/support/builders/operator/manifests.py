"""All manifests of a job, rendered with fixed operator settings."""

from collections.abc import Iterator
from typing import Any

from raggrpo_api import names
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status.job_status import JobStatus, PreflightStatus
from raggrpo_api.status.sizing import Sizing
from raggrpo_api.trainer.preflight import Facts
from raggrpo_operator.core.manifests.cluster_settings import ClusterSettings
from raggrpo_operator.core.manifests.first_attempt import render_first_attempt
from raggrpo_operator.core.manifests.reader_pod import render_reader_pod
from raggrpo_operator.core.manifests.token_secret import render_token_secret
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.resolve import resolve

UID = "0b7d3f4e-6a51-4c1c-9d2f-1d2e3f4a5b6c"
SETTINGS = ClusterSettings(
    trainer_image="registry.example.com/raggrpo/trainer:0.1.0",
    operator_namespace="raggrpo-system",
    scrape_namespaces=("monitoring",),
)
Manifest = dict[str, Any]


def make_clustered_job(job: RagGrpoJob, facts: Facts | None = None) -> RagGrpoJob:
    """Return the job as stored by the API server, with a UID and preflight facts in its status."""
    metadata = job.metadata.model_copy(update={"uid": UID, "namespace": "research"})
    status = JobStatus(preflight=PreflightStatus(facts=facts or Facts()))
    return job.model_copy(update={"metadata": metadata, "status": status})


def sizing_of(job: RagGrpoJob) -> Sizing:
    facts = job.status.preflight.facts
    return size(resolve(job, facts).spec, facts)


def all_manifests(job: RagGrpoJob, settings: ClusterSettings = SETTINGS) -> dict[str, Manifest]:
    """Return every manifest of the job by the name of its golden file."""
    facts = job.status.preflight.facts
    return render_first_attempt(job, resolve(job, facts), settings, facts)


def pod_templates(manifest: Manifest) -> Iterator[Manifest]:
    """Yield the pod templates of a manifest."""
    match manifest["kind"]:
        case "Pod":
            yield manifest
        case "Deployment":
            yield manifest["spec"]["template"]
        case "RayCluster":
            yield manifest["spec"]["headGroupSpec"]["template"]
            for group in manifest["spec"]["workerGroupSpecs"]:
                yield group["template"]


def objects_of(job: RagGrpoJob, settings: ClusterSettings = SETTINGS) -> dict[str, Manifest]:
    """Return all objects of a job by name, including KubeRay's pods as plain Pods."""
    objects = all_manifests(job, settings)
    for template in pod_templates(objects["raycluster"]):
        role = template["metadata"]["labels"][names.LABEL_ROLE]
        metadata = {"name": f"{job.metadata.name}-{role}", "namespace": job.metadata.namespace}
        pod = template | {"metadata": template["metadata"] | metadata}
        objects[role] = {"apiVersion": "v1", "kind": "Pod"} | pod
    objects["token"] = render_token_secret(job.metadata, name="small-token", token="t")
    objects["reader"] = render_reader_pod(job, "reader", settings.trainer_image)
    return objects
