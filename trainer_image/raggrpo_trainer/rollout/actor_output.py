"""Parse the actor's output into its fields. Pure. Must not compute rewards."""

import json
import re
from itertools import islice
from typing import assert_never

from raggrpo_api.spec.retrieval import ActorFormat, ActorOutput
from raggrpo_trainer.tagged_text import tagged_texts

MAX_BRACES = 1000
"""Number of places in a text at which an object may start."""
MAX_PARSED_TEXTS = 8
"""Maximum work of parsing in lengths of the text."""


def parse_actor_output(text: str, spec: ActorOutput) -> dict[str, str] | None:
    """Return the fields named in `spec`, stripped, or None if a field is missing or blank.

    JSON: the first object in the text, in a code fence or amid prose; other keys are ignored, and
    a value that is not text counts as missing. Tags: the first <field>…</field> of each field. If
    None is returned, the reward Format is 0 and no endpoint is called.
    """
    match spec.format:
        case ActorFormat.JSON:
            values = _first_object(text)
        case ActorFormat.TAGS:
            values = {name: _first_tag(text, name) for name in spec.fields}
        case _:
            assert_never(spec.format)
    fields: dict[str, str] = {}
    for name in spec.fields:
        value = values.get(name)
        if not isinstance(value, str) or not value.strip() or not _is_unicode(value):
            return None
        fields[name] = value.strip()
    return fields


def _first_object(text: str) -> dict[str, object]:
    """Return the first object; {} if there is none in MAX_BRACES and MAX_PARSED_TEXTS."""
    decoder = json.JSONDecoder()
    remaining = MAX_PARSED_TEXTS * len(text)
    for brace in islice(re.finditer(r"\{", text), MAX_BRACES):
        try:
            value, _ = decoder.raw_decode(text, brace.start())
        except RecursionError:  # nested very deeply; trying each level would take seconds
            return {}
        except ValueError as error:  # not the start of an object
            remaining -= getattr(error, "pos", len(text)) - brace.start()
            if remaining < 0:
                return {}
            continue
        if isinstance(value, dict):
            return value
    return {}


def _first_tag(text: str, name: str) -> str | None:
    return next((content for _, content in tagged_texts(text, [name])), None)


def _is_unicode(value: str) -> bool:
    # JSON can escape a lone surrogate ("\ud83d"), which cannot be encoded in a request.
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
