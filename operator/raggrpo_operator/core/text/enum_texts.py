"""The docstrings of enum members, which Python does not keep at run time."""

import ast
import inspect
from enum import Enum


def member_texts(kind: type[Enum]) -> dict[str, str]:
    """Return the docstring below each member of an enum, by the member's name."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    texts = {}
    for node, following in zip(body.body, body.body[1:], strict=False):
        match node, following:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=text)):
                texts[name] = " ".join(str(text).split())
    return texts
