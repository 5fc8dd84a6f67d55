"""The manifests of a job as YAML text."""

import json
from importlib.metadata import version
from typing import Annotated

import typer
import yaml

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.trainer.preflight import Facts
from raggrpo_operator.core.manifests.cluster_settings import ClusterSettings
from raggrpo_operator.core.manifests.first_attempt import render_first_attempt
from raggrpo_operator.core.manifests.metadata import Manifest
from raggrpo_operator.core.spec.resolve import Resolved

Manifests = Annotated[
    bool, typer.Option("--manifests", help="Print the manifests that the operator would create.")
]
HEADER = """\
# Objects that the operator creates for the first attempt, with the default values of the chart.
# The Secret with the Ray token is omitted: its name and value are derived in the cluster.
"""
RELEASE = "raggrpo-system"


def manifests_text(
    job: RagGrpoJob, resolved: Resolved, image: str = "", facts: Facts | None = None
) -> str:
    """Return the manifests of the first attempt as a YAML stream.

    `image` defaults to the trainer image of this release.
    """
    settings = ClusterSettings(
        trainer_image=image or f"raggrpo/trainer:{version('raggrpo-operator')}",
        operator_namespace=RELEASE,
    )
    manifests = render_first_attempt(job, resolved, settings, facts)
    return HEADER + "---\n".join(map(as_yaml, manifests.values()))


def as_yaml(manifest: Manifest) -> str:
    """Return the manifest as deterministic YAML."""
    plain = json.loads(json.dumps(manifest))  # copies shared values, which would become aliases
    return str(yaml.safe_dump(plain, sort_keys=False, width=100, allow_unicode=True))
