"""Parse a YAML or JSON object into a `RagGrpoJob`, or return all violations at once.

Checks each field by itself; `rules` checks combinations of values.
"""

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel
from pydantic.dataclasses import is_pydantic_dataclass
from pydantic_core import ErrorDetails

from raggrpo_api import names
from raggrpo_api.fields.json_values import FREE_JSON, size_problem
from raggrpo_api.fields.source import InvalidSource, parse_source
from raggrpo_api.job import Metadata, RagGrpoJob
from raggrpo_api.status.job_status import status_from_json

from .foreign_names import FOREIGN_VALUES, OTHER_FIELDS, foreign_field, hint_for
from .path_fields import is_path
from .pattern_remedies import remedy_for
from .violation import Reason, Violation

Location = tuple[int | str, ...]
MAX_NAME = 44
"""Maximum characters of a job's name; see `JobName`."""
NAME_RULE = (
    f"use at most {MAX_NAME} lower-case letters, digits and hyphens, starting with a letter and "
    "not ending with a hyphen"
)
MAX_DEPTH = 64
"""Maximum nesting of a job; far above any valid job, below Python's recursion limit."""
MAX_VALUES = 100_000
MAX_SUGGESTIONS = 3
"""Maximum number of known fields suggested for an unknown field."""

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""ID of a repository on a hub, such as Qwen/Qwen2.5-0.5B."""
_SOURCES: Mapping[str, str] = {
    "spec.model.path": "spec.model.source",
    "spec.data.trainFiles": "spec.data.sources",
    "spec.data.validationFiles": "spec.data.validationSources",
}
"""Fields of URLs to download from, by the field of paths that they replace."""


def parse_job(raw: object) -> RagGrpoJob | tuple[Violation, ...]:
    """Return the job, or all violations with their paths and remedies."""
    if not isinstance(raw, Mapping):
        return (
            Violation(
                "(file)",
                Reason.NOT_A_MAPPING,
                f"a job must be a mapping, not {_kind(raw)}",
                "start with apiVersion, kind, metadata and spec",
            ),
        )
    if problem := size_problem(raw, MAX_DEPTH, MAX_VALUES):
        path = field_path(_deepest(raw)[:5])
        remedy = "reduce nesting and size; avoid circular YAML aliases"
        return (Violation(path, Reason.SPEC_TOO_LARGE, problem, remedy),)
    plain = _plain(raw)
    wrong_kind = tuple(_wrong_kind(plain))
    try:
        job = RagGrpoJob.model_validate_json(
            json.dumps(plain), strict=True, by_alias=True, by_name=False
        )
    except ValidationError as error:
        details = error.errors(include_url=False)
        seen = {violation.path for violation in wrong_kind}
        violations = (_violation(detail) for detail in details)
        return wrong_kind + tuple(each for each in violations if each.path not in seen)
    return wrong_kind or job


def parse_update(job: RagGrpoJob, raw: Mapping[str, Any]) -> RagGrpoJob:
    """Return a job with new metadata and status but the same spec. Raises ValidationError."""
    metadata = Metadata.model_validate(raw["metadata"])
    status = status_from_json(raw.get("status", {}))
    return job.model_copy(update={"metadata": metadata, "status": status})


def field_path(location: Sequence[int | str]) -> str:
    """Return the path of a location, such as `spec.data.trainFiles[0]`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{_key(part)}" for part in location)
    return text.removeprefix(".")


def _key(name: str) -> str:
    """Return a key for display: quoted and shortened unless it looks like a field name."""
    return name if re.fullmatch(r"[\w./-]{1,64}", name) else _shown(name)


def _deepest(raw: object) -> Location:
    """Return the location of a value beyond MAX_DEPTH, or () if there is none."""
    pending: list[tuple[Location, object]] = [((), raw)]
    for _ in range(MAX_VALUES):
        if not pending:
            break
        location, value = pending.pop()
        if len(location) >= MAX_DEPTH:
            return location
        match value:
            case Mapping():
                pending += [((*location, str(key)), each) for key, each in value.items()]
            case list() | tuple():
                pending += [((*location, index), each) for index, each in enumerate(value)]
    return ()


def _plain(value: Any) -> Any:
    """Return the value as plain JSON without nulls, which count as unset, as in the API server."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)  # such as a date of a Python caller


def _wrong_kind(raw: Mapping[str, Any]) -> Iterator[Violation]:
    for key, expected in (("apiVersion", names.API_VERSION), ("kind", names.KIND)):
        if key not in raw:
            yield Violation(
                key, Reason.MISSING_FIELD, f"{key} is missing", f"set {key}: {expected}"
            )
        elif raw[key] != expected:
            yield Violation(
                key, Reason.WRONG_KIND, f"{raw[key]!r} is not {expected}", f"set {key}: {expected}"
            )


def _violation(error: ErrorDetails) -> Violation:
    location = error["loc"]
    value = error["input"]
    if location[-1:] == ("[key]",):  # an invalid key of a map, such as a node selector
        location = location[:-1]
    path, context = field_path(location), error.get("ctx", {})
    shown = "the value" if _may_be_secret(location) else _shown(value)
    match error["type"]:
        case "extra_forbidden" | "unexpected_keyword_argument":
            return _unknown_field(location, value)
        case "missing":
            remedy = f"add {location[-1]} to {field_path(location[:-1]) or 'the top level'}"
            return Violation(path, Reason.MISSING_FIELD, f"{location[-1]} is missing", remedy)
        case "enum" | "literal_error":
            return _not_a_choice(path, value, str(context["expected"]))
        case _ if location == ("metadata", "name"):
            return _bad_name(path, str(value))
        case "string_pattern_mismatch":
            return _bad_format(location, str(value), shown, str(context["pattern"]))
        case "string_too_long":
            limit = context["max_length"]
            message = f"{shown} has {len(str(value))} characters, limit {limit}"
            return Violation(path, Reason.OUT_OF_RANGE, message, f"use at most {limit} characters")
        case kind if kind.endswith("_type") or kind.endswith("_parsing"):
            expected = error["msg"].removeprefix("Input should be ")
            if written := _yaml_remedy(kind, value):
                remedy = f"specify {expected}: {written}"
                return Violation(path, Reason.WRONG_TYPE, f"{shown} is not {expected}", remedy)
            return Violation(
                path, Reason.WRONG_TYPE, f"{shown} is not {expected}", f"specify {expected}"
            )
        case _:
            problem = (
                error["msg"]
                .removeprefix("Value error, ")
                .replace("Input should", "should")
                .replace(" after validation", "")
            )
            problem, _, remedy = problem.partition("; ")
            return Violation(
                path, Reason.OUT_OF_RANGE, f"{shown}: {problem}", remedy or "choose another value"
            )


_UNQUOTED: Mapping[bool, str] = {True: "on, yes, y or true", False: "off, no, n or false"}


def _yaml_remedy(kind: str, value: object) -> str:
    """Return the remedy for a value that YAML 1.1 or quotes gave the wrong type, or ""."""
    if kind.startswith("string") and isinstance(value, bool):
        return f"YAML 1.1 parses unquoted {_UNQUOTED[value]} as a boolean: quote the value"
    if kind.startswith("string") and isinstance(value, int | float):
        return f'quote the value: "{value}"'
    if kind.startswith("list") and isinstance(value, Mapping):
        return 'write "- " before each item, such as - {name: ..., value: ...}'
    if not isinstance(value, str):
        return ""
    if kind.startswith("list") and re.fullmatch(r"[\w./-]{1,64}", value):
        return f"write [{value}]"
    if kind.startswith("bool") and value.lower() in ("on", "yes", "true", "off", "no", "false"):
        return "write true or false without quotes"
    if kind.startswith(("int", "float")) and re.fullmatch(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?", value):
        number = re.sub(r"^([-+]?)0+(?=[0-9])", r"\1", value)
        return f"write {number} without quotes" + (
            " and without leading zeros" if number != value else ""
        )
    return ""


def _may_be_secret(location: Location) -> bool:
    """Return whether the value at a location may contain a secret."""
    return location[-1:] in (("value",), ("url",)) or any(name in location for name in FREE_JSON)


def _unknown_field(location: Location, value: object) -> Violation:
    unknown, parent = str(location[-1]), location[:-1]
    siblings = list(_fields_at(parent))
    known = _unique_fields()
    path = ".".join(part for part in location[1:] if isinstance(part, str))
    if to_camel(unknown) in siblings:
        remedy = f"write {to_camel(unknown)}"
    elif unknown in ("True", "False"):
        remedy = (
            f"YAML 1.1 parses unquoted {_UNQUOTED[unknown == 'True']} as a boolean: quote the key"
        )
    elif (
        unknown in known
        and not isinstance(value, Mapping)
        and foreign_field(path, OTHER_FIELDS) is None
    ):
        remedy = f"move it to {known[unknown]}"
    elif hint := hint_for(path, value):
        remedy = hint
    elif to_camel(unknown) in known:
        remedy = f"use {known[to_camel(unknown)]}"
    elif near := _close_names(unknown, siblings, known):
        remedy = f"did you mean {' or '.join(near)}?"
    else:
        remedy = f"remove it; known fields: {', '.join(siblings)}"
    return Violation(field_path(location), Reason.UNKNOWN_FIELD, "unknown field", remedy)


def _close_names(unknown: str, siblings: Sequence[str], known: Mapping[str, str]) -> list[str]:
    """Return up to MAX_SUGGESTIONS fields with similar names, those of the same block first."""
    name = to_camel(unknown)
    near = difflib.get_close_matches(name, siblings, MAX_SUGGESTIONS, cutoff=0.6)
    elsewhere = difflib.get_close_matches(name, known, MAX_SUGGESTIONS, cutoff=0.75)
    paths = [known[other] for other in elsewhere if other not in siblings]
    return [*near, *paths][:MAX_SUGGESTIONS]


def _not_a_choice(path: str, value: object, expected: str) -> Violation:
    choices = expected.replace(" or ", ", ").replace("'", "").split(", ")
    by_lower = {choice.lower(): choice for choice in choices}
    word = str(value).lower()
    near = difflib.get_close_matches(word, by_lower, cutoff=0.6)
    if isinstance(value, bool):
        near = [word for word in ("off", "on", "no", "yes") if word in by_lower] or near
        quoted = f'"{by_lower[near[0]]}"' if near else f"one of {expected}, in quotes"
        remedy = f"YAML 1.1 parses unquoted {_UNQUOTED[value]} as a boolean: write {quoted}"
        return Violation(path, Reason.NOT_A_CHOICE, f"{value} is a boolean", remedy)
    if (
        meant := FOREIGN_VALUES.get(word) or FOREIGN_VALUES.get(re.sub(r"[- ]+", "_", word))
    ) is not None:
        message = f"{_shown(value)} is not one of {', '.join(choices)}"
        return Violation(path, Reason.NOT_A_CHOICE, message, f"write {meant}")
    remedy = f"did you mean {by_lower[near[0]]}?" if near else f"choose one of {expected}"
    return Violation(
        path, Reason.NOT_A_CHOICE, f"{_shown(value)} is not one of {', '.join(choices)}", remedy
    )


def _bad_format(location: Location, value: str, shown: str, pattern: str) -> Violation:
    path = field_path(location)
    if "://" in value and "@" in value and not _source_for(path, value):
        remedy = "remove the credentials; use a header with secretKeyRef"
        return Violation(path, Reason.CREDENTIALS_IN_URL, "the URL contains credentials", remedy)
    if _is_path(location):
        return _bad_path(path, value)
    field = next(part for part in reversed(location) if isinstance(part, str))
    message = f"{shown} does not match the format of its field"
    return Violation(path, Reason.INVALID_FORMAT, message, remedy_for(pattern, field))


def _bad_path(path: str, value: str) -> Violation:
    if not value.startswith("/"):
        message = f"{_shown(value)} is not an absolute path"
        remedy = "use an absolute path, starting with /"
        if source := _source_for(path, value):
            remedy += f"; to download it, specify {source}"
        return Violation(path, Reason.RELATIVE_PATH, message, remedy)
    message = f"{_shown(value)} contains empty components, . or .., or control characters"
    return Violation(path, Reason.INVALID_FORMAT, message, "specify the path without them")


def _source_for(path: str, value: str) -> str:
    """Return the field and value of the source that a path means, or ""."""
    field = _SOURCES.get(path.partition("[")[0], "")
    prefix = "hf://" if field == "spec.model.source" else "hf://datasets/"
    url = value if "://" in value else f"{prefix}{value}"
    if not field or not ("://" in value or HUB_ID.fullmatch(value)) or not _is_source(url):
        return ""
    return f"{field}: {url if field == 'spec.model.source' else f'[{url}]'}"


def _is_source(url: str) -> bool:
    try:
        parse_source(url)
    except InvalidSource:
        return False
    return True


def _bad_name(path: str, value: str) -> Violation:
    remedy = f"{NAME_RULE}, such as {valid_name(value)}"
    return Violation(path, Reason.INVALID_NAME, f"{_shown(value)} is not a valid name", remedy)


def valid_name(text: str, prefix: str = "job-") -> str:
    """Return a valid job name that resembles `text`."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if not name[:1].isalpha():
        name = prefix + (name or "1")
    return name[:MAX_NAME].strip("-")


def _models_in(annotation: Any) -> Iterator[type[Any]]:
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    if is_model or is_pydantic_dataclass(annotation):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _fields_at(location: Location) -> Mapping[str, Any]:
    """Return the fields of the model at a location, by name, or {} if there is no model."""
    fields = _fields(RagGrpoJob)
    for part in location:
        if isinstance(part, int):
            continue
        models = list(_models_in(fields[part].annotation)) if part in fields else []
        fields = _fields(models[0]) if models else {}
    return fields


def _fields(model: type[Any]) -> Mapping[str, Any]:
    return {field.alias or name: field for name, field in model.__pydantic_fields__.items()}


def _field_paths() -> Iterator[tuple[str, str]]:
    """Yield (name, path) of every spec field, except fields of list items."""
    pending: list[Location] = [("spec",)]
    while pending:
        location = pending.pop()
        for name, field in _fields_at(location).items():
            yield name, field_path((*location, name))
            if get_origin(field.annotation) is not list:
                pending.append((*location, name))


@cache
def _unique_fields() -> Mapping[str, str]:
    """Return the paths of the spec fields whose name occurs only once, by name."""
    fields = list(_field_paths())
    counts = Counter(name for name, _ in fields)
    return {name: path for name, path in fields if counts[name] == 1}


def is_spec_field(path: str) -> bool:
    """Return whether a path below `spec`, such as `training.learningRate`, is a field."""
    *blocks, last = path.split(".")
    return last in _fields_at(("spec", *blocks))


def _is_path(location: Location) -> bool:
    field_names = [part for part in location if isinstance(part, str)]
    field = _fields_at(tuple(field_names[:-1])).get(field_names[-1])
    return field is not None and is_path(field.annotation, field.metadata)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _kind(value: object) -> str:
    return "an empty document" if value is None else f"a {type(value).__name__}"
