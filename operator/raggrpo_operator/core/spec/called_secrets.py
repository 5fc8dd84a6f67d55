"""Secret keys with which driver and preflight call services, such as those in headers."""

from collections.abc import Iterator

from raggrpo_api.fields.base import ApiModel, SecretKeyRef
from raggrpo_api.spec.resources import EnvVar


def called_secrets(model: ApiModel, prefix: str = "spec") -> Iterator[tuple[str, SecretKeyRef]]:
    """Yield (field path, reference) of each Secret key below a model, but not those of variables.

    Variables have other names; these keys become variables that are named after Secret and key.
    """
    for name, field in type(model).model_fields.items():
        value, place = getattr(model, name), f"{prefix}.{field.alias}"
        items = (
            [(f"{place}[{index}]", item) for index, item in enumerate(value)]
            if isinstance(value, list)
            else [(place, value)]
        )
        for where, item in items:
            if isinstance(item, SecretKeyRef):
                yield where, item
            elif isinstance(item, ApiModel) and not isinstance(item, EnvVar):
                yield from called_secrets(item, where)
