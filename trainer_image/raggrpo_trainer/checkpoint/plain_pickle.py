"""Read pickles of plain state without unpickling them: nothing is imported, called or created.

An object of the pickle becomes an Instance, which only has the name of its class and its content.
Time and memory are proportional to the size of the pickle. Pure.
"""

import gc
import pickle
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any

MIN_OBJECTS = 100_000
"""Objects that any pickle may have, besides one per three bytes; those of DCP have one per 4.5."""

MAX_GLOBALS = 1_000
"""Classes and functions that a pickle may name."""
MAX_NAME = 200
"""Characters of their modules and names."""


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

    Raises ValueError if it is anything else, or needs much more memory than its size.
    """
    if sum(map(content.count, _ALLOCATIONS)) > MIN_OBJECTS + len(content) // 3:
        raise ValueError("it has too many objects for its size")
    try:
        with paused_garbage_collection():
            return _Reader(content, has_objects).load()
    except KeyError as error:
        code = bytes(error.args)
        raise ValueError(f"operation {code!r} is not allowed in a pickle of state") from error
    except _DAMAGED as error:
        raise ValueError(f"it is not a pickle of state: {error}"[:200]) from error


class _Reader(pickle._Unpickler):
    """The unpickler in Python, without the operations that run code or create other types."""

    stack: list[Any]
    memo: list[Any]
    """Objects by number; a list needs a tenth of the memory of a dictionary."""

    def __init__(self, content: bytes, has_objects: bool) -> None:
        super().__init__(BytesIO(content))
        self._has_objects = has_objects
        self._globals: dict[tuple[str, str], Global] = {}

    def load(self) -> Any:
        """Return the value. Unlike that of pickle, this does not copy the content into frames."""
        self.read, self.readline = self._file_read, self._file_readline  # type: ignore[attr-defined]
        self.metastack: list[list[Any]] = []
        self.stack = []
        self.memo = []
        self.append = self.stack.append
        self.proto = 0
        read, dispatch = self.read, self.dispatch
        try:
            while True:
                dispatch[read(1)[0]](self)  # type: ignore[arg-type]
        except pickle._Stop as stop:  # type: ignore[attr-defined]
            return stop.value

    def find_class(self, module: str, name: str) -> Global:
        if not self._has_objects:
            raise ValueError(f"it contains {module}.{name}, but a value has no objects")
        known = self._globals.get((module, name))
        if known is None:
            if max(len(module), len(name)) > MAX_NAME or len(self._globals) >= MAX_GLOBALS:
                raise ValueError("it names too many or too long classes")
            known = self._globals[module, name] = Global(f"{module}.{name}")
        return known

    def persistent_load(self, pid: Any) -> Instance:
        return Instance("", (pid,))

    def set_items(self, items: list[Any]) -> None:
        keys = items[::2]
        if not _KEYS.issuperset(map(type, keys)):
            raise TypeError("a key is not a text")  # hashes of other values may take forever
        self._top(dict).update(zip(keys, items[1::2], strict=True))

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.set_items([key, value])

    def load_setitems(self) -> None:
        self.set_items(self.pop_mark())  # type: ignore[attr-defined]

    def load_call(self) -> None:
        arguments, target = self.stack.pop(), self.stack.pop()
        if type(target) is not Global or type(arguments) is not tuple:
            raise TypeError("it calls a value")
        self.stack.append(Instance(target.name, arguments))

    def load_build(self) -> None:
        state = self.stack.pop()
        instance = self._top(Instance)
        if instance.state is not None:
            raise ValueError("an object has two states")
        instance.state = state

    def load_memoize(self) -> None:
        self.memo.append(self.stack[-1])

    def load_binput(self) -> None:
        self._put(self.read(1)[0])

    def load_long_binput(self) -> None:
        self._put(int.from_bytes(self.read(4), "little"))

    def load_long_binget(self) -> None:
        self.stack.append(self.memo[int.from_bytes(self.read(4), "little")])

    def _put(self, number: int) -> None:
        if number != len(self.memo):
            raise ValueError("an object has another number")
        self.load_memoize()

    def load_frame(self) -> None:
        self.read(8)

    def _top(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise TypeError(f"{kind.__name__} is expected")
        return self.stack[-1]

    _CHANGED = {
        pickle.SETITEM: load_setitem,
        pickle.SETITEMS: load_setitems,
        pickle.NEWOBJ: load_call,
        pickle.REDUCE: load_call,
        pickle.BUILD: load_build,
        pickle.FRAME: load_frame,
        pickle.MEMOIZE: load_memoize,
        pickle.BINPUT: load_binput,
        pickle.LONG_BINPUT: load_long_binput,
        pickle.LONG_BINGET: load_long_binget,
    }
    _SAME = [
        *(pickle.PROTO, pickle.STOP, pickle.MARK),
        pickle.BINGET,
        *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE),
        *(pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1, pickle.BINFLOAT),
        *(pickle.SHORT_BINUNICODE, pickle.BINUNICODE),
        *(pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
        *(pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT),
        *(pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.BINPERSID),
    ]
    dispatch = {code[0]: pickle._Unpickler.dispatch[code[0]] for code in _SAME}
    dispatch |= {code[0]: load for code, load in _CHANGED.items()}  # type: ignore[misc]


_KEYS = frozenset({str, Instance})
"""Types of keys."""


@contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Do not search millions of new objects for cycles again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


_ALLOCATIONS = [
    *(pickle.MARK, pickle.EMPTY_TUPLE, pickle.EMPTY_LIST, pickle.EMPTY_DICT, pickle.MEMOIZE),
    *(pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
    *(pickle.NEWOBJ, pickle.REDUCE, pickle.BINPERSID, pickle.STACK_GLOBAL),
]
"""Operations of one byte that allocate about 100 bytes. Others allocate up to 15 per byte."""
_DAMAGED = (
    *(AttributeError, EOFError, IndexError, TypeError, ValueError),
    *(pickle.UnpicklingError, struct.error),
)
