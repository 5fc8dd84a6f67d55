"""`ChangeClass`: when a field may change after the first attempt. Stated in each field's metadata.

    learning_rate: Annotated[float, Field(gt=0.0), OPTIMIZATION] = 1e-6

A field without a class has the class of the field that contains it.
"""

from enum import StrEnum
from functools import cache
from typing import Any, Final, get_args

from pydantic.alias_generators import to_snake

from .base import ApiModel


class ChangeClass(StrEnum):
    """What a field determines, and therefore when it may change after the first attempt."""

    MODEL = "Model"
    """The model, its data or its task: never, because checkpoints belong to it."""
    OPTIMIZATION = "Optimization"
    """How the model is optimized: while the job is suspended or has ended; starts a segment."""
    OPERATIONAL = "Operational"
    """Where and how the job runs: at any time, from the next attempt."""


MODEL: Final = ChangeClass.MODEL
OPTIMIZATION: Final = ChangeClass.OPTIMIZATION
OPERATIONAL: Final = ChangeClass.OPERATIONAL


@cache
def classes_of(model: type[ApiModel]) -> dict[str, ChangeClass | None]:
    """Return the class that each field of a model states, by name; None: none stated."""
    return {
        name: next((each for each in field.metadata if isinstance(each, ChangeClass)), None)
        for name, field in model.model_fields.items()
    }


def fields_of_class(model: type[ApiModel], *classes: ChangeClass) -> tuple[str, ...]:
    """Return the names of the fields of a model that state one of the classes."""
    return tuple(name for name, stated in classes_of(model).items() if stated in classes)


def change_class(model: type[ApiModel], path: str) -> ChangeClass | None:
    """Return the class of the field at a path such as `retrieval.endpoints[0].topK`.

    Indexes are ignored. A path that leaves the model, such as a key of a map, has the class of the
    last field on it. Returns None if the first name is not a field or no field states a class.
    """
    nearest: ChangeClass | None = None
    kind: type[ApiModel] | None = model
    for part in path.split("."):
        name = to_snake(part.partition("[")[0])
        if kind is None or name not in kind.model_fields:
            return nearest
        nearest = classes_of(kind)[name] or nearest
        kind = model_in(kind.model_fields[name].annotation)
    return nearest


def model_in(annotation: Any) -> type[ApiModel] | None:
    """Return the model in an annotation such as `list[Model]` or `Model | None`, or None."""
    if isinstance(annotation, type) and issubclass(annotation, ApiModel):
        return annotation
    return next((kind for each in get_args(annotation) if (kind := model_in(each))), None)
