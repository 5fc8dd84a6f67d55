"""Mutation score of the pure core and of the trainer's arithmetic: a seeded sample, survivors told.

A mutant is one small change of one expression or statement. It is written into a copy of the
packages that comes first on the path, never into the work tree, and the tests that enter the
changed function run against it, the quickest first, until one fails. Which tests enter which
function is recorded once by running all of them on the unchanged copy. Each run is a fork of a
process that has imported the libraries, so that a mutant costs its tests and not the imports.

Usage: python scripts/mutants.py [--seed N] [--count N] [GROUP ...]
"""

import argparse
import ast
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")
LIBRARIES = ("hypothesis", "pydantic", "yaml", "aiohttp")
ENOUGH_SECONDS = 60.0
"""Tests of one mutant, as the clean run took them; a function that all tests enter has minutes."""


@dataclass(frozen=True)
class Group:
    """What is mutated (files or folders) and by which tests."""

    base: str
    mutated: tuple[str, ...]
    tests: tuple[str, ...]
    libraries: tuple[str, ...] = LIBRARIES


GROUPS = {
    "core": Group(
        "operator",
        ("raggrpo_operator/core",),
        ("tests/unit/operator", "tests/scenario"),
    ),
    "arithmetic": Group(
        "trainer_image",
        (
            *(f"raggrpo_trainer/policy/{m}.py" for m in ("loss", "loss_scale", "packing")),
            *(f"raggrpo_trainer/policy/{m}.py" for m in ("logprobs", "update_totals", "policy")),
            "raggrpo_trainer/rollout/advantage.py",
            "raggrpo_trainer/exchange",
        ),
        tuple(f"tests/unit/trainer/{t}" for t in ("policy", "rollout", "exchange", "ranks")),
        (*LIBRARIES, "torch", "transformers"),
    ),
    "checkpoint": Group(
        "trainer_image",
        tuple(f"raggrpo_trainer/checkpoint/{m}.py" for m in ("fence", "folder")),
        ("tests/unit/trainer/checkpoint",),
        (*LIBRARIES, "torch"),
    ),
}


@dataclass(frozen=True)
class Mutant:
    """A change of one place: the file's text with it, and how a person reads it."""

    path: str
    line: int
    function: int
    """First line of the innermost function around it, 0 for a module's or a class's body."""
    before: str
    after: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.before} -> {self.after}"

    @property
    def key(self) -> str:
        """Without the line, which moves."""
        return f"{self.path}: {self.before} -> {self.after}"


_OPERATORS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
_TEXT = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what may stand in the node's place."""
    new: Any = deepcopy(node)
    match node:
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as number):
            yield ast.Constant(number + 1)
            yield ast.Constant(number - 1)
        case ast.Compare(ops=[op]) if type(op) in _OPERATORS:
            new.ops = [_OPERATORS[type(op)]()]
            yield new
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            if not any(isinstance(s, _TEXT) or _is_text(s) for s in (left, right)):
                new.op = _OPERATORS[type(op)]()
                yield new
        case ast.BoolOp(op=op):
            new.op = _OPERATORS[type(op)]()
            yield new
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.Call(func=ast.Name(id="min" | "max" as name)):
            new.func.id = "max" if name == "min" else "min"
            yield new
        case ast.IfExp(test=test):
            new.test = ast.UnaryOp(ast.Not(), test)
            yield new
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call() | ast.Await() | ast.Yield()) | ast.AugAssign() | ast.Raise():
            yield ast.Pass()
        case ast.Continue() | ast.Break():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def mutants(base: Path, path: str) -> Iterator[Mutant]:
    """Yield every mutant of a file."""
    text = (base / path).read_text()
    data = text.encode()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def visit(node: ast.AST, function: int) -> Iterator[Mutant]:
        if isinstance(node, ast.Expr) and ast.unparse(node).startswith("log."):
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            # A frame's first line is that of the first decorator.
            function = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        for new in changes(node):
            at: Any = node
            begin = starts[at.lineno - 1] + at.col_offset
            end = starts[at.end_lineno - 1] + at.end_col_offset
            after = ast.unparse(ast.fix_missing_locations(new))
            put = after if isinstance(new, ast.stmt | ast.Constant) else f"({after})"
            changed = (data[:begin] + put.encode() + data[end:]).decode()
            try:
                compile(changed, path, "exec")
            except (SyntaxError, ValueError):
                continue  # inside an f-string, whose places are not those of the file
            yield Mutant(path, at.lineno, function, ast.unparse(node), after, changed)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            if isinstance(node, ast.JoinedStr | ast.FormattedValue):
                continue  # the wording of messages
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from visit(child, function)

    yield from visit(ast.parse(text), 0)


class Recorder:
    """Pytest plugin: which tests enter which function of the mutated files, for how long."""

    def __init__(self, base: Path, out: Path) -> None:
        self.base, self.out = f"{base}/", out
        self.entered: defaultdict[str, set[str]] = defaultdict(set)
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.failed: list[str] = []
        self._test = ""

    def _trace(self, frame: FrameType, _event: str, _arg: object) -> None:
        code = frame.f_code
        if code.co_filename.startswith(self.base):
            path = code.co_filename[len(self.base) :]
            self.entered[f"{path}:{code.co_firstlineno}"].add(self._test)
            self.entered[f"{path}:0"].add(self._test)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        """Trace the calls of one test, with its fixtures."""
        self._test = item.nodeid
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up the phases of a test."""
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write what was seen."""
        entered = {where: sorted(tests - {""}) for where, tests in self.entered.items()}
        seen = {"entered": entered, "seconds": self.seconds, "failed": self.failed}
        self.out.write_text(json.dumps(seen))


def in_fork(work: Callable[[], int], limit: float) -> int | None:
    """Return the exit code of `work` in a process group of its own; None if it ran out of time."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        code = 70
        try:
            code = int(work())
        finally:
            os._exit(code)
    deadline = time.monotonic() + limit
    try:
        while time.monotonic() < deadline:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    except BaseException:  # we were stopped, and our signals don't reach the child's group
        os.killpg(child, signal.SIGKILL)
        raise
    return None


def run_tests(base: Path, tests: list[str], *plugins: object) -> int:
    """Run the tests against the copy; call it in a fork."""
    sys.path.insert(0, str(base))
    ours = [str(ROOT / "operator"), str(ROOT / "trainer_image")]
    os.environ["PYTHONPATH"] = ":".join([str(base), *ours, str(ROOT / "tests")])
    sys.path[1:1] = ours
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not long and not gpu"]
    stop = [] if plugins else ["-x"]
    return pytest.main([*options, *stop, "--hypothesis-seed=0", *tests], plugins=list(plugins))


def score(name: str, group: Group, seed: int, count: int, scratch: Path) -> None:
    """Run a sample of one group and print its survivors."""
    for library in group.libraries:
        importlib.import_module(library)
    base = scratch / name
    shutil.copytree(ROOT / group.base, base, ignore=shutil.ignore_patterns("__pycache__"))
    found = [base / one for one in group.mutated]
    files = [f for at in found for f in (sorted(at.rglob("*.py")) if at.is_dir() else [at])]
    every = [m for file in files for m in mutants(base, file.relative_to(base).as_posix())]
    lines = EQUIVALENT.read_text().splitlines() if EQUIVALENT.exists() else []
    skipped = {line.split("  # ")[0] for line in lines if line and not line.startswith("#")}
    every = [m for m in every if m.key not in skipped]

    seen = scratch / f"{name}.json"
    began = time.monotonic()
    in_fork(lambda: run_tests(base, list(group.tests), Recorder(base, seen)), 3600)
    record = json.loads(seen.read_text())
    print(f"{name}: {len(every)} mutants; clean run {time.monotonic() - began:.0f} s", flush=True)
    seconds, broken = record["seconds"], set(record["failed"])
    if broken:
        print(f"  these fail unchanged and are left out: {', '.join(sorted(broken))}")

    sample = random.Random(seed).sample(every, min(count, len(every)))
    scores: defaultdict[str, list[bool]] = defaultdict(list)
    for mutant in sample:
        reached = record["entered"].get(f"{mutant.path}:{mutant.function}", [])
        tests, total = [], 0.0
        for test in sorted(set(reached) - broken, key=lambda t: seconds[t]):
            total += seconds[test]
            if total > ENOUGH_SECONDS:
                break
            tests.append(test)
        killed = bool(tests) and _is_killed(base, mutant, tests, 20 + 5 * total)
        scores[str(Path(mutant.path).parent)].append(killed)
        if not killed:
            print(f"  survived ({len(tests)} tests): {mutant}", flush=True)
    for package, results in sorted(scores.items()):
        print(f"  {package}: {sum(results)} of {len(results)}")
    results = [r for some in scores.values() for r in some]
    share = sum(results) / max(len(results), 1)
    print(f"{name}: {sum(results)} of {len(results)} killed, {share:.1%} (seed {seed})", flush=True)


def _is_killed(base: Path, mutant: Mutant, tests: list[str], limit: float) -> bool:
    file = base / mutant.path
    before = file.read_text()
    # Bytecode is matched by second and size, which a mutant may share with the one before it.
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        compiled.unlink()
    file.write_text(mutant.text)
    try:
        code = in_fork(lambda: run_tests(base, tests), limit)
    finally:
        file.write_text(before)
    if code in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit(f"these tests are gone, begin anew: {', '.join(tests)}")
    return code != 0


def main() -> None:
    """Score the named groups, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100, help="mutants per group")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
    given = parser.parse_args()
    unknown = set(given.groups) - set(GROUPS)
    if unknown:
        parser.error(f"unknown group {', '.join(sorted(unknown))}: choose from {', '.join(GROUPS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.chdir(ROOT)
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.dont_write_bytecode = True
    with tempfile.TemporaryDirectory(prefix="raggrpo-mutants-") as scratch:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = f"{scratch}/hypothesis"
        for name in given.groups or GROUPS:
            score(name, GROUPS[name], given.seed, given.count, Path(scratch))


if __name__ == "__main__":
    main()
