"""What comes into a build is pinned, and the hosted workflow runs what `.ci/run` runs."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
STEPS: list[dict[str, Any]] = [s for job in WORKFLOW["jobs"].values() for s in job["steps"]]
LOCKS = sorted(set((ROOT / "requirements").glob("*.txt")) - {ROOT / "requirements/overrides.txt"})
HOSTS = [f"{name}.io" for name in ("docker", "ghcr", "quay", "gcr")] + [
    f"{name}.org" for name in ("pypi", "pythonhosted", "proxy.golang")
]


@pytest.mark.row("E13")
def test_the_hosted_workflow_runs_what_every_change_must_pass() -> None:
    assert ".ci/run" in [step.get("run") for step in WORKFLOW["jobs"]["test"]["steps"]]
    assert set(WORKFLOW["jobs"]["release"]["needs"]) == set(WORKFLOW["jobs"]) - {"release"}


def test_every_action_is_pinned_by_commit_and_says_its_version() -> None:
    text = (ROOT / ".github/workflows/ci.yml").read_text()
    used = re.findall(r"uses: (\S+)(.*)", text)
    assert len(used) == len([step for step in STEPS if "uses" in step])
    for action, version in used:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", version), action


def test_only_a_release_may_do_more_than_read() -> None:
    assert WORKFLOW["permissions"] == {}
    jobs = WORKFLOW["jobs"]
    assert {jobs[name]["permissions"]["contents"] for name in jobs} == {"read"}
    wide = [name for name in jobs if len(jobs[name]["permissions"]) > 1]
    assert wide == ["release"]
    assert jobs["release"]["if"] == "startsWith(github.ref, 'refs/tags/v')"


def test_no_text_of_somebody_else_is_run_as_a_command() -> None:
    """An expression inside `run` would be pasted into the shell."""
    assert [step["run"] for step in STEPS if "${{" in step.get("run", "")] == []


def test_images_are_built_on_a_digest_scanned_signed_and_attested() -> None:
    said = str(STEPS)
    assert said.count("scripts/base_image.sh") == 2
    for word in ("scan-action", "cosign sign", "cosign attest", "attest-build-provenance"):
        assert word in said


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_every_locked_package_has_a_hash(lock: Path) -> None:
    entries = re.split(r"\n(?=\S)", re.sub(r"^\s*#.*\n", "", lock.read_text(), flags=re.MULTILINE))
    assert [each for each in entries if "==" in each and "--hash=sha256:" not in each] == []


@pytest.mark.parametrize("file", ["Makefile", "Dockerfile", "trainer_image/Dockerfile"])
def test_nothing_is_installed_without_hashes_but_our_own_wheel(file: str) -> None:
    text = re.sub(r"\\\n", " ", (ROOT / file).read_text())
    commands = re.split(r"&&|\n|;", text)
    for command in (each for each in commands if re.search(r"\bpip\b.* install ", each)):
        own = re.search(r"\*\.whl|-e \.", command)
        assert "--require-hashes" in command or own, command


def test_no_file_names_a_host_of_packages_or_images() -> None:
    """The machine says where packages come from; `tests/tools/kind` names a Debian package."""
    pattern = "|".join(rf"\b{re.escape(host)}\b" for host in HOSTS)
    found = subprocess.run(
        ["git", "grep", "-lIE", pattern, "--", ":!tests/tools/kind"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert found.stdout == ""


@pytest.mark.row("E13")
def test_what_the_threat_model_says_is_shown_by_tests_that_exist() -> None:
    named = re.findall(
        r"`((?:tests|scripts|\.github)/[\w./-]+)`", (ROOT / "SECURITY.md").read_text()
    )
    assert len(named) > 8
    assert [path for path in named if not (ROOT / path).exists()] == []
