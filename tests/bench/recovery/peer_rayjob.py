"""A RayJob that does what an attempt of one of our jobs does: same pods, entrypoint, configuration.

Its retry needs nothing of ours around it: the trainer itself claims the checkpoint folder as its
next epoch and goes on from the newest complete checkpoint there.
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
    """Return the Secret of all RayJobs; those of our jobs end with them."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": TOKEN},
        "stringData": {TOKEN_KEY: uuid.uuid4().hex},
    }


def rayjob(name: str, cluster: Manifest, config: Manifest, folder: str) -> Manifest:
    """Return a RayJob with the spec of our RayCluster and the configuration of our attempt.

    Only its checkpoint folder, the token's Secret and the pods' labels are its own: by ours the
    operator would take them for a job's. HTTPMode: it asks for the job every 3 s and needs no
    submitter pod, for whose end the other modes wait too.
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
