"""Draw docstrings, messages and test names at random for review: `sample_wording.py [SEED]`.

Prints 60 docstrings, 40 messages and 40 test names with file and line. The same seed draws the
same sample from the same tree.
"""

import ast
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("operator", "trainer_image")
COUNTS = {"docstrings": 60, "messages": 40, "test names": 40}
Place = tuple[str, str]
"""File and line as `path:line`, and the text."""


def trees(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    """Yield path and syntax tree of each Python file in `folders`."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())


def docstrings() -> Iterator[Place]:
    """Yield the docstrings of modules, classes, functions and fields of the product."""
    for path, tree in trees(*PRODUCT):
        for node in ast.walk(tree):
            match node:
                case ast.Expr(value=ast.Constant(value=str() as text)):
                    yield f"{path}:{node.lineno}", text


def messages() -> Iterator[Place]:
    """Yield the strings of the product with at least four words, except docstrings."""
    for path, tree in trees(*PRODUCT):
        parts = {id(n) for outer in ast.walk(tree) for n in inner_texts(outer)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in parts:
                text = ast.unparse(node)
                if is_text(node) and len(re.findall(r"[a-z]{2,}", text)) >= 4:
                    yield f"{path}:{node.lineno}", text


def inner_texts(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the constants in a node that are docstrings or parts of an f-string."""
    match node:
        case ast.Expr(value=ast.Constant() as value):
            yield value
        case ast.JoinedStr(values=values):
            yield from (each for value in values for each in ast.walk(value))


def is_text(node: ast.Constant | ast.JoinedStr) -> bool:
    """Return whether a node is a text rather than a number, bytes or a regular expression."""
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node.value, str) and " " in node.value and "\\" not in node.value
    )


def test_names() -> Iterator[Place]:
    """Yield the names of all test functions."""
    for path, tree in trees("tests"):
        for node in ast.walk(tree):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    if name.startswith("test_"):
                        yield f"{path}:{node.lineno}", name


def main(arguments: list[str]) -> None:
    """Print a sample of each kind of text."""
    seed = int(arguments[0]) if arguments else 1
    print(f"seed {seed}")
    kinds = {"docstrings": docstrings, "messages": messages, "test names": test_names}
    for title, kind in kinds.items():
        places = list(kind())
        print(f"\n## {COUNTS[title]} of {len(places)} {title}\n")
        for place, text in random.Random(seed).sample(places, COUNTS[title]):
            print(f"- {place}: {' '.join(text.split())}")


if __name__ == "__main__":
    main(sys.argv[1:])
