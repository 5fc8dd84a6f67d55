"""The Python of the environment with LangChain and LlamaIndex, which `make test` creates."""

from pathlib import Path

import pytest

PYTHON = Path(__file__).parents[3] / ".cache" / "agents" / "bin" / "python"


def agents_interpreter() -> str:
    """Return the path of the interpreter; skip the test if there is none."""
    if not PYTHON.exists():
        pytest.skip(f"{PYTHON} does not exist; `make test` creates it")
    return str(PYTHON)
