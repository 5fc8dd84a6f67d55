"""ConfigMaps of attempts that others have changed."""

import json
from typing import Any

import pytest
import typer

from raggrpo_api import names
from raggrpo_cli.kubectl.attempt_records import recorded_config
from raggrpo_cli.kubectl.diff import _config
from raggrpo_operator.core.text.config_diff import AttemptConfig, AttemptName
from raggrpo_operator.errors import OperatorError
from support.builders.operator.jobs import make_job

JOB = make_job({})


class Client:
    """A client that returns one ConfigMap."""

    def __init__(self, data: object) -> None:
        owner = {"controller": True, "uid": JOB.metadata.uid}
        self._map = {"metadata": {"name": "a", "ownerReferences": [owner]}, "data": data}

    async def find(self, *_: object, **__: object) -> list[dict[str, Any]]:
        return [self._map]


async def config_of(data: object) -> AttemptConfig:
    client: Any = Client(data)
    return await _config(client, JOB, AttemptName("a", 1))


def content(text: str) -> dict[str, str]:
    return {names.CONFIG_FILE: text}


async def test_configuration_is_read() -> None:
    config = await config_of(content('{"rollout": {"n": 4}}'))
    assert config.leaves() == {"rollout.n": 4}


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        content(""),
        content("{"),
        content("[" * 100_000),
        content('{"a": 1, "a": 2}'),
        content('{"a": %s}' % ("9" * 5000)),
    ],
)
async def test_configuration_that_is_not_json_is_reported(data: object) -> None:
    client: Any = Client(data)
    with pytest.raises(OperatorError, match=r"config.json of ConfigMap a is not JSON: "):
        await recorded_config(client, JOB.metadata, 1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[1]", "it is not a JSON object"),
        ("7", "it is not a JSON object"),
        ('{"a":' * 90 + "1" + "}" * 90, "nested more than 64 levels deep"),
        (json.dumps({"a": [0] * 200_000}), "more than 100000 values"),
    ],
)
async def test_unsuitable_configuration_is_reported(
    text: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit):
        await config_of(content(text))
    shown = capsys.readouterr().err
    assert shown.startswith("the configuration of a@1 cannot be read: ")
    assert reason in shown
