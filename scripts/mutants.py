"""Measure the mutation score of core, arithmetic and checkpoints; print surviving mutants.

A mutant has one small change of one expression or statement. It is written into a copy of the
packages that precedes the work tree on the import path; the work tree is never changed. The tests
that call the changed function run against the copy, fastest first, until one fails. To find these
tests, all tests run once against an instrumented copy. Each run is a fork of a process that has
already imported the libraries, with one fork per core at a time.

Usage: python scripts/mutants.py [--seed N] [--count N] [--within TEXT] [GROUP ...]
"""

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from forked_jobs import FAILED, Job, in_forks
from mutations import Mutant, mutants
from traced_tests import (
    ROOT,
    TRACE_CODE,
    TRACE_MODULE,
    Recorder,
    Selection,
    instrumented,
    run_tests,
)

EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")
LIBRARIES = ("hypothesis", "pydantic", "yaml", "aiohttp", "pytest_asyncio.plugin", "pytest_timeout")
SMALL_FUZZ_RUNS = {
    "RAGGRPO_FUZZ_ANSWERS": "10", "RAGGRPO_FUZZ_SPECS": "20", "RAGGRPO_FUZZ_STEPS": "1000",
    "KILL_POINTS": "6",
}  # fmt: skip
"""Numbers of random cases in fuzz tests; small, because the tests run for many mutants."""
FIRST_TESTS = 25
"""Number of tests from other packages that run before the remaining tests are collected."""
MAX_SECONDS = 120.0
"""Maximum CPU seconds of the tests for one mutant, as measured on the unchanged code."""


@dataclass(frozen=True)
class Group:
    """Files or folders to mutate, and the tests that should fail on their mutants."""

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
        tuple(f"raggrpo_trainer/checkpoint/{m}.py" for m in ("fence", "folder", "store")),
        ("tests/unit/trainer/checkpoint",),
        (*LIBRARIES, "torch"),
    ),
}


def record(group: Group, files: list[str], scratch: Path) -> dict[str, Any]:
    """Return the tests that call each function, the CPU seconds of each test, and failed tests."""
    base = scratch / "instrumented"
    shutil.copytree(ROOT / group.base, base)
    (base / f"{TRACE_MODULE}.py").write_text(TRACE_CODE)
    for file in files:
        (base / file).write_text(instrumented(file, (base / file).read_text()))
    tests = [f for place in group.tests for f in sorted((ROOT / place).rglob("test_*.py"))]
    parts = [[str(f.relative_to(ROOT)) for f in tests[n::8]] for n in range(8)]

    def work(part: list[str], _folder: Path) -> int:
        return run_tests(base, part, Recorder(scratch / f"{part[0].replace('/', '-')}.json"))

    for _, code in in_forks([(partial(work, part), 3600) for part in parts if part], scratch):
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            sys.exit(f"pytest cannot run the tests on the unchanged code: exit code {code}")
    callers: defaultdict[str, list[str]] = defaultdict(list)
    whole: dict[str, Any] = {"callers": callers, "seconds": {}, "failed": []}
    for recording in (json.loads(one.read_text()) for one in scratch.glob("*.json")):
        whole["seconds"] |= recording["seconds"]
        whole["failed"] += recording["failed"]
        for where, names in recording["callers"].items():
            callers[where] += names
    return whole


def score(name: str, group: Group, seed: int, count: int, within: str, scratch: Path) -> None:
    """Test a sample of the group's mutants in files that match `within`; print survivors."""
    for library in group.libraries:
        importlib.import_module(library)
    sys.pycache_prefix = f"{scratch}/bytecode"
    base = ROOT / group.base
    places = [base / one for one in group.mutated]
    paths = [f for at in places for f in (sorted(at.rglob("*.py")) if at.is_dir() else [at])]
    files = [f.relative_to(base).as_posix() for f in paths]
    lines = EQUIVALENT.read_text().splitlines() if EQUIVALENT.exists() else []
    skipped = {line.split("  # ")[0] for line in lines}
    every = [m for file in files for m in mutants(base, file)]
    for gone in {s for s in skipped if s.split(" ")[0] in files} - {m.key for m in every}:
        print(f"  {EQUIVALENT.name}: no such mutant: {gone}; remove the line")
    every = [m for m in every if m.key not in skipped and within in m.path]

    started = time.monotonic()
    clean = record(group, files, scratch)
    print(
        f"{name}: {len(every)} mutants; tests of the unchanged code took "
        f"{time.monotonic() - started:.0f} s",
        flush=True,
    )
    seconds, broken = clean["seconds"], set(clean["failed"])
    if broken:
        print(f"  skipped tests that fail on the unchanged code: {', '.join(sorted(broken))}")

    def reaching(mutant: Mutant) -> set[str]:
        """Return the tests that call the mutated function.

        If the body of a module is mutated, returns the tests that call any function of the
        module or of a module that imports it.
        """
        users, module = [mutant.path], Path(mutant.path).stem
        if not mutant.function:
            users += [f for f in files if f"{module} import " in (base / f).read_text()]
        where = [f"{user}:{mutant.function}" for user in users]
        return {test for place in where for test in clean["callers"].get(place, [])}

    sample = random.Random(seed).sample(every, min(count, len(every)))
    jobs: list[Job] = []
    for number, mutant in enumerate(sample):
        stages = _stages(mutant, reaching(mutant) - broken, seconds)
        limit = 30 + 5 * sum(seconds[test] for tests in stages for test in tests)
        jobs.append((partial(_try, base, mutant, number, stages), limit))

    scores: defaultdict[str, list[bool]] = defaultdict(list)
    for number, code in in_forks(jobs, scratch):
        mutant = sample[number]
        if code == FAILED:
            sys.exit(f"the tests of a mutant could not run: {mutant}")
        killed = code != pytest.ExitCode.OK
        scores[str(Path(mutant.path).parent)].append(killed)
        if not killed:
            print(f"  survived: {mutant}", flush=True)
    for package, results in sorted(scores.items()):
        print(f"  {package}: {sum(results)} of {len(results)}")
    results = [r for some in scores.values() for r in some]
    share = sum(results) / max(len(results), 1)
    took = time.monotonic() - started
    print(
        f"{name}: {sum(results)} of {len(results)} mutants killed, {share:.1%} "
        f"(seed {seed}, {took:.0f} s)"
    )


def _ordered(tests: set[str], seconds: dict[str, float]) -> list[str]:
    """Return the tests in order: the fastest of each file, then the second fastest, and so on."""
    within: defaultdict[str, int] = defaultdict(int)
    places = {}
    for test in sorted(tests, key=lambda t: seconds[t]):
        file = test.split("::")[0]
        places[test] = within[file] = within[file] + 1
    return sorted(places, key=lambda t: (places[t], seconds[t]))


def _stages(mutant: Mutant, tests: set[str], seconds: dict[str, float]) -> list[list[str]]:
    """Return tests of at most MAX_SECONDS in three stages, the mutant's own package first."""
    package = f"/{Path(mutant.path).parent.name}/"
    near: list[str] = []
    far: list[str] = []
    remaining = MAX_SECONDS
    ordered = _ordered(tests, seconds)
    for test in sorted(ordered, key=lambda test: package not in test):
        remaining -= seconds[test]
        if remaining > 0:
            (near if package in test else far).append(test)
    return [near, far[:FIRST_TESTS], far[FIRST_TESTS:]]


def _try(base: Path, mutant: Mutant, number: int, stages: list[list[str]], folder: Path) -> int:
    """Run the stages on a mutant; return 0 if no test fails, else pytest's exit code."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base, folder, ignore=shutil.ignore_patterns("__pycache__"))
    changed = folder / mutant.path
    changed.write_text(mutant.text)
    # Python matches bytecode to its source by mtime (seconds) and size; two mutants may share both.
    os.utime(changed, (number, number))
    for tests in filter(None, stages):
        files = dict.fromkeys(test.split("::")[0] for test in tests)
        code = run_tests(folder, files, Selection(tests))
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return code
    return 0


def main() -> None:
    """Score the groups named on the command line, or all groups."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100, help="mutants per group")
    parser.add_argument("--within", default="", help="only files whose path contains this text")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
    given = parser.parse_args()
    unknown = set(given.groups) - set(GROUPS)
    if unknown:
        parser.error(f"unknown group {', '.join(sorted(unknown))}: choose from {', '.join(GROUPS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.chdir(ROOT)
    os.environ |= {"OMP_NUM_THREADS": "1"} | SMALL_FUZZ_RUNS
    with tempfile.TemporaryDirectory(prefix="raggrpo-mutants-") as scratch:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = f"{scratch}/hypothesis"
        for name in given.groups or GROUPS:
            (Path(scratch) / name).mkdir()
            own = Path(scratch) / name
            score(name, GROUPS[name], given.seed, given.count, given.within, own)


if __name__ == "__main__":
    main()
