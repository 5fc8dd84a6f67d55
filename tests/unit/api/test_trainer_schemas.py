import json

from raggrpo_api.trainer.config import TrainerConfig, schema_digest
from raggrpo_api.trainer.schemas import (
    FILE,
    drop_unknown,
    fields_of,
    known_schemas,
    unknown_paths,
    with_release,
)

OLD = {"model": {"path": None}, "rows": {"name": None}, "notes": None}
NEW = {
    "model": {"path": "m", "newer": 1},
    "rows": [{"name": "a"}, {"name": "b", "newer": {"deep": 2}}],
    "notes": {"any": "thing"},
    "newer": [],
}


def test_what_an_earlier_schema_lacks_is_left_out_and_can_be_told() -> None:
    assert drop_unknown(NEW, OLD) == {
        "model": {"path": "m"},
        "rows": [{"name": "a"}, {"name": "b"}],
        "notes": {"any": "thing"},
    }
    assert list(unknown_paths(NEW, OLD, "spec")) == [
        "spec.model.newer",
        "spec.rows[1].newer",
        "spec.newer",
    ]


def test_this_releases_schema_is_known_and_keeps_every_field() -> None:
    schema = TrainerConfig.model_json_schema(by_alias=True)

    assert known_schemas()[schema_digest()] == fields_of(schema, schema["$defs"])
    assert known_schemas()[schema_digest()]["retrieval"]["endpoints"]["headers"] == {
        "name": None,
        "value": None,
        "secretKeyRef": {"name": None, "key": None},
    }


def test_a_release_is_written_beside_the_earlier_ones() -> None:
    text = with_release(FILE.read_text(), "9.0.0", "d", {"properties": {"a": {"type": "string"}}})
    assert json.loads(text) == json.loads(FILE.read_text()) | {
        "9.0.0": {"digest": "d", "fields": {"a": None}}
    }
