"""The operator in a test cluster, from its chart, with images of the present sources."""

from pathlib import Path

from cluster.images import Images
from cluster.kind_cluster import run
from cluster.kubernetes import Kubernetes
from cluster.tools import tool_folder

CHART = Path(__file__).parents[2] / "helm" / "raggrpo-operator"
RELEASE, SYSTEM = "raggrpo-operator", "raggrpo-system"


def install_operator(cluster: Kubernetes, images: Images, *values: str) -> None:
    """Install or upgrade the release and wait until it is ready; `values` as in helm's --set.

    Raises:
        CannotStart: It did not get ready.
    """
    tags = (
        f"image.tag={images.operator.rpartition(':')[2]}",
        f"trainerImage.tag={images.trainer.rpartition(':')[2]}",
    )
    run(
        [
            str(tool_folder("helm") / "helm"), "upgrade", "--install", RELEASE, str(CHART),
            "--namespace", SYSTEM, "--create-namespace", "--kubeconfig", str(cluster.kubeconfig),
            "--wait", "--timeout", "180s", "--set", ",".join([*tags, *values]),
        ]
    )  # fmt: skip
