"""`monitoring.logLevel` in a process of the trainer; must not know what is logged."""

import logging
from collections.abc import Mapping
from typing import Final

from raggrpo_api.spec.monitoring import LogLevel

FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
OURS: Final = "raggrpo_trainer"
_OF_LIBRARIES: Final[Mapping[LogLevel, int]] = {
    LogLevel.DEBUG: logging.INFO,
    LogLevel.INFO: logging.INFO,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
}
"""Their debug messages, by the thousand, would bury ours."""


def configure_logs(level: LogLevel) -> None:
    """Write this process's log from `level` on to standard error; may be called again."""
    logging.basicConfig(format=FORMAT)
    logging.getLogger().setLevel(_OF_LIBRARIES[level])
    logging.getLogger(OURS).setLevel(level.upper())
    vllm = logging.getLogger("vllm")
    vllm.setLevel(_of_vllm(level))
    for handler in vllm.handlers:  # they have levels of their own
        handler.setLevel(_of_vllm(level))


def engine_variables(level: LogLevel) -> dict[str, str]:
    """Return the variables that tell vLLM its level before it is imported."""
    return {"VLLM_LOGGING_LEVEL": _of_vllm(level)}


def _of_vllm(level: LogLevel) -> str:
    """Return vLLM's level: never above ERROR, since its core tells only there why it died."""
    return "INFO" if level is LogLevel.DEBUG else "ERROR"
