"""The bundle's parts are reproducible and within their limits."""

import os
import re
import tarfile
from pathlib import Path

import pytest

from gpu.bundle.build import LOCK, CannotBuild, Limits, check_sizes, matches, omit, pack

MACHINE = LOCK.with_name("gpu-machine.txt")
LIMITS = Limits(part=10, total=25)


def make_site(folder: Path, mode: int = 0o600) -> Path:
    for name in ("engine/code.py", "engine/tests/test_code.py", "engine/run"):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# {name}")
        file.chmod(mode)
    (folder / "engine/run").chmod(0o700)
    return folder


def test_part_depends_on_contents_and_executable_bits_only(tmp_path: Path) -> None:
    sites = [make_site(tmp_path / "one"), make_site(tmp_path / "two", mode=0o664)]
    os.utime(sites[1] / "engine/code.py", (0, 0))

    parts = [pack(site.with_suffix(".tar.xz"), site, [site / "engine"]) for site in sites]

    assert parts[0].read_bytes() == parts[1].read_bytes()
    with tarfile.open(parts[0]) as archive:
        modes = {member.name: member.mode for member in archive}
    assert modes == {
        "engine": 0o755,
        "engine/code.py": 0o644,
        "engine/run": 0o755,
        "engine/tests": 0o755,
        "engine/tests/test_code.py": 0o644,
    }


def test_omitted_files_and_folders_are_deleted(tmp_path: Path) -> None:
    site = make_site(tmp_path)

    omit(site, ["*/tests", "engine/run"])

    assert [path.name for path in site.rglob("*") if path.is_file()] == ["code.py"]


def test_pattern_without_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CannotBuild, match=r"engine/gone\* matches no file"):
        matches(make_site(tmp_path), ["engine/*.py", "engine/gone*"])


def test_sizes_within_limits_are_accepted() -> None:
    check_sizes([10, 10], 5, LIMITS)


@pytest.mark.parametrize(
    ("parts", "repository", "message"),
    [
        ([11, 1], 1, "a part has 11 bytes (limit 10)"),
        ([10, 10], 6, "bundle and repository have 26 bytes (limit 25)"),
    ],
)
def test_sizes_over_a_limit_are_rejected(parts: list[int], repository: int, message: str) -> None:
    with pytest.raises(CannotBuild, match=re.escape(message)):
        check_sizes(parts, repository, LIMITS)


def locked(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==(\S+)", lock.read_text(), re.MULTILINE))


def test_bundle_has_versions_of_trainer_image() -> None:
    image = locked(LOCK.with_name("trainer-cuda.txt"))
    bundle = locked(LOCK)

    assert {"vllm", "ray", "pydantic"} <= bundle.keys() & image.keys()
    assert [each for each in bundle.keys() & image.keys() if bundle[each] != image[each]] == []


@pytest.mark.parametrize("name", ["torch", "triton", "transformers", "numpy", "nvidia-cublas"])
def test_bundle_does_not_replace_libraries_of_machine(name: str) -> None:
    assert name in locked(MACHINE)
    assert name not in locked(LOCK)
