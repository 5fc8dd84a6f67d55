"""`kubectl raggrpo` as started by kubectl, under the plugin's executable name."""

import subprocess
import sys
from pathlib import Path

PLUGIN = "kubectl-raggrpo"
START = f"import sys; sys.argv[0] = {PLUGIN!r}; from raggrpo_cli.main import main; main()"
SECONDS = 120


def kubectl_raggrpo(
    *arguments: object, kubeconfig: Path | None = None, seconds: float = SECONDS
) -> "subprocess.CompletedProcess[str]":
    """Run the plugin as the user of the kubeconfig, with an otherwise empty environment."""
    return subprocess.run(
        command(*arguments, kubeconfig=kubeconfig),
        env={"HOME": "/nonexistent", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )


def command(*arguments: object, kubeconfig: Path | None = None) -> list[str]:
    where = ["--kubeconfig", str(kubeconfig)] if kubeconfig is not None else []
    return [sys.executable, "-c", START, *map(str, arguments), *where]
