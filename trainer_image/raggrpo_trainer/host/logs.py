"""Log levels of the trainer's processes, from `monitoring.logLevel`."""

import logging
from collections.abc import Mapping
from typing import Final

from raggrpo_api.spec.monitoring import LogLevel

FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
TRAINER_LOGGER: Final = "raggrpo_trainer"
_LIBRARY_LEVELS: Final[Mapping[LogLevel, int]] = {
    LogLevel.DEBUG: logging.INFO,
    LogLevel.INFO: logging.INFO,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
}
"""Log level of libraries; never DEBUG, as their messages would hide the trainer's messages."""


def configure_logs(level: LogLevel) -> None:
    """Log messages of `level` and above to standard error; a second call changes the level."""
    logging.basicConfig(format=FORMAT)
    logging.getLogger().setLevel(_LIBRARY_LEVELS[level])
    logging.getLogger(TRAINER_LOGGER).setLevel(level.upper())
    vllm = logging.getLogger("vllm")
    vllm.setLevel(_vllm_level(level))
    for handler in vllm.handlers:  # handlers have separate levels
        handler.setLevel(_vllm_level(level))


def vllm_log_variables(level: LogLevel) -> dict[str, str]:
    """Return the environment variables of vLLM's log level, which vLLM reads on import."""
    return {"VLLM_LOGGING_LEVEL": _vllm_level(level)}


def _vllm_level(level: LogLevel) -> str:
    """Return vLLM's log level; never above ERROR, at which vLLM logs why its core exits."""
    return "INFO" if level is LogLevel.DEBUG else "ERROR"
