"""Limit the number of tensors of a model that a library builds from a foreign config.json."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .model_folder import CONFIG, UnsafeModel

MAX_TENSORS = 20_000
"""Parameters, each one tensor, of a model; 1,000 layers of BERT have 16,000."""


@contextmanager
def limited_tensors(
    register_hook: Callable[[Callable[..., None]], Any], folder: Path
) -> Iterator[None]:
    """Raise UnsafeModel in a block that creates more than MAX_TENSORS parameters.

    Many fields of config.json repeat layers, and building those takes time even without memory for
    weights. `register_hook` is torch's `register_module_parameter_registration_hook`, which this
    package must not import.
    """
    created = 0

    def count(*_: object) -> None:
        nonlocal created
        created += 1
        if created > MAX_TENSORS:
            raise UnsafeModel(
                f"{folder / CONFIG} specifies a model of more than {MAX_TENSORS:,} tensors: "
                "copy the file again, or use another model"
            )

    handle = register_hook(count)
    try:
        yield
    finally:
        handle.remove()
