import subprocess
import sys
from pathlib import Path

import pytest

from raggrpo_api.spec.secret_names import looks_secret

ROOT = Path(__file__).parents[3]


def test_the_contract_loads_neither_kopf_nor_torch() -> None:
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
def test_top_level_folders_are_no_packages(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


@pytest.mark.parametrize(
    "name",
    ["WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "Authorization", "apiKey",
     "X-Api-Key", "access_token", "authToken", "Cookie", "DB_PASSWD", "client_secret", "token"],
)  # fmt: skip
def test_names_of_secrets_are_recognised(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name",
    ["TOKENIZERS_PARALLELISM", "max_tokens", "KEYBOARD", "MONKEY", "tenant_id", "HOME", "PATH",
     "X-Client", "OMP_NUM_THREADS", "NCCL_DEBUG"],
)  # fmt: skip
def test_other_names_are_left_alone(name: str) -> None:
    assert not looks_secret(name)
