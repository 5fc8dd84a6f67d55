"""List the requirements of `make setup` that this machine does not meet.

Uses only the standard library, because it runs before setup.
"""

import platform
import shutil
import sys

GIB = 1024**3


def problems() -> list[str]:
    """Return one line for each unmet requirement, with its remedy."""
    missing = []
    if sys.version_info < (3, 11) or sys.version_info >= (3, 13):
        missing.append(
            f"Python {platform.python_version()}: Python 3.11 or 3.12 is needed; "
            "select one with `make PYTHON=python3.11 ...`"
        )
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        missing.append(
            f"{platform.system()} {platform.machine()}: only Linux on x86-64 is supported"
        )
    for module, package in (("venv", "python3-venv"), ("ensurepip", "python3-venv")):
        try:
            __import__(module)
        except ImportError:
            missing.append(f"Python module {module} is missing: install the package {package}")
    if shutil.which("git") is None:
        missing.append("git is missing: install the package git")
    free = shutil.disk_usage(".").free / GIB
    if free < 9:
        missing.append(f"disk: {free:.0f} GiB are free, but the environment needs 9 GiB")
    shm = shutil.disk_usage("/dev/shm").free / GIB
    if shm < 0.5:
        missing.append(
            f"/dev/shm: {shm:.1f} GiB are free, but 0.5 GiB are needed; "
            "in Docker, start the container with --shm-size=2g"
        )
    return missing


if __name__ == "__main__":
    missing = problems()
    for line in missing:
        print(f"  unmet requirement: {line}", file=sys.stderr)
    sys.exit(1 if missing else 0)
