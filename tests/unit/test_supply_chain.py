"""Build inputs are pinned, and hosted CI runs every target of `.ci/run`."""

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
PREPARATION = {"setup", "programs", "kind-down"}
"""Targets of `.ci/run` that other targets run as well, or that only clean up."""


@pytest.mark.row("E13")
def test_github_workflows_run_all_make_targets_of_local_ci() -> None:
    targets = set(re.findall(r"\bmake ([\w-]+)", (ROOT / ".ci/run").read_text())) - PREPARATION
    hosted = {step["run"] for step in STEPS if "run" in step}
    assert len(targets) > 4
    assert {f"make {target}" for target in targets} <= hosted


def test_release_job_needs_all_other_jobs() -> None:
    assert set(WORKFLOW["jobs"]["release"]["needs"]) == set(WORKFLOW["jobs"]) - {"release"}


def test_github_actions_are_pinned_by_commit_with_version() -> None:
    text = (ROOT / ".github/workflows/ci.yml").read_text()
    used = re.findall(r"uses: (\S+)(.*)", text)
    assert len(used) == len([step for step in STEPS if "uses" in step])
    for action, version in used:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", version), action


def test_workflow_jobs_are_read_only_except_release() -> None:
    assert WORKFLOW["permissions"] == {}
    jobs = WORKFLOW["jobs"]
    assert {jobs[name]["permissions"]["contents"] for name in jobs} == {"read"}
    assert [name for name in jobs if len(jobs[name]["permissions"]) > 1] == ["release"]
    assert jobs["release"]["if"] == "startsWith(github.ref, 'refs/tags/v')"


def test_workflow_run_steps_do_not_contain_expressions() -> None:
    """GitHub pastes an expression inside `run` into the shell."""
    assert [step["run"] for step in STEPS if "${{" in step.get("run", "")] == []


def test_images_are_pinned_by_digest_scanned_signed_and_attested() -> None:
    steps = str(STEPS)
    assert steps.count("scripts/base_image.sh") == 2
    for word in ("scan-action", "cosign sign", "cosign attest", "attest-build-provenance"):
        assert word in steps


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_locked_packages_have_hashes(lock: Path) -> None:
    entries = re.split(r"\n(?=\S)", re.sub(r"^\s*#.*\n", "", lock.read_text(), flags=re.MULTILINE))
    assert [each for each in entries if "==" in each and "--hash=sha256:" not in each] == []


@pytest.mark.parametrize("file", ["Makefile", "Dockerfile", "trainer_image/Dockerfile"])
def test_pip_installs_require_hashes_except_for_project_wheel(file: str) -> None:
    text = re.sub(r"\\\n", " ", (ROOT / file).read_text())
    commands = re.split(r"&&|\n|;", text)
    for command in (each for each in commands if re.search(r"\bpip\b.* install ", each)):
        is_our_wheel = re.search(r"\*\.whl|-e \.", command)
        assert "--require-hashes" in command or is_our_wheel, command


def test_files_do_not_contain_package_or_image_hosts() -> None:
    """Package indexes are configured per machine; `tests/tools/kind` contains a matching name."""
    pattern = "|".join(rf"\b{re.escape(host)}\b" for host in HOSTS)
    matches = subprocess.run(
        ["git", "grep", "-lIE", pattern, "--", ":!tests/tools/kind"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert matches.stdout == ""


@pytest.mark.row("E13")
def test_security_page_references_existing_files() -> None:
    named = re.findall(
        r"`((?:tests|scripts|\.github)/[\w./-]+)`", (ROOT / "SECURITY.md").read_text()
    )
    assert len(named) > 8
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_dependabot_covers_actions_python_and_docker() -> None:
    config = yaml.safe_load((ROOT / ".github/dependabot.yml").read_text())
    ecosystems = {update["package-ecosystem"] for update in config["updates"]}
    assert ecosystems == {"github-actions", "pip", "docker"}


def test_packages_ship_type_information() -> None:
    packages = re.findall(
        r'"((?:operator|trainer_image)/\w+)"', (ROOT / "pyproject.toml").read_text()
    )
    assert packages
    assert [each for each in packages if not (ROOT / each / "py.typed").exists()] == []
