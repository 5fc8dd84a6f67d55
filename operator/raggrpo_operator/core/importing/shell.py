"""Tokenization of shell scripts, without expansion.

Follows POSIX (Shell Command Language, Token Recognition), with bash arrays, `[[ … ]]`, `(( … ))`
and `$'…'`. Comments, heredocs and redirections are skipped.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NoReturn

from .overrides import Unreadable

_OPERATOR: Final = re.compile(r"&&|\|[|&]?|;;&?|;&|[;&()\n]")
_REDIRECTION: Final = re.compile(r"(?:\d+|&)?(<<<|<<-?|>>|[<>]&|<>|>\||[<>](?!\())")
_BREAK: Final = frozenset(" \t\n;&|<>()")
_ARRAY: Final = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_PARAMETER: Final = re.compile(r"\$(?:[A-Za-z_]\w*|[@*#?$!\d-])")
_QUOTED: Final = re.compile(r'\\|[^"\\$`]+')
_CLOSING: Final = {"(": ")", "{": "}"}


@dataclass(frozen=True, slots=True)
class Piece:
    """A segment of a word: plain text, or an expansion such as `$NAME`, `${…}` or `$(…)`."""

    text: str
    is_expansion: bool = False
    is_quoted: bool = False


Word = tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Token:
    """A word, an array assignment or an operator."""

    line: int
    operator: str = ""
    word: Word = ()
    array: tuple[Word, ...] | None = None
    """Elements of an array assignment; `word` is then `NAME=` or `NAME+=`."""


def tokens(text: str) -> Iterator[Token]:
    """Yield the tokens of a script. Raises Unreadable for an unclosed quote."""
    return _Lexer(text.replace("\r\n", "\n").replace("\0", "")).tokens()


def word_of(text: str, is_quoted: bool) -> Word:
    """Return a text as one word, such as the default in `${NAME:-default}`."""
    return _Lexer(text).word(ends=frozenset(), is_quoted=is_quoted)


class _Lexer:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._heredocs: list[str] = []
        self._lines, self._counted = 1, 0

    def tokens(self) -> Iterator[Token]:
        while self._skip_blanks():
            line = self._line()
            if match := _REDIRECTION.match(self._text, self._at):
                self._redirect(match)
            elif self._text.startswith("((", self._at):
                self._balanced("(")
            elif self._text.startswith(("<(", ">("), self._at):
                self._at += 1
                yield Token(line, word=(Piece(f"${self._balanced('(')}", is_expansion=True),))
            elif self._text.startswith("[[ ", self._at):
                self._at = self._end("]]", self._at) + 2
                yield Token(line, word=(Piece("[["),))
            elif match := _OPERATOR.match(self._text, self._at):
                self._at = match.end()
                if match[0] == "\n":
                    self._skip_heredocs()
                yield Token(line, match[0])
            else:
                word = self.word(_BREAK)
                is_array = self._text.startswith("(", self._at) and len(word) == 1
                if is_array and _ARRAY.fullmatch(word[0].text) and not word[0].is_quoted:
                    yield Token(line, word=word, array=tuple(self._elements()))
                else:
                    yield Token(line, word=word)

    def word(self, ends: frozenset[str], is_quoted: bool = False) -> Word:
        """Return the pieces up to the next character in `ends`."""
        pieces: list[Piece] = []
        while self._at < len(self._text) and (char := self._text[self._at]) not in ends:
            match char:
                case "\\":
                    escaped = self._text[self._at + 1 : self._at + 2]
                    pieces += [Piece(escaped, is_quoted=True)] if escaped != "\n" else []
                    self._at += 2
                case "'" if not is_quoted:
                    pieces.append(Piece(self._until("'"), is_quoted=True))
                case '"':
                    pieces += self._double_quoted()
                case "$" | "`":
                    pieces.append(self._expansion(is_quoted))
                case _:
                    start = self._at
                    stops = ends | set("\\'\"$`")
                    while self._at < len(self._text) and (
                        self._at == start or self._text[self._at] not in stops
                    ):
                        self._at += 1
                    pieces.append(Piece(self._text[start : self._at], is_quoted=is_quoted))
        return tuple(pieces)

    def _elements(self) -> Iterator[Word]:
        self._at += 1
        while self._skip_blanks() and self._text[self._at] != ")":
            if self._text[self._at] in _BREAK:
                self._at += 1
            else:
                yield self.word(_BREAK)
        self._at += 1

    def _double_quoted(self) -> Iterator[Piece]:
        opened = self._at
        self._at += 1
        yield Piece("", is_quoted=True)
        while self._char(opened) != '"':
            char = self._text[self._at]
            following = self._text[self._at + 1 : self._at + 2]
            if char == "\\" and following in '$`"\\\n':
                yield Piece(following.strip("\n"), is_quoted=True)
                self._at += 2
            elif char in "$`":
                yield self._expansion(is_quoted=True)
            elif match := _QUOTED.match(self._text, self._at):
                yield Piece(match[0], is_quoted=True)
                self._at = match.end()
        self._at += 1

    def _expansion(self, is_quoted: bool) -> Piece:
        start = self._at
        if self._text[start] == "`":
            return Piece(f"`{self._until('`')}`", is_expansion=True, is_quoted=is_quoted)
        following = self._text[start + 1 : start + 2]
        if following == "'" and not is_quoted:
            self._at += 1
            return Piece(self._until("'"), is_quoted=True)
        if following in _CLOSING:
            self._at += 1
            inner = self._balanced(following, has_quotes=following == "(" or not is_quoted)
            return Piece(f"${inner}", is_expansion=True, is_quoted=is_quoted)
        if match := _PARAMETER.match(self._text, start):
            self._at = match.end()
            return Piece(match[0], is_expansion=True, is_quoted=is_quoted)
        self._at += 1
        return Piece("$")

    def _balanced(self, opening: str, has_quotes: bool = True) -> str:
        """Return a bracketed text, including its brackets, and continue after it."""
        opened = self._at
        depth = 0
        while True:
            char = self._char(opened)
            depth += (char == opening) - (char == _CLOSING[opening])
            if char == "\\":
                self._at += 1
            elif char == "'" and has_quotes:
                self._at = self._end("'", self._at + 1)
            elif char == '"':
                list(self._double_quoted())
                continue
            self._at += 1
            if depth == 0:
                return self._text[opened : self._at]

    def _redirect(self, match: "re.Match[str]") -> None:
        self._at = match.end()
        self._skip_blanks(has_comments=False)
        target = self.word(_BREAK)
        if match[1] in ("<<", "<<-"):
            self._heredocs.append("".join(piece.text for piece in target))

    def _skip_heredocs(self) -> None:
        for end in self._heredocs:
            last_line = re.compile(rf"^\t*{re.escape(end.lstrip(chr(9)))}$", re.MULTILINE)
            match = last_line.search(self._text, self._at)
            self._at = match.end() if match else len(self._text)
        self._heredocs.clear()

    def _skip_blanks(self, has_comments: bool = True) -> bool:
        """Skip blanks, line continuations and comments, and return whether text remains."""
        while self._at < len(self._text):
            if self._text[self._at] in " \t":
                self._at += 1
            elif self._text.startswith("\\\n", self._at):
                self._at += 2
            elif self._text[self._at] == "#" and has_comments:
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            else:
                return True
        return False

    def _until(self, quote: str) -> str:
        start = self._at + 1
        end = self._end(quote, start)
        self._at = end + 1
        return self._text[start:end]

    def _end(self, mark: str, start: int) -> int:
        if (end := self._text.find(mark, start)) < 0:
            self._unfinished(start)
        return end

    def _char(self, opened: int) -> str:
        if self._at >= len(self._text):
            self._unfinished(opened)
        return self._text[self._at]

    def _unfinished(self, opened: int) -> NoReturn:
        line = self._text.count("\n", 0, opened) + 1
        raise Unreadable(f"line {line}: a quote or bracket is not closed")

    def _line(self) -> int:
        self._lines += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._lines
