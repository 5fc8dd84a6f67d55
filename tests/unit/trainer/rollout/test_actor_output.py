import json

import pytest

from raggrpo_api.spec.retrieval import ActorFormat, ActorOutput
from raggrpo_trainer.rollout.actor_output import parse_actor_output

FIELDS = {"user_profile": "young", "rewritten_query": "loan rate", "history_summary": "asked"}
OBJECT = json.dumps(FIELDS)
AS_JSON = ActorOutput()
AS_TAGS = ActorOutput(format=ActorFormat.TAGS)
TAGS = "".join(f"<{name}>{value}</{name}>" for name, value in FIELDS.items())


@pytest.mark.parametrize(
    "text",
    [
        OBJECT,
        f"```json\n{json.dumps(FIELDS, indent=2)}\n```",
        f"Sure {{this}} is it: {OBJECT} Anything else?",
        f"{OBJECT} {json.dumps(dict.fromkeys(FIELDS, 'second'))}",
        json.dumps({name: f"  {value}\n" for name, value in FIELDS.items()}),
        json.dumps({"confidence": 0.5, **FIELDS}),
        '{"a": ' * 3 + OBJECT,
    ],
)
def test_actor_fields_are_read_from_first_json_object(text: str) -> None:
    assert parse_actor_output(text, AS_JSON) == FIELDS


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no object",
        '{"a": ' * 20_000 + OBJECT,
        OBJECT[:-1],
        "{} " + OBJECT,
        json.dumps([FIELDS])[:-2],
        json.dumps({**FIELDS, "user_profile": " "}),
        json.dumps({**FIELDS, "user_profile": None}),
        json.dumps({**FIELDS, "user_profile": ["young"]}),
        json.dumps({name: value for name, value in FIELDS.items() if name != "user_profile"}),
        json.dumps({**FIELDS, "user_profile": "half a pair \ud83d"}),
        '{"user_profile": ' + "9" * 5000 + "}",
        TAGS,
    ],
)
def test_json_output_without_required_field_is_unparsable(text: str) -> None:
    assert parse_actor_output(text, AS_JSON) is None


@pytest.mark.parametrize(
    "text",
    [
        TAGS,
        f"Thinking.\n{TAGS.replace('young', chr(10) + 'young ')}\nDone.",
        f"{TAGS}<user_profile>second</user_profile>",
    ],
)
def test_actor_fields_are_read_from_first_tags(text: str) -> None:
    assert parse_actor_output(text, AS_TAGS) == FIELDS


@pytest.mark.parametrize(
    "text",
    ["", OBJECT, TAGS.replace("young", " \n"), TAGS[:-1], TAGS.replace("</user_profile>", "")],
)
def test_tag_output_without_required_field_is_unparsable(text: str) -> None:
    assert parse_actor_output(text, AS_TAGS) is None


def test_actor_fields_are_configured_in_job() -> None:
    spec = ActorOutput(fields=["query"], format=ActorFormat.TAGS)
    assert parse_actor_output("<query>tea</query>", spec) == {"query": "tea"}
