"""Settings of one operator installation for all jobs. Must not read the environment."""

from dataclasses import dataclass, field

from .metadata import Manifest


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Settings that end up in manifests."""

    trainer_image: str
    """Image for jobs that name none."""
    operator_namespace: str
    """Namespace of the operator's pods; a job's NetworkPolicy lets them in."""
    token_key_id: str
    """Name of the installation key that new tokens are derived from."""
    operator_labels: dict[str, str] = field(
        default_factory=lambda: {"app.kubernetes.io/name": "raggrpo-operator"}
    )
    """Labels of the operator's pods."""
    scrape_namespaces: tuple[str, ...] = ()
    """Namespaces whose pods may read /metrics."""
    restrict_egress: bool = True
    """Whether a job's pods reach only DNS, each other and what the job's spec names."""
    api_server: tuple[str, ...] = ()
    """Networks of the API server, which a job's pods never reach."""
    egress: tuple[Manifest, ...] = ()
    """Further rules for their outgoing traffic."""
    image_pull_policy: str = "IfNotPresent"
    service_account: str = "default"
    """Service account of a job's pods; its token is never mounted."""
    ray_version: str = "2.60.0"
    """Ray version assumed for the trainer image until preflight has read it."""
    scratch_size: str = "50Gi"
    """Size limit of /tmp: staged data, Ray's logs and spilled objects."""
    home_size: str = "10Gi"
    """Size limit of the home folder: caches."""
