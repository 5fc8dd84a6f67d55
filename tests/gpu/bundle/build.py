"""Build the bundle for `make gpu-job` on a machine without a package index: `make gpu-bundle`.

The bundle adds vLLM, Ray, TRL and their dependencies (requirements/gpu-bundle.txt) to a Python 3.12
with torch. It supports one GPU architecture and omits dashboards, servers and MoE kernels. Equal
inputs give equal files.
"""

import argparse
import lzma
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu.bundle.fatbin import keep_architecture

ROOT = Path(__file__).parents[3]
LOCK = ROOT / "requirements" / "gpu-bundle.txt"
PYTHON = "3.12"
PLATFORM = "x86_64-manylinux_2_34"
"""Ubuntu 22.04 and newer."""
ARCHITECTURE = 90
"""H100 and H200."""
MAX_PART_BYTES = 54_000_000
MAX_TOTAL_BYTES = 64 * 2**20
"""Maximum size of the bundle and the tracked files of the repository."""
INPUT = "input"
"""Name of the part with the quickstart's input."""

OMITTED = (
    # written by the installation
    ".lock", "bin", "*.dist-info/RECORD", "*.dist-info/INSTALLER", "*.dist-info/REQUESTED",
    # tests and headers
    "*/tests", "tvm_ffi/include", "vllm/third_party/deep_gemm/include",
    # vLLM's kernels for MoE, sparse attention, FP4 and other cards; FlashAttention 2 (3 is kept)
    "vllm/_deepselect_C.*", "vllm/_flashkda_C.*", "vllm/_flashmla_*", "vllm/_moe_C_*",
    "vllm/_qutlass_C.*", "vllm/model_executor/layers/fused_moe/configs",
    "vllm/kernels/helion/configs", "vllm/third_party/deep_gemm/_C_*",
    "vllm/third_party/fmha_sm100", "vllm/third_party/tml_fa4", "vllm/vllm_flash_attn/_vllm_fa2_C.*",
    # vLLM's server and benchmarks
    "vllm/benchmarks", "vllm/entrypoints/serve/instrumentator/static", "vllm/vllm-rs",
    # Ray's libraries and dashboard
    "ray/air", "ray/core/libjemalloc.so", "ray/dashboard/client", "ray/data", "ray/jars", "ray/llm",
    "ray/rllib", "ray/serve", "ray/train", "ray/tune",
)  # fmt: skip
"""Files and folders that no run of `gpu.job` uses, as patterns."""
REDUCED: dict[str, Sequence[bytes]] = {
    "vllm/_C_stable_libtorch.abi3.so": (),
    "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so": (b"float_e4m3",),
}
"""Libraries with CUDA code, and names of omitted kernels (most of FlashAttention 3 is for FP8)."""
STRIPPED = ("**/*.so*", "ray/core/src/ray/gcs/gcs_server", "ray/core/src/ray/raylet/raylet")
"""Libraries and programs without their symbol tables, as patterns."""
RAY = ("ray", "ray-*.dist-info")


class CannotBuild(Exception):
    """A requirement is missing or a limit is exceeded; the message has the remedy."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Maximum sizes in bytes."""

    part: int = MAX_PART_BYTES
    total: int = MAX_TOTAL_BYTES


def main() -> int:
    parser = argparse.ArgumentParser(prog="gpu.bundle.build", description=__doc__)
    parser.add_argument("--uv", default="uv", help="program that downloads the packages")
    parser.add_argument("--out", type=Path, default=ROOT / ".gpu")
    options = parser.parse_args()
    try:
        build(options.uv, options.out)
    except CannotBuild as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def build(uv: str, out: Path) -> None:
    """Write the parts to `out`."""
    if not shutil.which("strip"):
        raise CannotBuild("strip is not installed; install binutils")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="raggrpo-gpu-bundle-") as work:
        site, data = Path(work, "site"), Path(work, INPUT)
        download(uv, site)
        omit(site, OMITTED)
        for name, dropped in REDUCED.items():
            reduce_library(site / name, dropped)
        strip(site)
        run([sys.executable, "-m", "raggrpo_quickstart", "--dir", str(data)])
        in_ray = matches(site, RAY)
        parts = {
            "engine": (site, sorted(set(site.iterdir()) - set(in_ray))),
            "ray": (site, in_ray),
            INPUT: (data, sorted(data.iterdir())),
        }
        files = [pack(out / f"{name}.tar.xz", *part) for name, part in parts.items()]
    for file in files:
        print(f"{file.stat().st_size:>11,} bytes  {file}")
    check_sizes([file.stat().st_size for file in files], tracked_bytes(), Limits())


def run(command: Sequence[str]) -> None:
    try:
        subprocess.run(command, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CannotBuild(f"{' '.join(command[:3])} failed: {error}") from error


def download(uv: str, site: Path) -> None:
    """Install the locked wheels for the other Python into a folder and check their hashes.

    Files are copied, because uv's cache would change with hard-linked files.
    """
    command = [uv, "pip", "install", "--target", str(site), "--link-mode", "copy"]
    command += ["--python", sys.executable, "--python-version", PYTHON]
    command += ["--python-platform", PLATFORM, "--only-binary", ":all:", "--no-deps"]
    run([*command, "--quiet", "--require-hashes", "-r", str(LOCK)])


def matches(site: Path, patterns: Iterable[str]) -> list[Path]:
    """Return the sorted paths of all patterns. Raises CannotBuild if a pattern matches nothing."""
    paths: set[Path] = set()
    for pattern in patterns:
        matched = set(site.glob(pattern))
        if not matched:
            raise CannotBuild(f"{pattern} matches no file of the packages; update {__name__}")
        paths |= matched
    return sorted(paths)


def omit(site: Path, patterns: Iterable[str]) -> None:
    """Delete files and folders."""
    for path in matches(site, patterns):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def reduce_library(library: Path, dropped: Sequence[bytes]) -> None:
    """Keep the code for ARCHITECTURE."""
    try:
        library.write_bytes(keep_architecture(library.read_bytes(), ARCHITECTURE, dropped))
    except (OSError, ValueError) as error:
        raise CannotBuild(f"cannot reduce {library.name}: {error}") from error


def strip(site: Path) -> None:
    """Remove symbol tables and debug information."""
    files = [str(path) for path in matches(site, STRIPPED) if path.is_file()]
    run(["strip", "--strip-unneeded", *files])


def pack(file: Path, root: Path, members: Iterable[Path]) -> Path:
    """Write a compressed archive that depends on names, contents and executable bits only."""
    dictionary = {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 192 * 2**20}
    with (
        lzma.open(file, "wb", filters=[dictionary]) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for member in members:
            archive.add(member, str(member.relative_to(root)), filter=normalized)
    return file


def normalized(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return an archive member without owner, time and umask."""
    mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    return member.replace(mtime=0, mode=mode, uid=0, gid=0, uname="", gname="", deep=False)


def tracked_bytes() -> int:
    """Return the size of the tracked files of the repository."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    names = listed.stdout.decode().split("\0")
    return sum((ROOT / name).stat().st_size for name in names if (ROOT / name).is_file())


def check_sizes(parts: Sequence[int], repository: int, limits: Limits) -> None:
    """Raise CannotBuild if a part, or all parts with the repository, exceed the limits."""
    if max(parts) > limits.part:
        raise CannotBuild(f"a part has {max(parts):,} bytes (limit {limits.part:,}); split it")
    total = sum(parts) + repository
    if total > limits.total:
        raise CannotBuild(
            f"bundle and repository have {total:,} bytes (limit {limits.total:,}); omit more files"
        )


if __name__ == "__main__":
    sys.exit(main())
