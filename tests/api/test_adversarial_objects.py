"""Deeply nested objects that the API server accepts, but that could crash a recursive reader."""

import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from raggrpo_api import names
from raggrpo_operator.kube.client import RECURSION_LIMIT
from support.builders.operator.jobs import make_raw_job
from support.kubernetes.chart_release import Account
from support.operator.operator_environment import OperatorEnvironment, make_environment
from tools.kind.api_server import ApiServer

DEPTH = 1_500


@pytest_asyncio.fixture
async def environment(
    api_server: ApiServer, operator_account: Account, namespace: str, tmp_path: Path
) -> AsyncIterator[OperatorEnvironment]:
    async with make_environment(api_server, operator_account, namespace, tmp_path) as played:
        yield played


@pytest.fixture(autouse=True)
def deep_recursion() -> Iterator[None]:
    """Raise the recursion limit for the objects that the tests themselves read."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(RECURSION_LIMIT)
    yield
    sys.setrecursionlimit(usual)


def create(http: httpx.Client, namespace: str, name: str, free: str) -> None:
    """Create a job with this text as the value of a field that takes any JSON."""
    endpoint = {"name": "a", "url": "http://h/x", "extraBody": {"x": "@free"}}
    job = make_raw_job({"spec.retrieval": {"mode": "Prompt", "endpoints": [endpoint]}})
    job["spec"]["suspend"] = True
    job["metadata"] = {"name": name}
    path = f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}"
    answer = http.post(path, content=json.dumps(job).replace('"@free"', free))
    assert answer.status_code == httpx.codes.CREATED, answer.text


@pytest.mark.row("E7", "E10")
@pytest.mark.parametrize("opening", ["[", '{"a":'])
async def test_deeply_nested_job_is_rejected_without_affecting_others(
    environment: OperatorEnvironment, http: httpx.Client, namespace: str, opening: str
) -> None:
    closing = "]" if opening == "[" else "}"
    deep = opening * DEPTH + "1" + closing * DEPTH
    environment.operator.start()
    create(http, namespace, "early", "1")
    await environment.until(lambda status: bool(status.get("conditions")), "early")

    create(http, namespace, "deep", deep)
    refused = await environment.until(lambda status: bool(status.get("conditions")), "deep")
    create(http, namespace, "late", "1")
    await environment.until(lambda status: bool(status.get("conditions")), "late")
    environment.operator.stop()
    environment.operator.start()
    create(http, namespace, "latest", "1")
    await environment.until(lambda status: bool(status.get("conditions")), "latest")

    [accepted] = [each for each in refused["conditions"] if each["type"] == "Accepted"]
    assert (accepted["status"], accepted["reason"]) == ("False", "SpecTooLarge")
    assert "deep" in accepted["message"]
