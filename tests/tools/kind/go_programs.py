"""Build the programs of the test clusters from Go modules, once per version and recipe.

`python tests/tools/kind/go_programs.py kube etcd` prints a folder for each name. Standard library
only. Go uses the module proxy that is configured on the machine. Results are cached.
"""

import argparse
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger("tools")

KUBERNETES = "v1.36.3"
ETCD = "v3.6.8"  # etcd and CoreDNS as in this version of kubeadm; CoreDNS 1.15 needs etcd 3.7
COREDNS = "v1.14.2"
CRICTL = "v1.36.0"
KIND = "v0.33.0"
HELM = "v4.3.1"
KUBERAY = "v1.6.2"
KUEUE = "v0.16.2"
WEAVIATE = "v1.35.2"
REGISTRY = "v3.1.1"
PROMETHEUS = "v0.311.0"  # the module of Prometheus 3.11
PROMETHEUS_OPERATOR = "v0.85.0"
OLDEST_API = "v0.32.0"  # of the oldest Kubernetes that the chart supports

SOURCES = Path(__file__).parent / "go"
KUBE_NAMES = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    "kubeadm",
    "kubectl",
)
"""Programs in the executable `kube`, which selects one by the name it is called by."""


class CannotBuild(Exception):
    """A build failed or a requirement is missing; the message has the remedy."""


@dataclass(frozen=True)
class Tool:
    """A program to build; `build(folder)` puts it into an empty folder."""

    version: str
    build: Callable[[Path], None]
    recipe: str
    """Inputs other than the version that change the result."""


def cache_root() -> Path:
    """Return the cache folder, which is shared by clones and test runs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "raggrpo"


def tool_folder(name: str) -> Path:
    """Return the folder of a tool; build it if it is not in the cache.

    Raises:
        CannotBuild: Go is missing, or a build failed.
    """
    tool = TOOLS[name]
    digest = hashlib.sha256(tool.recipe.encode()).hexdigest()[:12]
    folder = cache_root() / "tools" / f"{name}-{tool.version}-{digest}"
    if folder.is_dir():
        return folder
    _require_go()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(folder.with_name(f".{folder.name}.lock")):
        if not folder.is_dir():  # another process may have built it
            _build(name, tool, folder)
    return folder


def _build(name: str, tool: Tool, folder: Path) -> None:
    log.info("building %s %s ...", name, tool.version)
    started = time.monotonic()
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    tool.build(unfinished)
    unfinished.rename(folder)
    log.info("built %s %s in %.0f s: %s", name, tool.version, time.monotonic() - started, folder)


def _require_go() -> None:
    if shutil.which("go") is None:
        raise CannotBuild(
            "Go is missing; it builds the programs of the test cluster. Install Go 1.26 or newer "
            "(https://go.dev/doc/install, or a distribution's package) and put it on PATH"
        )


@contextmanager
def exclusive_lock(lock: Path) -> Iterator[None]:
    """Hold an exclusive lock of a file."""
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _go(*arguments: str, folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run Go at the lowest priority, so that a build does not slow down tests."""
    quiet = ["nice", "-n", "19"]
    if shutil.which("ionice"):
        quiet += ["ionice", "-c3"]
    ended = subprocess.run(
        [*quiet, "go", *arguments],
        cwd=folder,
        env={**os.environ, "CGO_ENABLED": "0", **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        command = " ".join(["go", *arguments])[:200]
        raise CannotBuild(f"`{command}` failed in {folder}:\n{ended.stderr[-3000:]}")
    output: str = ended.stdout
    return output


_FLAGS = {"GOFLAGS": "-trimpath -buildvcs=false -mod=mod"}
_SMALL = "-s -w"


def _install(package: str, version: str) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        _go(
            "install", "-ldflags", _SMALL, f"{package}@{version}",
            folder=folder, environment={"GOBIN": str(folder), "GOFLAGS": "-trimpath"},
        )  # fmt: skip

    return build


def _version_stamp() -> str:
    """Return the linker options that set the version of Kubernetes, which image names contain."""
    minor = KUBERNETES.removeprefix("v").split(".")[1]
    values = {
        "gitVersion": KUBERNETES, "gitMajor": "1", "gitMinor": minor, "gitTreeState": "clean",
    }  # fmt: skip
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return " ".join(f"-X {p}.{key}={value}" for p in packages for key, value in values.items())


def _kubernetes_module() -> Path:
    """Return the folder of one module that requires all programs of a node in matching versions."""
    folder = cache_root() / "sources" / f"kubernetes-{_digest(_KUBERNETES_RECIPE)}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(folder.with_name(f".{folder.name}.lock")):
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(SOURCES, folder)
            _write_kubernetes_go_mod(folder)
            _go("mod", "tidy", "-e", folder=folder)
            (folder / "complete").touch()
    return folder


def _write_kubernetes_go_mod(folder: Path) -> None:
    """Write go.mod with versions of the staging modules, which the module zip does not contain."""
    described = _go("mod", "download", "-json", f"k8s.io/kubernetes@{KUBERNETES}", folder=folder)
    upstream = Path(json.loads(described)["GoMod"]).read_text()
    published = KUBERNETES.replace("v1.", "v0.", 1)
    staging = re.findall(r"^\t(k8s\.io/\S+) => \./staging", upstream, re.MULTILINE)
    lines = [
        "module example.org/cluster",
        *re.findall(r"^(?:go|godebug) .*", upstream, re.MULTILINE),
        f"require k8s.io/kubernetes {KUBERNETES}",
        f"require github.com/coredns/coredns {COREDNS}",
        f"require go.etcd.io/etcd/server/v3 {ETCD}",
        f"require sigs.k8s.io/cri-tools {CRICTL}",
        *(f"replace {module} => {module} {published}" for module in staging),
    ]
    (folder / "go.mod").write_text("\n".join(lines) + "\n")


def _build_kube(folder: Path) -> None:
    _go(
        "build", "-tags", "providerless", "-ldflags", f"{_SMALL} {_version_stamp()}",
        "-o", str(folder / "kube"), "./kube",
        folder=_kubernetes_module(), environment=_FLAGS,
    )  # fmt: skip
    for name in KUBE_NAMES:
        (folder / name).symlink_to("kube")


def _program(package: str, name: str) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        _go(
            "build", "-ldflags", _SMALL, "-o", str(folder / name), package,
            folder=_kubernetes_module(), environment=_FLAGS,
        )  # fmt: skip

    return build


_KUBERAY_MODULE = "github.com/ray-project/kuberay/ray-operator"


def _build_kuberay(folder: Path) -> None:
    """Build without `go install`, which requests a version list that a proxy may reject."""
    _build_within(folder, _KUBERAY_MODULE, KUBERAY, _KUBERAY_MODULE, "manager")


_KUEUE_MODULE = "sigs.k8s.io/kueue"


def _build_kueue(folder: Path) -> None:
    _build_within(folder, _KUEUE_MODULE, KUEUE, f"{_KUEUE_MODULE}/cmd/kueue", "manager")


_CRD_MODULE = "k8s.io/apiextensions-apiserver"
_CRD_MAIN = (SOURCES.with_name("crd_check") / "main.go").read_text()


def _build_crd_check(folder: Path) -> None:
    _build_within(folder, _CRD_MODULE, OLDEST_API, ".", "crd-check", _CRD_MAIN)


_REGISTRY_MODULE = "github.com/distribution/distribution/v3"
_REGISTRY_MAIN = (SOURCES.with_name("registry_image") / "main.go").read_text()


def _build_registry(folder: Path) -> None:
    _build_within(folder, _REGISTRY_MODULE, REGISTRY, ".", "registry", _REGISTRY_MAIN)


_PROMETHEUS_MODULE = "github.com/prometheus/prometheus"


def _build_prometheus(folder: Path) -> None:
    """Build without clients of clouds, which take most of the build."""
    _build_within(
        folder, _PROMETHEUS_MODULE, PROMETHEUS, f"{_PROMETHEUS_MODULE}/cmd/prometheus",
        "prometheus", tags="remove_all_sd",
    )  # fmt: skip


_PROMETHEUS_CONFIG_MODULE = "github.com/prometheus-operator/prometheus-operator"
_PROMETHEUS_CONFIG_MAIN = (SOURCES.with_name("prometheus_config") / "main.go").read_text()


def _build_prometheus_config(folder: Path) -> None:
    _build_within(
        folder, _PROMETHEUS_CONFIG_MODULE, PROMETHEUS_OPERATOR, ".", "prometheus-config",
        _PROMETHEUS_CONFIG_MAIN,
    )  # fmt: skip


def _build_within(
    folder: Path,
    module: str,
    version: str,
    package: str,
    name: str,
    main: str = "",
    *,
    tags: str = "",
) -> None:
    """Build a package in a temporary module that requires `module`."""
    own = folder / "module"
    own.mkdir()
    (own / "go.mod").write_text(
        f"module example.org/{name}\n\ngo 1.26.0\n\nrequire {module} {version}\n"
    )
    if main:
        (own / "main.go").write_text(main)
    _go(
        "build", "-tags", tags, "-ldflags", _SMALL, "-o", str(folder / name), package,
        folder=own, environment=_FLAGS,
    )  # fmt: skip
    shutil.rmtree(own)


def _config_of(module: str, version: str) -> Callable[[Path], None]:
    """Return a function that copies a module's kustomization: CRDs, roles, deployment."""

    def copy(folder: Path) -> None:
        described = _go("mod", "download", "-json", f"{module}@{version}", folder=folder)
        shutil.copytree(Path(json.loads(described)["Dir"]) / "config", folder, dirs_exist_ok=True)
        for path in [folder, *folder.rglob("*")]:
            path.chmod(path.stat().st_mode | 0o200)  # the module cache is read-only

    return copy


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


_KUBERNETES_RECIPE = "\n".join(
    [KUBERNETES, ETCD, COREDNS, CRICTL, _SMALL, str(_FLAGS)]
    + [path.read_text() for path in sorted(SOURCES.rglob("*.go"))]
)

TOOLS: Mapping[str, Tool] = {
    "kube": Tool(KUBERNETES, _build_kube, _KUBERNETES_RECIPE),
    "etcd": Tool(ETCD, _program("./etcd", "etcd"), _KUBERNETES_RECIPE),
    "coredns": Tool(COREDNS, _program("./coredns", "coredns"), _KUBERNETES_RECIPE),
    "pause": Tool(KUBERNETES, _program("./pause", "pause"), _KUBERNETES_RECIPE),
    "crictl": Tool(
        CRICTL, _program("sigs.k8s.io/cri-tools/cmd/crictl", "crictl"), _KUBERNETES_RECIPE
    ),
    "kind": Tool(KIND, _install("sigs.k8s.io/kind", KIND), _SMALL),
    "helm": Tool(HELM, _install("helm.sh/helm/v4/cmd/helm", HELM), _SMALL),
    "crd-check": Tool(OLDEST_API, _build_crd_check, f"{_SMALL} {_FLAGS} {_CRD_MAIN}"),
    "registry": Tool(REGISTRY, _build_registry, f"{_SMALL} {_FLAGS} {_REGISTRY_MAIN}"),
    "prometheus": Tool(PROMETHEUS, _build_prometheus, f"{_SMALL} {_FLAGS}"),
    "prometheus-config": Tool(
        PROMETHEUS_OPERATOR,
        _build_prometheus_config,
        f"{_SMALL} {_FLAGS} {_PROMETHEUS_CONFIG_MAIN}",
    ),
    "kuberay": Tool(KUBERAY, _build_kuberay, f"{_SMALL} {_FLAGS}"),
    "kuberay-config": Tool(KUBERAY, _config_of(_KUBERAY_MODULE, KUBERAY), ""),
    "kueue": Tool(KUEUE, _build_kueue, f"{_SMALL} {_FLAGS}"),
    "weaviate": Tool(
        WEAVIATE, _install("github.com/weaviate/weaviate/cmd/weaviate-server", WEAVIATE), _SMALL
    ),
    "kueue-config": Tool(KUEUE, _config_of(_KUEUE_MODULE, KUEUE), ""),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=sorted(TOOLS))
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    for name in parser.parse_args(arguments).names:
        try:
            print(tool_folder(name))
        except CannotBuild as reason:
            raise SystemExit(f"{name}: {reason}") from reason


if __name__ == "__main__":
    main()
