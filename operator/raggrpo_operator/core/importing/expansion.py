"""Expansion of shell words with the variables of a script; runs no command.

A mark in an expanded text represents an unknown value; `Variables` stores the source of the value
and the reason why it is unknown.
"""

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from raggrpo_api.secrets.names import is_secret_name

from .overrides import HOME, OVERRIDE, UnknownValue, Unreadable
from .shell import Piece, Word, word_of

Variable = str | tuple[str, ...]
"""A string, or the elements of an array."""

_HERE: Final = frozenset({"$(pwd)", "`pwd`", "$PWD", "${PWD}"})
_ARGUMENTS: Final = re.compile(r"\$[@*]|\$\{[@*](?::.*)?\}")
_PARAMETER: Final = re.compile(
    r"\$(?:(?P<plain>\w+)|\{(?P<name>\w+)(?:\[(?P<index>[@*]|\d+)\])?"
    r"(?:(?P<sign>:?[-=+])(?P<default>.*))?\})",
    re.DOTALL,
)
_ARITHMETIC: Final = re.compile(r"\$\(\((.{1,200})\)\)", re.DOTALL)
_NAME: Final = re.compile(r"\$?\{?([A-Za-z_]\w*)\}?")
_OPERATORS: Final[Mapping[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
}
_MAX_SHOWN: Final = 60
_MAX_EXPRESSION: Final = 500
MAX_EXPANDED: Final = 200_000
"""Maximum characters that are expanded, compared or shown; scripts of verl need about 10,000."""
_MARK: Final = re.compile("\0(\\d+)\0")


class Variables:
    """The values of a script's variables before one of its commands."""

    def __init__(self) -> None:
        self.current: dict[str, Variable] = {}
        self._marks: list[UnknownValue] = []
        self._expanded = 0
        self._alternatives: dict[str, Sequence[str]] = {}
        """Possible values of undecided variables, by mark."""

    def words(self, word: Word) -> list[str]:
        """Return the expansion of a word: any number of words."""
        is_alone = len(word) == 1 or (len(word) == 2 and not word[0].text)
        if is_alone and (array := self._all_elements(word[-1])) is not None:
            self._count_texts(array)
            return list(array)
        words: list[list[str]] = [[]]
        has_quotes = False
        for piece in word:
            text = self._piece(piece)
            has_quotes = has_quotes or piece.is_quoted
            if not piece.is_expansion or piece.is_quoted:
                words[-1].append(text)
                continue
            first, *others = re.split(r"[ \t\n]+", text)
            words[-1].append(first)
            words += [[each] for each in others]
        texts = ["".join(each) for each in words]
        self._count_texts(texts)
        return [each for each in texts if each] or ([""] if has_quotes else [])

    def text(self, word: Word) -> str:
        """Return the expansion of a word without splitting, as in an assignment."""
        text = "".join(self._piece(piece) for piece in word)
        self._count(len(text) + 1)
        return text

    def snapshot(self) -> dict[str, Variable]:
        """Return a copy of the variables, for a branch or a subshell."""
        return self.copy(self.current)

    def copy(self, variables: Mapping[str, Variable]) -> dict[str, Variable]:
        """Return a copy of a snapshot, for another branch."""
        self._count(len(variables))
        return dict(variables)

    def set_text(self, name: str, text: str) -> None:
        """Assign a text to a variable."""
        self._count(len(text))
        self.current[name] = text

    def set_array(self, name: str, elements: tuple[str, ...]) -> None:
        """Assign an array to a variable."""
        self._count_texts(elements)
        self.current[name] = elements

    def _count_texts(self, texts: Sequence[str]) -> None:
        """Count the characters of all texts, and one for each text."""
        self._count(sum(map(len, texts), len(texts)))

    def _count(self, characters: int) -> None:
        """Count expanded characters. Raises Unreadable beyond the limit."""
        self._expanded += characters
        if self._expanded > MAX_EXPANDED:
            raise Unreadable(f"its variables expand to more than {MAX_EXPANDED} characters")

    def unknown_value(self, text: str) -> UnknownValue | None:
        """Return the source of a text and why it is unknown, or None if its values are known."""
        reasons = [self._marks[int(mark)].reason for mark in _MARK.findall(text)]
        if not reasons:
            return None
        return UnknownValue(self.shown(text), "; ".join(dict.fromkeys(reasons)))

    def shown(self, text: str) -> str:
        """Return the text with marks replaced by their sources."""
        shown = _MARK.sub(lambda match: _short(self._marks[int(match[1])].text), text)
        self._count(len(shown))
        return shown

    def merge(self, ends: Sequence[dict[str, Variable]]) -> None:
        """Merge the variables at the ends of alternative branches."""
        self.current = {}
        names = dict.fromkeys(name for end in ends for name in end)
        self._count(len(names) * len(ends))
        for name in names:
            values = list(dict.fromkeys(end.get(name) for end in ends))
            given = [each for each in values if each is not None]
            if len(values) == 1:
                self.current[name] = given[0]
            elif all(isinstance(each, tuple) for each in given):
                self.current[name] = self._merged(name, [each or () for each in values])
            elif all(isinstance(each, str) and _has_overrides(each) for each in given if each):
                words = [str(each or "").split() for each in values]
                self.current[name] = " ".join(self._merged(name, words))
            else:
                known = [each for value in values for each in self._described(value)]
                self.current[name] = self.undecided(name, list(dict.fromkeys(known)))

    def undecided(self, name: str, values: Sequence[str]) -> str:
        """Return a mark for a variable with several possible values."""
        either = " or ".join([", ".join(values[:-1]), values[-1]])
        when = "depending on how the script runs"
        mark = self._mark(f"${name}", f"${name} is {either}, {when}")
        self._alternatives[mark] = values
        return mark

    def array_mark(self, name: str) -> str:
        """Return a mark for an array with an element that is set separately."""
        return self._mark(f"${name}", f"an element of ${name} is set separately")

    def _merged(self, name: str, arrays: Sequence[Sequence[str]]) -> tuple[str, ...]:
        """Return the elements of all arrays; an element that is not in every array gets a mark."""
        self._count(sum(map(len, arrays)) * len(arrays))
        sets = [set(array) for array in arrays]
        return tuple(
            each
            if all(each in elements for elements in sets)
            else each + self._mark("", f"{self.shown(each)} may be in ${name}")
            for each in dict.fromkeys(each for array in arrays for each in array)
        )

    def _described(self, value: Variable | None) -> Sequence[str]:
        """Return the possible values of a variable for display."""
        if value is None:
            return ["unset"]
        text = value if isinstance(value, str) else " ".join(value)
        shown = " ".join(self.shown(text).split()) or "empty"
        return self._alternatives.get(text) or [_short(shown)]

    def _mark(self, text: str, reason: str) -> str:
        self._count(len(text) + len(reason))
        self._marks.append(UnknownValue(text, reason))
        return f"\0{len(self._marks) - 1}\0"

    def _all_elements(self, piece: Piece) -> Sequence[str] | None:
        """Return the elements of `${NAME[@]}`, or None for other pieces."""
        if not piece.is_expansion or not (match := _PARAMETER.fullmatch(piece.text)):
            return None
        value = self.current.get(match["name"] or "")
        return value if match["index"] in ("@", "*") and isinstance(value, tuple) else None

    def _piece(self, piece: Piece) -> str:
        source = piece.text
        if not piece.is_expansion:
            return source
        if source in _HERE:
            return "."
        if _ARGUMENTS.fullmatch(source):
            return ""  # users pass script arguments to the import command instead
        if match := _ARITHMETIC.fullmatch(source):
            return self._computed(match)
        if source.startswith(("$(", "`")):
            return self._mark(source, f"{source} is the output of a command")
        if match := _PARAMETER.fullmatch(source):
            return self._parameter(match, piece.is_quoted)
        return self._mark(source, f"{source} is not supported")

    def _parameter(self, match: "re.Match[str]", is_quoted: bool) -> str:
        plain, name, index, sign, default = match.groups()
        name = plain or name
        self._count(len(default or ""))
        if is_secret_name(name):
            return self._mark(match[0], f"{match[0]} looks like a secret")
        value = self.current.get(name, HOME if name == "HOME" else None)
        if isinstance(value, tuple):
            place = int(index) if index and index.isdigit() else 0
            value = " ".join(value) if index in ("@", "*") else dict(enumerate(value)).get(place)
        if sign in (":+", "+"):
            return self.text(word_of(default, is_quoted)) if value else ""
        if value or (value is not None and sign in (None, "-", "=")):
            return value
        if sign is None:
            what = "an argument of" if name.isdigit() else "not set in"
            return self._mark(match[0], f"{match[0]} is {what} the script")
        value = self.text(word_of(default, is_quoted))
        if sign.endswith("="):
            self.current[name] = value
        return value

    def _computed(self, match: "re.Match[str]") -> str:
        """Return the result of an arithmetic expansion, or a mark if unsupported."""
        expression = _NAME.sub(self._number, re.sub(r"\s+", " ", match[1]).strip())
        if why := self.unknown_value(expression):
            return self._mark(match[0], why.reason)
        self._count(len(expression))
        if len(expression) > _MAX_EXPRESSION:
            return self._mark(match[0], f"{match[0]} is not supported")
        try:
            return str(_integer(ast.parse(expression, mode="eval").body))
        except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
            return self._mark(match[0], f"{match[0]} is not supported")

    def _number(self, match: "re.Match[str]") -> str:
        value = self.current.get(match[1])
        if isinstance(value, str):
            return value
        return self._mark(match[0], f"${match[1]} is not set in the script")


def _short(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _has_overrides(text: str) -> bool:
    """Return whether a text contains overrides."""
    return any(OVERRIDE.fullmatch(word) for word in text.split())


def _integer(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](_integer(left), _integer(right))
    raise ValueError("not an integer")
