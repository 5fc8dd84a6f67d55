"""Commands in README.md and docs/start, and the test or CI step that executes each of them."""

import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[3]
CLUSTER_PAGE = ROOT / "docs" / "start" / "first-cluster-job.md"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs" / "start").glob("*.md")))
_BLOCK = re.compile(r"^```(?:sh|console|bash)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)

RUN_BY_UNIT_TEST = (
    ".venv/bin/raggrpo status --dir raggrpo-jobs/quickstart",
    ".venv/bin/raggrpo report --dir raggrpo-jobs/quickstart",
    ".venv/bin/raggrpo validate crds/samples/quickstart.yaml",
    ".venv/bin/raggrpo plan crds/samples/quickstart.yaml",
)
"""Executed by tests/unit/docs/test_commands.py."""
_CI, _RELEASE = ".ci/run", ".github/workflows/ci.yml"
_KIND, _LEARNING = "tests/tools/kind/kind_cluster.py", "tests/bench/training/quickstart_learning.py"
RUN_ELSEWHERE: Mapping[str, tuple[str, ...]] = {
    "make quickstart": (_RELEASE, "run: make quickstart"),
    "make test": (_CI, "\nmake test\n"),
    "make setup": (_CI, "\nmake setup\n"),
    ".venv/bin/python -m raggrpo_quickstart --dir seed-1/input --seed 1": (
        _LEARNING, '"raggrpo_quickstart"', '"--seed"',
    ),
    ".venv/bin/raggrpo run crds/samples/quickstart.yaml --dir seed-1 --mount quickstart=seed-1 "
    "--set training.seed=1": (_LEARNING, '"run"', "quickstart=", "training.seed="),
    'kubectl apply --server-side -k "github.com/ray-project/kuberay/ray-operator/config/default'
    '?ref=v1.6.2"': (_KIND, '"apply", "--server-side", "-k"'),
    "kubectl rollout status deployment/kuberay-operator": (
        _KIND, '"rollout", "status", "deployment/kuberay-operator"',
    ),
    "make images DEVICE=cpu": (_RELEASE, "make images sbom DEVICE=cpu"),
    **{
        f"docker {verb}": (_RELEASE, f"docker {verb.split()[0]}")
        for image in ("operator", "trainer")
        for verb in (
            f"tag raggrpo/{image}:0.1.0 $REGISTRY/raggrpo/{image}:0.1.0",
            f"push $REGISTRY/raggrpo/{image}:0.1.0",
        )
    },
    "kubectl rollout status deployment/raggrpo-operator -n raggrpo-system": (
        "tests/tools/kind/operator_release.py", '"rollout", "status"',
    ),
    "helm test raggrpo-operator -n raggrpo-system": (
        "tests/e2e/test_helm_release.py", '"test", RELEASE',
    ),
    "kubectl raggrpo logs demo -n research": (
        "tests/e2e/test_kubectl_raggrpo.py", '"logs"',
    ),
}  # fmt: skip
"""Command → (file that executes it, texts that the file must contain)."""


def commands(page: Path) -> list[str]:
    """Return the command lines of a page's fenced shell blocks, without comments."""
    blocks = _BLOCK.findall(page.read_text(encoding="utf-8"))
    lines = re.sub(r"\\\n\s*", "", "".join(blocks)).splitlines()
    return [line for each in lines if (line := re.sub(r"(^|\s)#.*", "", each).strip())]


def commands_of_api_test() -> list[str]:
    """Return the commands of the cluster page that an API server without nodes can execute."""
    return [command for command in commands(CLUSTER_PAGE) if command not in RUN_ELSEWHERE]
