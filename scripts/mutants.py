"""Mutation score of the pure core and of the trainer's arithmetic: a seeded sample, survivors told.

A mutant is one small change of one expression or statement. It is written into a copy of the
packages that comes first on the path, never into the work tree, and the tests that enter the
changed function run against it, the quickest first, until one fails. Which tests enter which
function is recorded once by running all of them on a copy whose functions tell. Each run is a
fork of a process that has imported the libraries; as many forks run as there are cores.

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
from entering import ROOT, SEEN, SEEN_CODE, Chosen, Recorder, run_tests, telling
from forks import FAILED, Job, in_forks
from mutations import Mutant, mutants

EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")
LIBRARIES = ("hypothesis", "pydantic", "yaml", "aiohttp", "pytest_asyncio.plugin", "pytest_timeout")
FEWER = {
    "RAGGRPO_FUZZ_ANSWERS": "10", "RAGGRPO_FUZZ_SPECS": "20", "RAGGRPO_FUZZ_STEPS": "1000",
    "KILL_POINTS": "6",
}  # fmt: skip
"""Random cases of one test, that it may be among those of many mutants."""
FIRST = 25
"""Tests that are tried, after those of the same package, before the others are collected."""
ENOUGH_SECONDS = 120.0
"""Processor time of one mutant's tests in the clean run; a function that all enter has minutes."""


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
        tuple(f"raggrpo_trainer/checkpoint/{m}.py" for m in ("fence", "folder", "store")),
        ("tests/unit/trainer/checkpoint",),
        (*LIBRARIES, "torch"),
    ),
}


def record(group: Group, files: list[str], scratch: Path) -> dict[str, Any]:
    """Return which tests enter which function, how long each takes, and those that fail."""
    base = scratch / "telling"
    shutil.copytree(ROOT / group.base, base)
    (base / f"{SEEN}.py").write_text(SEEN_CODE)
    for file in files:
        (base / file).write_text(telling(file, (base / file).read_text()))
    tests = [f for place in group.tests for f in sorted((ROOT / place).rglob("test_*.py"))]
    parts = [[str(f.relative_to(ROOT)) for f in tests[n::8]] for n in range(8)]

    def work(part: list[str], _folder: Path) -> int:
        return run_tests(base, part, Recorder(scratch / f"{part[0].replace('/', '-')}.json"))

    for _, code in in_forks([(partial(work, part), 3600) for part in parts if part], scratch):
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            sys.exit(f"the tests cannot run on the unchanged code: {code}")
    entered: defaultdict[str, list[str]] = defaultdict(list)
    whole: dict[str, Any] = {"entered": entered, "seconds": {}, "failed": []}
    for told in (json.loads(one.read_text()) for one in scratch.glob("*.json")):
        whole["seconds"] |= told["seconds"]
        whole["failed"] += told["failed"]
        for where, names in told["entered"].items():
            entered[where] += names
    return whole


def score(name: str, group: Group, seed: int, count: int, within: str, scratch: Path) -> None:
    """Run a sample of those files of a group whose path holds a text, and print its survivors."""
    for library in group.libraries:
        importlib.import_module(library)
    sys.pycache_prefix = f"{scratch}/bytecode"
    base = ROOT / group.base
    found = [base / one for one in group.mutated]
    paths = [f for at in found for f in (sorted(at.rglob("*.py")) if at.is_dir() else [at])]
    files = [f.relative_to(base).as_posix() for f in paths]
    lines = EQUIVALENT.read_text().splitlines() if EQUIVALENT.exists() else []
    skipped = {line.split("  # ")[0] for line in lines}
    every = [m for file in files for m in mutants(base, file)]
    for gone in {s for s in skipped if s.split(" ")[0] in files} - {m.key for m in every}:
        print(f"  {EQUIVALENT.name} names what is no mutant: {gone}")
    every = [m for m in every if m.key not in skipped and within in m.path]

    began = time.monotonic()
    clean = record(group, files, scratch)
    print(f"{name}: {len(every)} mutants; clean run {time.monotonic() - began:.0f} s", flush=True)
    seconds, broken = clean["seconds"], set(clean["failed"])
    if broken:
        print(f"  these fail unchanged and are left out: {', '.join(sorted(broken))}")

    def reaching(mutant: Mutant) -> set[str]:
        """Those of a module's body are the tests of whoever imports from it."""
        users, module = [mutant.path], Path(mutant.path).stem
        if not mutant.function:
            users += [f for f in files if f"{module} import " in (base / f).read_text()]
        where = [f"{user}:{mutant.function}" for user in users]
        return {test for place in where for test in clean["entered"].get(place, [])}

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
            sys.exit(f"its tests could not run: {mutant}")
        killed = code != pytest.ExitCode.OK
        scores[str(Path(mutant.path).parent)].append(killed)
        if not killed:
            print(f"  survived: {mutant}", flush=True)
    for package, results in sorted(scores.items()):
        print(f"  {package}: {sum(results)} of {len(results)}")
    results = [r for some in scores.values() for r in some]
    share = sum(results) / max(len(results), 1)
    took = time.monotonic() - began
    print(
        f"{name}: {sum(results)} of {len(results)} killed, {share:.1%} (seed {seed}, {took:.0f} s)"
    )


def _ordered(tests: set[str], seconds: dict[str, float]) -> list[str]:
    """Return the quickest test of each file, then the second of each, and so on."""
    within: defaultdict[str, int] = defaultdict(int)
    places = {}
    for test in sorted(tests, key=lambda t: seconds[t]):
        file = test.split("::")[0]
        places[test] = within[file] = within[file] + 1
    return sorted(places, key=lambda t: (places[t], seconds[t]))


def _stages(mutant: Mutant, tests: set[str], seconds: dict[str, float]) -> list[list[str]]:
    """Return the tests in the order in which they are tried, as many as there is time for."""
    package = f"/{Path(mutant.path).parent.name}/"
    near: list[str] = []
    far: list[str] = []
    left = ENOUGH_SECONDS
    ordered = _ordered(tests, seconds)
    for test in sorted(ordered, key=lambda test: package not in test):
        left -= seconds[test]
        if left > 0:
            (near if package in test else far).append(test)
    return [near, far[:FIRST], far[FIRST:]]


def _try(base: Path, mutant: Mutant, number: int, stages: list[list[str]], folder: Path) -> int:
    """Return 0 if no test notices the mutant."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base, folder, ignore=shutil.ignore_patterns("__pycache__"))
    changed = folder / mutant.path
    changed.write_text(mutant.text)
    # Bytecode is matched by second and size, which it may share with the mutant before it.
    os.utime(changed, (number, number))
    for tests in filter(None, stages):
        files = dict.fromkeys(test.split("::")[0] for test in tests)
        code = run_tests(folder, files, Chosen(tests))
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return code
    return 0


def main() -> None:
    """Score the named groups, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100, help="mutants per group")
    parser.add_argument("--within", default="", help="only files whose path holds this text")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
    given = parser.parse_args()
    unknown = set(given.groups) - set(GROUPS)
    if unknown:
        parser.error(f"unknown group {', '.join(sorted(unknown))}: choose from {', '.join(GROUPS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.chdir(ROOT)
    os.environ |= {"OMP_NUM_THREADS": "1"} | FEWER
    with tempfile.TemporaryDirectory(prefix="raggrpo-mutants-") as scratch:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = f"{scratch}/hypothesis"
        for name in given.groups or GROUPS:
            (Path(scratch) / name).mkdir()
            own = Path(scratch) / name
            score(name, GROUPS[name], given.seed, given.count, given.within, own)


if __name__ == "__main__":
    main()
