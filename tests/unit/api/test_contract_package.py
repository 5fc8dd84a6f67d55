import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_api_does_not_import_heavy_packages() -> None:
    program = (
        "import pkgutil, importlib, sys, raggrpo_api\n"
        "for module in pkgutil.iter_modules(raggrpo_api.__path__):\n"
        "    importlib.import_module(f'raggrpo_api.{module.name}')\n"
        "heavy = {'kopf', 'torch', 'ray', 'vllm', 'kubernetes', 'raggrpo_operator'}\n"
        "print(sorted(heavy & sys.modules.keys()))\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("folder", ["operator", "trainer_image", "crds", "helm"])
def test_top_level_folders_are_not_packages(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()
