"""Settings of an operator installation. Must not read the environment."""

from dataclasses import dataclass, field

from .metadata import Manifest


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Settings of the operator that manifests depend on."""

    trainer_image: str
    """Image for jobs without `spec.image`."""
    operator_namespace: str
    """Namespace of the operator's pods, which the NetworkPolicy of a job admits."""
    operator_labels: dict[str, str] = field(
        default_factory=lambda: {
            "app.kubernetes.io/name": "raggrpo-operator",
            "app.kubernetes.io/component": "operator",
        }
    )
    """Labels of the operator's pods."""
    scrape_namespaces: tuple[str, ...] = ()
    """Namespaces whose pods may scrape /metrics."""
    restrict_egress: bool = True
    """Whether pods of a job may reach only DNS, each other and the hosts in the job's spec."""
    api_server: tuple[str, ...] = ()
    """Networks of the API server, which pods of a job may never reach."""
    egress: tuple[Manifest, ...] = ()
    """Additional egress rules for the pods of all jobs."""
    image_pull_policy: str = "IfNotPresent"
    service_account: str = "default"
    """Service account of a job's pods; its token is not mounted."""
    ray_version: str = "2.60.0"
    """Ray version assumed for the trainer image until preflight reports the version."""
    scratch_size: str = "50Gi"
    """Size limit of /tmp: staged data, Ray logs and spilled objects."""
    home_size: str = "10Gi"
    """Size limit of the home folder, which contains caches."""
