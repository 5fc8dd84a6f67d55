"""Docker's packages are installed even while another process holds the apt lock."""

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "tools" / "kind" / "host" / "apt.sh"
APT_GET = """#!/bin/bash
echo "$@" >> {folder}/calls
if [ "$(wc -l < {folder}/calls)" -le {failures} ]; then echo "E: {error}" >&2; exit 100; fi
echo done
"""
LOCKED = "Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (unattended-upgr)"


@pytest.mark.parametrize(
    ("error", "seconds", "code", "calls"),
    [
        (LOCKED, 60, 0, 2),
        ("Unable to lock directory /var/lib/apt/lists/", 60, 0, 2),
        (LOCKED, 0, 1, 1),
        ("Unable to locate package jq", 60, 1, 1),
    ],
)
def test_apt_lock_is_retried_and_other_errors_are_reported(
    error: str, seconds: int, code: int, calls: int, tmp_path: Path
) -> None:
    program = tmp_path / "apt-get"
    program.write_text(APT_GET.format(folder=tmp_path, failures=1, error=error))
    program.chmod(0o755)

    completed = subprocess.run(
        ["bash", "-c", f"source {SCRIPT}; apt_get install -y jq"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "APT_SECONDS": str(seconds)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert completed.returncode == code
    assert (error in completed.stderr) == (code != 0)
    assert len((tmp_path / "calls").read_text().splitlines()) == calls
