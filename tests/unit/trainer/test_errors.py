"""Messages of errors show names and values of files and services that others wrote."""

from collections.abc import Callable

import pytest

from raggrpo_api.model_folder import UnsafeModel
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_retriever.corpus import CorpusError
from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.sample_failures import RetrievalFailed

ERRORS: dict[str, Callable[[str], Exception]] = {
    "trainer": lambda text: TrainerError(ExitCode.DATA_ERROR, text),
    "call": lambda text: CallFailed(FailureCause.HTTP_STATUS, text),
    "retrieval": lambda text: RetrievalFailed("kb", FailureCause.HTTP_STATUS, text),
    "corpus": CorpusError,
    "model": UnsafeModel,
}


@pytest.mark.parametrize("name", ERRORS)
def test_message_contains_no_control_characters(name: str) -> None:
    error = ERRORS[name]("moved to \x1b[2J\x1b]0;title\x07http://h/\u202e\r\x00x\udfff\nremedy")
    assert str(error).endswith("moved to http://h/  x \nremedy")


def test_detail_of_failed_call_contains_no_control_characters() -> None:
    assert CallFailed(FailureCause.RAISED, "\x1b[31mred").detail == "red"
    assert RetrievalFailed("kb", FailureCause.RAISED, "\x1b[31mred").detail == "red"
