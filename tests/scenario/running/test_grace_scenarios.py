from raggrpo_operator.core.lifecycle.actions import CreateCluster
from support.fakes.fake_runtime import head_is_lost, make_scenario


async def test_slowest_save_is_recorded() -> None:
    scenario = make_scenario({(1, 33): head_is_lost}, save_seconds=4.26)
    await scenario.until(lambda status: status.attempt == 2)
    scenario.runtime.save_seconds = 2.0

    await scenario.until_quiet()

    assert scenario.status.restart_state.slowest_save_seconds == 4.3


async def test_grace_period_covers_slowest_save() -> None:
    scenario = make_scenario({(1, 33): head_is_lost}, save_seconds=20.0)

    await scenario.until_quiet()

    created = [each for each in scenario.runtime.performed if isinstance(each, CreateCluster)]
    assert [each.grace_seconds for each in created] == [30, 76]  # 3 x 20 s, the step, the margin


async def test_slowest_save_is_unchanged_when_observed_again() -> None:
    scenario = make_scenario(save_seconds=4.24)
    await scenario.until(lambda status: status.restart_state.slowest_save_seconds > 0)
    before = scenario.status.restart_state.slowest_save_seconds

    await scenario.round()

    assert scenario.status.restart_state.slowest_save_seconds == before == 4.2
