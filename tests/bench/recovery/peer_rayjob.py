"""A RayJob equivalent to an attempt of a RagGrpoJob: same pods, entrypoint and configuration.

Its retry needs no operator: the trainer claims the checkpoint folder with the next epoch and
resumes from the newest complete checkpoint.
"""

import copy
import json
import uuid
from typing import Any

from raggrpo_api.trainer.sealed_config import seal
from raggrpo_operator.core.manifests.token_secret import TOKEN_KEY
from raggrpo_operator.kubernetes_runtime.rounds.runtime import ENTRYPOINT

Manifest = dict[str, Any]
TOKEN = "rayjob-token"
RETRIES = 100


def token_secret() -> Manifest:
    """Return the token Secret shared by all RayJobs."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": TOKEN},
        "stringData": {TOKEN_KEY: uuid.uuid4().hex},
    }


def rayjob(name: str, cluster: Manifest, config: Manifest, folder: str) -> Manifest:
    """Return a RayJob with the RayCluster spec and configuration of a RagGrpoJob's attempt.

    Checkpoint folder, token Secret and pod labels differ, so that the operator does not adopt its
    pods. In HTTPMode KubeRay polls the job every 3 s and needs no submitter pod.
    """
    cluster = copy.deepcopy(cluster)
    cluster["authOptions"]["secretName"] = TOKEN
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        del group["template"]["metadata"]["labels"]
    config = copy.deepcopy(config)
    config["checkpoint"]["path"] = folder
    config["monitoring"]["logDir"] = f"{folder}/logs"
    environment = seal(json.dumps(config, sort_keys=True))
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name},
        "spec": {
            "submissionMode": "HTTPMode",
            "backoffLimit": RETRIES,
            "shutdownAfterJobFinishes": True,
            "entrypoint": ENTRYPOINT,
            "runtimeEnvYAML": json.dumps({"env_vars": environment}),
            "rayClusterSpec": cluster,
        },
    }
