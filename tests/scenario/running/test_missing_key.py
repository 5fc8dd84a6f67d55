"""The operator lost the installation key from which the token of a running head was derived."""

from datetime import timedelta

from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import Phase
from raggrpo_operator.core.lifecycle.actions import DeleteCluster, StopAttempt
from raggrpo_operator.core.lifecycle.during_attempt.follow import MISSING_KEY_SECONDS
from support.fakes.fake_runtime import Scenario, causes, make_scenario, until_step

MISSING = "installation key 1f of the Ray cluster is not in Secret ops/key"


async def run_seconds(scenario: Scenario, seconds: float) -> None:
    """Reconcile for this time."""
    end = scenario.runtime.now + timedelta(seconds=seconds)
    while scenario.runtime.now < end:
        await scenario.round()


async def test_restored_key_continues_attempt() -> None:
    scenario = make_scenario()
    await until_step(scenario, 15)
    scenario.runtime.missing_key = MISSING
    await run_seconds(scenario, MISSING_KEY_SECONDS - 30)
    scenario.runtime.missing_key = ""

    status = await scenario.until_quiet()

    assert status.phase is Phase.SUCCEEDED
    assert causes(scenario) == [Cause.SUCCEEDED]


async def test_cluster_is_replaced_when_its_key_stays_missing() -> None:
    scenario = make_scenario()
    await until_step(scenario, 15)
    scenario.runtime.missing_key = MISSING

    await scenario.until(lambda status: status.attempts[0].cause is not None)
    scenario.runtime.missing_key = ""
    status = await scenario.until_quiet()

    assert status.phase is Phase.SUCCEEDED
    assert causes(scenario) == [Cause.PROGRESS_UNREACHABLE, Cause.SUCCEEDED]
    assert MISSING in scenario.attempts[0].message
    assert scenario.attempts[1].cluster == 2
    assert scenario.count(StopAttempt) == 0, "the head would reject it"
    assert scenario.count(DeleteCluster) >= 1


async def test_attempt_continues_while_no_key_is_mounted() -> None:
    scenario = make_scenario()
    await until_step(scenario, 5)
    scenario.runtime.missing_key = MISSING
    scenario.runtime.can_replace_cluster = False
    await run_seconds(scenario, 2 * MISSING_KEY_SECONDS)
    assert causes(scenario) == [None]
    scenario.runtime.missing_key, scenario.runtime.can_replace_cluster = "", True

    await scenario.until_quiet()

    assert causes(scenario) == [Cause.SUCCEEDED]
