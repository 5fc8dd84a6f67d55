"""Generate the mutants of a file, each with one small change of an expression or statement."""

import ast
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Mutant:
    """A file with one changed expression or statement; `text` is its whole source text."""

    path: str
    line: int
    function: int
    """Line of the innermost enclosing function; 0 in the body of a module or class."""
    name: str
    """Name of the innermost enclosing function or class; `module` if there is none."""
    before: str
    after: str
    text: str

    def __str__(self) -> str:
        return f"line {self.line} of {self.key}"

    @property
    def key(self) -> str:
        """Identifier without the line number, which changes with every edit of the file."""
        return f"{self.path} {self.name}: {self.before} -> {self.after}"


_OPERATORS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
_TEXT = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the possible replacements of a node, each with one small change."""
    new: Any = deepcopy(node)
    match node:
        case ast.Expr(value=ast.Call(func=ast.Name(id="assert_never"))):
            return  # unreachable, as mypy proves
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as number):
            yield ast.Constant(number + 1)
            yield ast.Constant(number - 1)
        case ast.Compare(ops=[op]) if type(op) in _OPERATORS:
            new.ops = [_OPERATORS[type(op)]()]
            yield new
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            if not any(isinstance(s, _TEXT) or _is_text(s) for s in (left, right)):
                new.op = _OPERATORS[type(op)]()
                yield new
        case ast.BoolOp(op=op):
            new.op = _OPERATORS[type(op)]()
            yield new
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.Call(func=ast.Name(id="min" | "max" as name)):
            new.func.id = "max" if name == "min" else "min"
            yield new
        case ast.IfExp(test=test):
            new.test = ast.UnaryOp(ast.Not(), test)
            yield new
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call() | ast.Await() | ast.Yield()) | ast.AugAssign() | ast.Raise():
            yield ast.Pass()
        case ast.Continue() | ast.Break():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def mutants(base: Path, path: str) -> Iterator[Mutant]:
    """Yield every mutant of a file."""
    text = (base / path).read_text()
    data = text.encode()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def visit(node: ast.AST, function: int, name: str) -> Iterator[Mutant]:
        if isinstance(node, ast.Expr) and ast.unparse(node).startswith("log."):
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function, name = node.lineno, node.name
        if isinstance(node, ast.ClassDef):
            name = node.name
        for new in changes(node):
            at: Any = node
            start = starts[at.lineno - 1] + at.col_offset
            end = starts[at.end_lineno - 1] + at.end_col_offset
            after = ast.unparse(ast.fix_missing_locations(new))
            put = after if isinstance(new, ast.stmt | ast.Constant) else f"({after})"
            changed = (data[:start] + put.encode() + data[end:]).decode()
            try:
                compile(changed, path, "exec")
            except (SyntaxError, ValueError):
                continue  # inside an f-string, where offsets do not refer to the file
            yield Mutant(path, at.lineno, function, name, ast.unparse(node), after, changed)
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            if isinstance(node, ast.JoinedStr | ast.FormattedValue):
                continue  # do not mutate the wording of messages
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from visit(child, function, name)

    yield from visit(ast.parse(text), 0, "module")
