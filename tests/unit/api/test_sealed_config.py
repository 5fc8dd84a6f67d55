import base64
import hashlib

import pytest

from raggrpo_api import limits, names
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.sealed_config import BrokenSeal, open_sealed, seal
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.job_config import read_config
from support.builders.operator.adversarial_text import ADVERSARIAL_JSON

LONGEST_VARIABLE = 128 * 1024
"""Linux's limit for one `NAME=value` of an environment, including the terminating NUL."""


@pytest.mark.parametrize("text", ["{}", ADVERSARIAL_JSON, "x" * limits.MAX_CONFIG_BYTES])
def test_sealed_config_round_trips_unchanged(text: str) -> None:
    assert open_sealed(seal(text)) == text


def test_sealed_variables_omit_special_characters_and_fit_linux_limit() -> None:
    sealed = seal(ADVERSARIAL_JSON) | seal("é" * (limits.MAX_CONFIG_BYTES // 2))
    for name, value in sealed.items():
        assert set("$(){}%`\\ \n") & set(value) == set()
        assert len(f"{name}={value}") < LONGEST_VARIABLE
        assert name in names.RESERVED_ENV


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({names.ENV_CONFIG: ""}, "RAGGRPO_CONFIG is not set"),
        ({names.ENV_CONFIG_SHA256: ""}, "RAGGRPO_CONFIG_SHA256 is not set"),
        ({names.ENV_CONFIG: '{"plain": 1}'}, "RAGGRPO_CONFIG is not base64"),
        ({names.ENV_CONFIG: "schön"}, "RAGGRPO_CONFIG is not base64"),
        ({names.ENV_CONFIG: base64.b64encode(b"{'other': 1}").decode()}, "was modified"),
        ({names.ENV_CONFIG_SHA256: "0" * 64}, "was modified"),
    ],
)
def test_damaged_sealed_environment_is_rejected_with_remedy(
    changes: dict[str, str], words: str
) -> None:
    with pytest.raises(BrokenSeal, match=words) as refused:
        open_sealed(seal("{}") | changes)
    assert "raggrpo run" in str(refused.value)


def test_sealed_bytes_that_are_not_text_are_rejected() -> None:
    raw = b"\xff\xfe"
    digest = hashlib.sha256(raw).hexdigest()
    environ = {
        names.ENV_CONFIG: base64.b64encode(raw).decode(),
        names.ENV_CONFIG_SHA256: digest,
    }
    with pytest.raises(TrainerError, match="RAGGRPO_CONFIG is not UTF-8") as failed:
        read_config(environ)
    assert failed.value.exit_code is ExitCode.CONFIG_ERROR


def test_broken_seal_error_does_not_reveal_configuration() -> None:
    with pytest.raises(BrokenSeal) as refused:
        open_sealed(seal("{}") | {names.ENV_CONFIG: "hunter2 is the secret"})
    assert "hunter2" not in str(refused.value)
