"""What one installation of the operator decides for all jobs. Reads no environment itself."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Settings that reach manifests."""

    trainer_image: str
    """Image of jobs that name none."""
    operator_namespace: str
    """Where the operator's pods run; a NetworkPolicy lets them in."""
    token_key_id: str
    """Name of the installation key that new tokens are made with."""
    operator_labels: dict[str, str] = field(
        default_factory=lambda: {"app.kubernetes.io/name": "raggrpo-operator"}
    )
    """Labels of the operator's pods."""
    scrape_namespaces: tuple[str, ...] = ()
    """Namespaces whose pods may read /metrics."""
    image_pull_policy: str = "IfNotPresent"
    service_account: str = "default"
    """Service account of a job's pods; its token is never mounted."""
    ray_version: str = "2.60.0"
    """Ray in the trainer image, until preflight has read it."""
    scratch_size: str = "50Gi"
    """Limit of /tmp: staged data, Ray's logs and spilled objects."""
    home_size: str = "10Gi"
    """Limit of the home folder: caches."""
