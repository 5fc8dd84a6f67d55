"""What surrounds a running job: installation key, second operator, NetworkPolicy."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from raggrpo_api import names
from support.fakes.fake_kuberay import Manifest, path_of
from support.fakes.fake_ray import Script
from support.kubernetes.chart_release import Account
from support.operator.operator_environment import (
    OperatorEnvironment,
    is_phase,
    make_environment,
    make_operator,
)
from tools.kind.api_server import ApiServer
from tools.kind.jobs import condition

POLICIES = ("networking.k8s.io/v1", "networkpolicies")
EVENTS = ("events.k8s.io/v1", "events")


@pytest_asyncio.fixture
async def environment(
    api_server: ApiServer, operator_account: Account, namespace: str, tmp_path: Path
) -> AsyncIterator[OperatorEnvironment]:
    """A job that waits at step 7."""
    async with make_environment(api_server, operator_account, namespace, tmp_path) as environment:
        environment.ray.scripts["small-a1"] = Script(waits_at=7)
        environment.operator.start()
        await environment.apply()
        await environment.until(lambda status: status.get("progress", {}).get("step") == 7)
        yield environment


def has_reason(reason: str) -> Callable[[Manifest], bool]:
    return lambda status: bool(condition(status, "Reconciling")["reason"] == reason)


@pytest.mark.row("B34")
async def test_deleted_and_changed_network_policies_of_running_job_are_restored(
    environment: OperatorEnvironment,
) -> None:
    [before] = await environment.all_of(*POLICIES)
    path = path_of(*POLICIES, environment.namespace, before["metadata"]["name"])

    async def is_restored() -> bool:
        policy = await environment.api.get(path)
        return policy is not None and bool(policy["spec"] == before["spec"])

    await environment.api.delete(path)
    await environment.until_true(is_restored)
    await environment.api.patch(path, {"spec": {"ingress": [{}]}})
    await environment.until_true(is_restored)

    assert (await environment.status())["attempt"] == 1


async def test_network_policy_of_running_job_follows_settings(
    environment: OperatorEnvironment, operator_account: Account, tmp_path: Path
) -> None:
    environment.operator.stop()
    environment.operator = make_operator(
        operator_account,
        tmp_path,
        environment.ray,
        environment.namespace,
        RAGGRPO_METRICS_NAMESPACES="monitoring",
    )
    environment.operator.start()

    async def admits_scraper() -> bool:
        [policy] = await environment.all_of(*POLICIES)
        return "monitoring" in str(policy["spec"]["ingress"])

    await environment.until_true(admits_scraper)


@pytest.mark.row("B34")
async def test_replaced_installation_key_is_reported_and_restored_without_restart(
    environment: OperatorEnvironment, tmp_path: Path
) -> None:
    key = tmp_path / "key" / "current"
    old = key.read_text()

    key.write_text("another installation key, long enough")
    status = await environment.until(has_reason("InstallationKeyChanged"))
    assert "operator-key" in condition(status, "Reconciling")["message"]
    environment.operator.stop()
    environment.operator.start()
    status = await environment.until(has_reason("InstallationKeyMissing"))
    assert "Secret" in condition(status, "Reconciling")["message"]
    assert condition(status, "Ready")["reason"] == "InstallationKeyMissing"
    (key.parent / "previous").write_text(old)
    await environment.until(has_reason("Reconciled"))
    environment.ray.may_continue = True
    status = await environment.until(is_phase("Succeeded"))

    assert [each["cause"] for each in status["attempts"]] == ["Succeeded"]
    assert environment.ray.submitted == ["small-a1"]


async def test_operator_without_installation_key_starts_and_recovers(
    environment: OperatorEnvironment, tmp_path: Path
) -> None:
    key = tmp_path / "key" / "current"
    old = key.read_text()
    environment.operator.stop()
    key.unlink()

    environment.operator.start()

    await environment.until(has_reason("InstallationKeyMissing"))
    await environment.apply(name="other")
    await environment.until(has_reason("InstallationKeyMissing"), name="other")
    key.write_text(old)
    environment.ray.may_continue = True
    await environment.until(is_phase("Succeeded"))
    status = await environment.until(is_phase("Succeeded"), name="other")
    assert "restarts" not in status


@pytest.mark.row("B34")
async def test_second_operator_backs_off_and_takes_over_after_uninstallation(
    environment: OperatorEnvironment, operator_account: Account, tmp_path: Path
) -> None:
    second = make_operator(
        operator_account,
        tmp_path,
        environment.ray,
        environment.namespace,
        RAGGRPO_LEASE_NAME="second",
        RAGGRPO_POD_NAME="second",
    )
    second.start()
    try:
        await environment.until_true(lambda: posted(environment, "OtherOperator"))
        [event] = await events(environment, "OtherOperator")
        assert f"{operator_account.namespace}/{operator_account.name}" in event["note"]
        await asyncio.sleep(2)  # nothing signals that it did not act
        environment.operator.stop()
        environment.operator = second
        environment.ray.may_continue = True
        status = await environment.until(is_phase("Succeeded"))
    finally:
        second.stop()

    assert environment.ray.submitted == ["small-a1"]
    assert status["attempt"] == 1
    leases = await environment.all_of("coordination.k8s.io/v1", "leases")
    assert [each["metadata"]["name"] for each in leases] == [names.NAMESPACE_LEASE]


async def events(environment: OperatorEnvironment, reason: str) -> list[Manifest]:
    return [each for each in await environment.all_of(*EVENTS) if each["reason"] == reason]


async def posted(environment: OperatorEnvironment, reason: str) -> bool:
    return bool(await events(environment, reason))
