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


def test_fields_unknown_to_schema_are_dropped_and_listed() -> None:
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


def test_current_trainer_schema_is_known_and_complete() -> None:
    schema = TrainerConfig.model_json_schema(by_alias=True)

    assert known_schemas()[schema_digest()] == fields_of(schema, schema["$defs"])
    assert known_schemas()[schema_digest()]["retrieval"]["endpoints"]["headers"] == {
        "name": None,
        "value": None,
        "notSecret": None,
        "secretKeyRef": {"name": None, "key": None},
    }


def test_release_is_added_to_trainer_schemas() -> None:
    text = with_release(FILE.read_text(), "9.0.0", "d", {"properties": {"a": {"type": "string"}}})
    assert json.loads(text) == json.loads(FILE.read_text()) | {
        "9.0.0": {"digest": "d", "fields": {"a": None}}
    }
