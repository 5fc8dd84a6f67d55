from support.fakes.fake_runtime import a_story, head_is_lost


async def test_the_slowest_save_of_all_attempts_is_remembered() -> None:
    story = a_story({(1, 33): head_is_lost}, save_seconds=4.26)
    await story.until(lambda status: status.attempt == 2)
    story.runtime.save_seconds = 2.0

    await story.until_quiet()

    assert story.status.restart_state.slowest_save_seconds == 4.3


async def test_a_save_as_slow_as_the_slowest_changes_nothing() -> None:
    story = a_story(save_seconds=4.24)
    await story.until(lambda status: status.restart_state.slowest_save_seconds > 0)
    before = story.status.restart_state.slowest_save_seconds

    await story.round()

    assert story.status.restart_state.slowest_save_seconds == before == 4.2
