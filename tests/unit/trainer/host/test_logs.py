"""Log levels, each in a separate process because they are global."""

import subprocess
import sys

import pytest

from raggrpo_api.spec.monitoring import LogLevel
from raggrpo_trainer.host.logs import vllm_log_variables

SCRIPT = """
import logging, sys
from raggrpo_api.spec.monitoring import LogLevel
from raggrpo_trainer.host.logs import configure_logs
vllm = logging.getLogger("vllm")
vllm.propagate = False
vllm.addHandler(logging.StreamHandler())
vllm.handlers[0].setLevel("ERROR")
for level in sys.argv[1:]:
    configure_logs(LogLevel(level))
    for name in ("raggrpo_trainer.x", "aiohttp.client", "vllm.engine"):
        for number in (10, 20, 30, 40):
            logging.getLogger(name).log(number, f"{level} {name} {number}")
"""


def logged_records(*levels: str) -> set[tuple[str, str, int]]:
    """Return (level, logger, level of the record) of all logged records."""
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, *levels], capture_output=True, text=True, check=True
    )
    rows = [line.split(": ")[-1].split() for line in process.stderr.splitlines()]
    return {(level, name.split(".")[0], int(number)) for level, name, number in rows}


@pytest.mark.row("A11")
def test_log_level_applies_to_trainer_and_libraries_do_not_log_debug() -> None:
    lowest: dict[tuple[str, str], int] = {}
    for level, name, number in logged_records(*LogLevel):
        lowest[level, name] = min(number, lowest.get((level, name), number))
    assert lowest == {
        ("Debug", "raggrpo_trainer"): 10,
        ("Debug", "aiohttp"): 20,
        ("Debug", "vllm"): 20,
        ("Info", "raggrpo_trainer"): 20,
        ("Info", "aiohttp"): 20,
        ("Info", "vllm"): 40,
        ("Warning", "raggrpo_trainer"): 30,
        ("Warning", "aiohttp"): 30,
        ("Warning", "vllm"): 40,
        ("Error", "raggrpo_trainer"): 40,
        ("Error", "aiohttp"): 40,
        ("Error", "vllm"): 40,
    }


@pytest.mark.parametrize("level", LogLevel)
def test_vllm_log_level_is_info_for_debug_and_error_otherwise(
    level: LogLevel,
) -> None:
    expected = "INFO" if level is LogLevel.DEBUG else "ERROR"
    assert vllm_log_variables(level) == {"VLLM_LOGGING_LEVEL": expected}
