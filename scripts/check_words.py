"""Check code, tests and docs for words that this project does not use: `check_words.py [FILE...]`.

Reads docs/words.yaml. Without arguments it checks every tracked text file.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
LIST = ROOT / "docs" / "words.yaml"


def between_boundaries(pattern: str) -> re.Pattern[str]:
    """Return an expression that matches `pattern` as a whole word, also within an identifier."""
    return re.compile(rf"(?<![A-Za-z])(?:{pattern})(?!(?-i:[a-z]))", re.IGNORECASE)


@dataclass(frozen=True)
class Word:
    """One entry of docs/words.yaml: a pattern, its replacement, and contexts that allow it."""

    pattern: str
    use: str
    allow: tuple[str, ...] = ()

    @cached_property
    def expression(self) -> re.Pattern[str]:
        """The compiled pattern between word boundaries."""
        return between_boundaries(self.pattern)

    def matches(self, line: str) -> Iterator[str]:
        """Yield the matches in `line`, except those that start within a match of `allow`."""
        allowed = [m.span() for each in self.allow for m in re.finditer(each, line, re.IGNORECASE)]
        for match in self.expression.finditer(line):
            if not any(start <= match.start() < end for start, end in allowed):
                yield match.group()


def words(entries: Iterable[Mapping[str, Any]]) -> list[Word]:
    """Return the entries of one section of docs/words.yaml."""
    return [Word(e["pattern"], e["use"], tuple(e.get("allow", ()))) for e in entries]


def identifiers(source: str) -> Iterator[tuple[int, str]]:
    """Yield line number and text of every name that Python code defines or assigns."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.ClassDef(name=name):
                yield node.lineno, name


def tracked_files() -> list[Path]:
    """Return the files that git tracks."""
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [ROOT / name for name in listing.stdout.split("\0") if name]


def any_of(entries: Sequence[Word]) -> re.Pattern[str]:
    """Return a prefilter that matches every line with a listed word, and few other lines."""
    return between_boundaries("|".join(each.pattern for each in entries))


def problems(
    path: Path, name: str, prose: Sequence[Word], names: Sequence[Word], quick: re.Pattern[str]
) -> Iterator[str]:
    """Yield one message for each word to replace in the text or the name of a file."""
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        return
    for word in prose:
        for match in word.matches(name):
            yield f"{name}: file name contains '{match}'; use {word.use}"
    for number, line in enumerate(text.splitlines(), 1):
        if not quick.search(line):
            continue
        for word in prose:
            for match in word.matches(line):
                yield f"{name}:{number}: '{match}'; use {word.use}"
    if path.suffix == ".py":
        for number, identifier in identifiers(text):
            for word in names:
                if word.expression.fullmatch(identifier):
                    yield f"{name}:{number}: variable '{identifier}'; {word.use}"


def main(arguments: Sequence[str]) -> int:
    """Print all problems; return exit code 1 if there are any, else 0."""
    listed = yaml.safe_load(LIST.read_text())
    prose = words(listed["words"]) + words(listed["spelling"])
    names = words(listed["names"])
    quick, count = any_of(prose), 0
    for path in map(Path, arguments) if arguments else tracked_files():
        name = path.resolve().relative_to(ROOT).as_posix()
        if not path.is_file() or any(fnmatch(name, each) for each in listed["allow"]):
            continue
        for problem in problems(path, name, prose, names, quick):
            print(problem)
            count += 1
    if count:
        print(f"{count} words must be replaced; see docs/words.yaml and docs/glossary.md")
    return bool(count)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
