"""ConfigMap that records the configuration of an attempt for users; attempts do not read it."""

from raggrpo_api import names
from raggrpo_api.job import Metadata
from raggrpo_api.trainer.config import TrainerConfig

from .metadata import Manifest, child_metadata


def render_config_map(job: Metadata, *, config: TrainerConfig) -> Manifest:
    """Return the immutable ConfigMap that records an attempt's configuration."""
    number = config.attempt.number
    name = names.config_map_name(job.name, job.uid, number)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": child_metadata(job, name, labels={names.LABEL_ATTEMPT: str(number)}),
        "immutable": True,
        "data": {names.CONFIG_FILE: config.record()},
    }
