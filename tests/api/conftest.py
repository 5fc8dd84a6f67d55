"""Fixtures with a real API server."""

import ssl
import uuid
from collections.abc import Iterator

import httpx
import pytest

from support.builders.operator.manifests import SETTINGS
from support.kubernetes.chart_release import Account, Helm, wait_for_policies
from tools.kind.api_server import ADMIN_TOKEN, ApiServer, running_api_server


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A real kube-apiserver without nodes; both CRDs are installed."""
    with running_api_server(tmp_path_factory.mktemp("api-server")) as server:
        yield server
        server.wait_for_deleted_namespaces()


@pytest.fixture(scope="session")
def http(api_server: ApiServer) -> Iterator[httpx.Client]:
    """HTTP client with administrator rights; kubectl would take half a second per call."""
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}", "Content-Type": "application/json"}
    trusted = ssl.create_default_context(cafile=str(api_server.authority))
    with httpx.Client(
        base_url=api_server.url, headers=headers, verify=trusted, trust_env=False, timeout=60
    ) as client:
        yield client


@pytest.fixture
def namespace(api_server: ApiServer) -> Iterator[str]:
    """A namespace for one test; the session waits until all such namespaces are deleted."""
    with api_server.namespace(f"test-{uuid.uuid4().hex[:8]}") as name:
        yield name


@pytest.fixture(scope="session")
def operator_account(api_server: ApiServer) -> Iterator[Account]:
    """The operator's account, created by the chart with cluster-wide permissions and policies."""
    with api_server.namespace(f"operator-{uuid.uuid4().hex[:8]}") as name:
        helm = Helm(api_server, name, release="rights")
        scraped = {"metrics.scrapeFrom": list(SETTINGS.scrape_namespaces)}
        helm.install_values({"crds.install": False, "replicas": 2} | scraped)
        account = Account.of(helm)
        wait_for_policies(account)
        yield account
        account.http.close()
        helm("uninstall", helm.release)
