"""Read pickles of plain state without unpickling them: nothing is imported, called or created.

An object of the pickle becomes an Instance, which only has the name of its class and its content.
Pure.
"""

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MAX_COST = 20_000_000
"""Limit on the operations of a pickle; those that allocate memory count as CONTAINER_COST."""
CONTAINER_COST = 4


@dataclass(slots=True, eq=False)
class Global:
    """A class or function, which is not imported."""

    name: str


@dataclass(slots=True, eq=False)
class Instance:
    """The result of calling a class or function, which is not called."""

    name: str
    arguments: tuple[Any, ...]
    state: Any = None


def read_plain(content: bytes, *, has_objects: bool = True) -> Any:
    """Return the content of a pickle, which may have objects.

    Raises ValueError if it is anything else or too large.
    """
    machine = _Machine()
    costs = _COSTS if has_objects else _PLAIN_COSTS
    cost = 0
    try:
        for opcode, argument, _ in pickletools.genops(content):
            cost += costs[opcode.name]
            if cost > MAX_COST:
                raise ValueError("it has too many values")
            machine.run(opcode.name, argument)
        [value] = machine.stack
    except KeyError as error:
        raise ValueError(f"operation {error} is not allowed in a pickle of state") from error
    except (IndexError, TypeError, ValueError) as error:
        raise ValueError(f"it is not a pickle of state: {error}"[:200]) from error
    return value


@dataclass(slots=True)
class _Machine:
    """The stack machine of a pickle."""

    stack: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: list[Any] = field(default_factory=list)

    def run(self, name: str, argument: Any) -> None:
        if name in _ARGUMENTS:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        else:
            _OPERATIONS[name](self, argument)

    def pop(self) -> Any:
        return self.stack.pop()

    def pop_marked(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def pop_last(self, count: int) -> tuple[Any, ...]:
        return tuple(self.pop() for _ in range(count))[::-1]

    def mark(self, _: Any) -> None:
        self.marks.append(len(self.stack))

    def put(self, index: int | None) -> None:
        if index not in (None, len(self.memo)):
            raise ValueError("its references are not in order")
        self.memo.append(self.stack[-1])

    def get(self, index: int) -> None:
        self.stack.append(self.memo[index])

    def append(self, items: list[Any]) -> None:
        self._top(list).extend(items)

    def set_items(self, items: list[Any]) -> None:
        keys = items[::2]
        if not all(type(key) in (str, Instance) for key in keys):
            raise TypeError("a key is not a text")  # hashes of other values may take forever
        self._top(dict).update(zip(keys, items[1::2], strict=True))

    def call(self, _: Any) -> None:
        arguments, target = self.pop(), self.pop()
        if type(target) is not Global or type(arguments) is not tuple:
            raise TypeError("it calls a value")
        self.stack.append(Instance(target.name, arguments))

    def build(self, _: Any) -> None:
        state = self.pop()
        instance = self._top(Instance)
        if instance.state is not None:
            raise ValueError("an object has two states")
        instance.state = state

    def stack_global(self, _: Any) -> None:
        module, name = self.pop_last(2)
        self.stack.append(Global(f"{module!s:.200}.{name!s:.200}"))

    def _top(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise TypeError(f"{kind.__name__} is expected")
        return self.stack[-1]


def _push_global(machine: _Machine, argument: str) -> None:
    machine.stack.append(Global(argument.replace(" ", ".", 1)[:400]))


_ARGUMENTS = frozenset(
    ["BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE"]
)
"""Operations whose argument is the value."""
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_CONTAINERS: dict[str, Callable[[_Machine, Any], None]] = {
    "EMPTY_LIST": lambda machine, _: machine.stack.append([]),
    "EMPTY_DICT": lambda machine, _: machine.stack.append({}),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.pop_marked())),
    "TUPLE1": lambda machine, _: machine.stack.append(machine.pop_last(1)),
    "TUPLE2": lambda machine, _: machine.stack.append(machine.pop_last(2)),
    "TUPLE3": lambda machine, _: machine.stack.append(machine.pop_last(3)),
    "GLOBAL": _push_global,
    "STACK_GLOBAL": _Machine.stack_global,
    "NEWOBJ": _Machine.call,
    "REDUCE": _Machine.call,
    "BINPERSID": lambda machine, _: machine.stack.append(Instance("", (machine.pop(),))),
}
_OPERATIONS = _CONTAINERS | {
    "PROTO": lambda _machine, _: None,
    "FRAME": lambda _machine, _: None,
    "STOP": lambda _machine, _: None,
    "MARK": _Machine.mark,
    "MEMOIZE": _Machine.put,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "APPEND": lambda machine, _: machine.append([machine.pop()]),
    "APPENDS": lambda machine, _: machine.append(machine.pop_marked()),
    "SETITEM": lambda machine, _: machine.set_items(list(machine.pop_last(2))),
    "SETITEMS": lambda machine, _: machine.set_items(machine.pop_marked()),
    "BUILD": _Machine.build,
}
_OBJECTS = frozenset(["GLOBAL", "STACK_GLOBAL", "NEWOBJ", "REDUCE", "BUILD", "BINPERSID"])
_COSTS = {
    **dict.fromkeys([*_ARGUMENTS, *_CONSTANTS, *_OPERATIONS], 1),
    **dict.fromkeys(_CONTAINERS, CONTAINER_COST),
}
_PLAIN_COSTS = {name: cost for name, cost in _COSTS.items() if name not in _OBJECTS}
