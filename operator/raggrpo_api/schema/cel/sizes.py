"""CEL rules about how much text a job holds: etcd keeps the job, every pod its environment."""

from collections.abc import Iterator, Mapping

from raggrpo_api.limits import MAX_ENV_BYTES, MAX_SPEC_BYTES
from raggrpo_api.schema.structural import Schema, structural
from raggrpo_api.spec.job_spec import JobSpec

from .rule import CelRule


def text_bytes(schema: Schema, place: str = "self") -> str:
    """Return an expression for the bytes of all free texts at a place, in UTF-8."""
    return " + ".join(_terms(schema, place, 0)) or "0"


def _terms(schema: Schema, place: str, depth: int) -> Iterator[str]:
    """Yield a term for everything that is optional, a list or a text by itself."""
    match schema.get("type"):  # CEL cannot look into free JSON, which the operator counts
        case "string" if "enum" not in schema:
            yield f"size(bytes({place}))"
        case "array":
            item = f"e{depth}"
            if terms := list(_terms(schema["items"], item, depth + 1)):
                yield f"{place}.map({item}, {' + '.join(terms)}).sum()"
        case "object" if "properties" in schema:
            required = schema.get("required", [])
            for name, field in schema["properties"].items():
                at = f"{place}.{name}"
                if terms := list(_terms(field, at, depth)):
                    found = " + ".join(terms)
                    yield found if name in required else f"(has({at}) ? {found} : 0)"
        case "object":
            key = f"e{depth}"
            if terms := list(_terms(schema["additionalProperties"], f"{place}[{key}]", depth + 1)):
                yield f"{place}.map({key}, {' + '.join(terms)}).sum()"


_SPEC = structural(JobSpec, lambda _place, _default: "")

SIZES: Mapping[str, tuple[CelRule, ...]] = {
    "spec": (
        CelRule(
            f"{text_bytes(_SPEC)} <= {MAX_SPEC_BYTES}",
            f"spec: its texts together take more than {MAX_SPEC_BYTES} bytes, shorten templates, "
            "lists or env",
        ),
    ),
    "spec.env": (
        CelRule(
            f"{text_bytes(_SPEC['properties']['env'])} <= {MAX_ENV_BYTES}",
            f"env: it takes more than {MAX_ENV_BYTES} bytes, shorten values, or use a file",
        ),
    ),
}
"""Place in the schema → its rules."""
