"""All manifests of a job, as one installation of the operator would render them."""

import json
from collections.abc import Iterator
from typing import Any

import yaml

from raggrpo_api import names
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.preflight import Facts
from raggrpo_api.status import JobStatus, PreflightStatus, Sizing
from raggrpo_operator.core.grace import grace_seconds
from raggrpo_operator.core.manifests.cluster_settings import ClusterSettings
from raggrpo_operator.core.manifests.config_map import render_config_map
from raggrpo_operator.core.manifests.network_policy import render_network_policy
from raggrpo_operator.core.manifests.preflight_pod import render_preflight_pod
from raggrpo_operator.core.manifests.ray_cluster import render_ray_cluster
from raggrpo_operator.core.manifests.reader_pod import render_reader_pod
from raggrpo_operator.core.manifests.retriever import render_retriever
from raggrpo_operator.core.manifests.token_secret import render_token_secret
from raggrpo_operator.core.resolve import resolve, trainer_config
from raggrpo_operator.core.sizing import size

UID = "0b7d3f4e-6a51-4c1c-9d2f-1d2e3f4a5b6c"
SETTINGS = ClusterSettings(
    trainer_image="registry.example.com/raggrpo/trainer:0.1.0",
    operator_namespace="raggrpo-system",
    token_key_id="k1",
    scrape_namespaces=("monitoring",),
)
Manifest = dict[str, Any]


def a_clustered_job(job: RagGrpoJob, facts: Facts | None = None) -> RagGrpoJob:
    """Return the job as the API server holds it: with a uid, and a status that knows the facts."""
    metadata = job.metadata.model_copy(update={"uid": UID, "namespace": "research"})
    status = JobStatus(preflight=PreflightStatus(facts=facts or Facts()))
    return job.model_copy(update={"metadata": metadata, "status": status})


def sizing_of(job: RagGrpoJob) -> Sizing:
    facts = job.status.preflight.facts
    return size(resolve(job, facts).spec, facts)


def all_manifests(job: RagGrpoJob, settings: ClusterSettings = SETTINGS) -> dict[str, Manifest]:
    """Return every manifest of the job by the name of its golden file."""
    resolved, sizing = resolve(job, job.status.preflight.facts), sizing_of(job)
    config = trainer_config(job, resolved, number=1, facts=job.status.preflight.facts)
    found = {
        "raycluster": render_ray_cluster(
            job,
            settings,
            number=1,
            sizing=sizing,
            grace_seconds=grace_seconds(resolved.spec, job.status),
        ),
        "preflight": render_preflight_pod(
            job, settings, config=config, spec_hash="00112233aabbccdd", sizing=sizing
        ),
        "configmap": render_config_map(job, config=config),
        "networkpolicy": render_network_policy(job, settings),
    }
    for endpoint in job.spec.retrieval.endpoints:
        if endpoint.managed is not None:
            deployment, service = render_retriever(job, settings, endpoint=endpoint, sizing=sizing)
            found[f"retriever-{endpoint.name}"] = deployment
            found[f"retriever-{endpoint.name}-service"] = service
    return found


def pod_templates(manifest: Manifest) -> Iterator[Manifest]:
    """Yield the pods (metadata and spec) that a manifest makes."""
    match manifest["kind"]:
        case "Pod":
            yield manifest
        case "Deployment":
            yield manifest["spec"]["template"]
        case "RayCluster":
            yield manifest["spec"]["headGroupSpec"]["template"]
            for group in manifest["spec"]["workerGroupSpecs"]:
                yield group["template"]


def objects_of(job: RagGrpoJob) -> dict[str, Manifest]:
    """Return all that is made for a job, KubeRay's pods too: as Pods, which every tool knows."""
    found = all_manifests(job)
    for template in pod_templates(found["raycluster"]):
        role = template["metadata"]["labels"][names.LABEL_ROLE]
        metadata = {"name": f"{job.metadata.name}-{role}", "namespace": job.metadata.namespace}
        pod = template | {"metadata": template["metadata"] | metadata}
        found[role] = {"apiVersion": "v1", "kind": "Pod"} | pod
    found["token"] = render_token_secret(job, key_id=SETTINGS.token_key_id, token="t")
    found["reader"] = render_reader_pod(job, "reader", SETTINGS.trainer_image)
    return found


def as_yaml(manifest: Manifest) -> str:
    """Return the manifest as readable text, the same for the same manifest."""
    plain = json.loads(json.dumps(manifest))  # no aliases
    return yaml.safe_dump(plain, sort_keys=False, width=100, allow_unicode=True)
