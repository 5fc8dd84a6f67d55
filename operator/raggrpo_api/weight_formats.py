"""Formats of weights other than safetensors, and how to convert them. Pure."""

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Final

_ORIGINAL: Final = "use the model from which these files were made, in safetensors"
_REMEDIES: Final = {
    ".bin": (
        "convert the .bin files with `python -c "
        '"from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; '
        "[each.from_pretrained('{model}').save_pretrained('converted') for each in (M, T)]"
        '"` (AutoModel for an embedding model)'
    ),
    ".gguf": _ORIGINAL,
    ".onnx": _ORIGINAL,
    **dict.fromkeys(
        (".pt", ".pth", ".ckpt"),
        "load the weights with the program that wrote them, and save the model with "
        "save_pretrained()",
    ),
}
"""Remedy by suffix; the first one that a folder has applies."""


def conversion_remedy(names: Iterable[str], model: str) -> str:
    """Return how to get a folder with weights in safetensors.

    `names` are the files of the model, and `model` is its path, or its name on a hub.
    """
    suffixes = {PurePosixPath(each).suffix.lower() for each in names}
    remedies = (remedy for suffix, remedy in _REMEDIES.items() if suffix in suffixes)
    return next(remedies, "save the model with save_pretrained()").format(model=model)
