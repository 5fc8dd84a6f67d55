"""The bundle of `make gpu-bundle` trains in a Python 3.12 without vLLM, Ray and a package index.

Run by `make bundle-test`. On a CPU, vLLM's Python code is that of the bundle and its kernels are
those of the CPU build in this project's environment. CUDA code and other versions of torch and
transformers are not tested.
"""

import importlib.util
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PYTHON = os.environ.get("GPU_BUNDLE_PYTHON", "")
"""Python 3.12 with requirements/gpu-machine.txt only."""
COPY_KERNELS = """cp "$KERNELS"/*.so "$bundle_site/vllm"
cp "$KERNELS/utils/cpu_triton_utils.py" "$bundle_site/vllm/utils" """
IMPORTS = """
import importlib, importlib.metadata as metadata, json, sys
modules = ("vllm.v1.engine.async_llm", "ray", "trl", "datasets", "pydantic", "openai", "bm25s")
files = [importlib.import_module(name).__file__ for name in modules]
from trl import GRPOTrainer
versions = {name: metadata.version(name) for name in sys.argv[1:]}
print(json.dumps({"files": files, "versions": versions}))
"""
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PYTHON, reason="needs Python 3.12; run `make bundle-test`"),
]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a user who has the other Python and nothing of this one."""
    vllm = importlib.util.find_spec("vllm")
    assert vllm is not None
    assert vllm.origin is not None
    return {
        "PATH": f"{Path(PYTHON).absolute().parent}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "QUICKSTART_INPUT": str(tmp_path / "quickstart" / "input"),
        "KERNELS": str(Path(vllm.origin).parent),
        "VLLM_TARGET_DEVICE": "cpu",
        "OMP_NUM_THREADS": "1",
    }


def in_shell(command: str, env: dict[str, str], *arguments: str) -> str:
    """Return the output of a command after the bundle is unpacked."""
    script = f". tests/gpu/bundle/unpack.sh\n{COPY_KERNELS}\n{command}"
    completed = subprocess.run(
        ["bash", "-euc", script, "bash", *arguments],
        cwd=ROOT, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


def test_bundle_imports_and_trains_quickstart(env: dict[str, str], tmp_path: Path) -> None:
    lock = (ROOT / "requirements" / "gpu-bundle.txt").read_text()
    locked = dict(re.findall(r"^([\w.-]+)==(\S+)", lock, re.MULTILINE))

    shown = json.loads(in_shell(f"python3 -c '{IMPORTS}' \"$@\"", env, *locked).splitlines()[-1])
    assert shown["versions"] == locked
    assert [
        file for file in shown["files"] if not file.startswith(f"{tmp_path}/raggrpo-site-")
    ] == []

    folder = tmp_path / "quickstart"
    job = f"--dir {folder} --mount quickstart={folder} --set training.totalSteps=2"
    in_shell(f"raggrpo run crds/samples/quickstart.yaml {job}", env)
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["phase"], summary["step"]) == ("Succeeded", 2)
