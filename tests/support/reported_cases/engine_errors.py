"""Reported cases about the messages of engines and ranks that fail."""

from pathlib import Path

from ray.exceptions import RayTaskError

from raggrpo_trainer.driver.failure import to_failure
from raggrpo_trainer.engines.engine_failure import Output, failure_reason
from raggrpo_trainer.ranks.ranks import task_error
from support.reported_cases.case import case

FRAMES = "\n".join(f'  File "core_{i}.py", line {i}, in run\n    step()' for i in range(20))
LAST = "ValueError: the model needs 24.1 GiB of KV cache, but 3.2 GiB are available."
OTHER_LAST = "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig"
TRACEBACK = f"Traceback (most recent call last):\n{FRAMES}\n{LAST}"


@case(
    "J5",
    fault="A message starts with the frames of a traceback, which hide its reason",
    inputs=[
        (TRACEBACK, LAST),
        (f"{TRACEBACK}\n\nDuring handling of the above exception:\n\n{FRAMES}\nKeyError: 'x'",
         "KeyError: 'x'"),
        (f"Traceback\n{FRAMES}\n{OTHER_LAST}\n  Value error, unknown dtype", OTHER_LAST),
    ],
)  # fmt: skip
def messages_start_with_the_last_line_of_a_traceback(_folder: Path, given: tuple[str, str]) -> None:
    """The failure of a rank, an engine or the driver starts with the error."""
    text, last = given
    rank = task_error(RayTaskError("RankActor.step", text, RuntimeError("wrapped")))
    assert str(rank).startswith(last)
    assert to_failure(RuntimeError(text)).message.startswith(last)
    assert failure_reason(RuntimeError(text), []).startswith(last)


@case("J5-core", fault="The error only refers to the output of another process")
def reason_in_the_output_of_the_engine_core_is_reported(folder: Path) -> None:
    """The reason is the last error in the output that states a cause."""
    prefix = "(EngineCore_DP0 pid=7) ERROR 11-27 18:00:01 [core.py:866] "
    rows = [*TRACEBACK.splitlines(), "RuntimeError: Worker failed. See stack trace above."]
    output = folder / "worker.err"
    output.write_text("\n".join(prefix + row for row in rows))
    error = RuntimeError("Engine core initialization failed. See root cause above.")
    assert failure_reason(error, [Output(output, 0)]) == LAST
