"""Overrides that a shell script passes to verl's trainer; the script is never run.

Assignments, arrays, defaults and integer arithmetic are evaluated in order. Conditions of branches
and loops are not evaluated: a value that depends on them is unknown.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from .expansion import Variable, Variables
from .overrides import OVERRIDE, UnknownValue, Unreadable, Values, parse_value, short_name
from .shell import Piece, Token, Word, tokens

_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_ELEMENT: Final = re.compile(r"([A-Za-z_]\w*)\[[^\]]*\]\+?=")
_CHOICE: Final = re.compile(r"([A-Za-z_][\w/@]*)=(.*)", re.DOTALL)
_OPTION: Final = re.compile(r"(--config-(?:path|name|dir)|-c[pnd])(?:=(.*))?", re.DOTALL)
_OPTIONS: Final = {"-cp": "--config-path", "-cn": "--config-name", "-cd": "--config-dir"}
_DECLARATIONS: Final = frozenset({"export", "declare", "local", "readonly", "typeset"})
_MODULE: Final = re.compile(r"(?:\w+\.)+\w+")
_OTHER_STAGE: Final = re.compile(r"(?:^|[._/])(?:sft|main_gen|main_eval|model_merger)")
_NO_RUN: Final = frozenset({"echo", "pkill", "pgrep", "grep"})
_OPENING: Final = frozenset({"if", "while", "until", "for", "select"})
_SKIPPED: Final = frozenset({"then", "do", "{", "}", "!", "time"})
_RESERVED: Final = _OPENING | _SKIPPED | {"elif", "else", "fi", "done", "esac"}


@dataclass
class Script:
    """Arguments that a shell script passes to verl."""

    overrides: Values = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    """Values of Hydra's options, by long name such as --config-name."""
    choices: dict[str, str] = field(default_factory=dict)
    """Chosen options, by group, such as model_engine=megatron."""
    missing: list[str] = field(default_factory=list)
    """Messages about parts of the command that are known only while the script runs."""


@dataclass
class _Command:
    line: int
    words: list[str]


@dataclass
class _Scope:
    """An open compound command, with the variables before it and at the ends of its branches."""

    kind: str
    before: dict[str, Variable]
    ends: list[dict[str, Variable]] = field(default_factory=list)
    is_complete: bool = False
    """Whether one of its branches always runs."""
    expects_pattern: bool = False


def read_script(text: str) -> Script:
    """Return the arguments that a script passes to verl. Raises Unreadable if there are none."""
    evaluator = _Evaluator()
    try:
        commands = list(evaluator.commands(text))
    except RecursionError:
        raise Unreadable("its expansions are nested too deeply") from None
    script = Script()
    runs = [each for each in commands if _program(each) is not None]
    # A wrapper script passes overrides to another program: launch.sh data.seed=1.
    runs = runs or [each for each in commands if _has_arguments(each)]
    for command in runs[:1]:
        _read(command, evaluator.variables, script)
    if not script.overrides and not script.options:
        raise Unreadable(
            "it has no command that runs verl's main_ppo "
            "with overrides such as data.train_batch_size=128"
        )
    script.missing += [
        f"another run of verl in line {each.line}: a job is one run, here that of line "
        f"{runs[0].line}; import the other one from a separate script"
        for each in runs[1:]
    ]
    script.missing += [
        f"{each.words[0]} in line {each.line} is not part of verl's command, which ends before it"
        for each in commands
        if OVERRIDE.fullmatch(each.words[0])
    ]
    return script


def _program(command: _Command) -> int | None:
    """Return the index of verl's trainer in the words of a command, or None."""
    if command.words[0] in _NO_RUN:
        return None
    return next((at for at, each in enumerate(command.words) if _is_trainer(each)), None)


def _is_trainer(word: str) -> bool:
    """Return whether a word is a module such as verl.trainer.main_ppo, or the file of one."""
    if word.endswith(".py"):
        name = word.removesuffix(".py").rpartition("/")[2]
    elif _MODULE.fullmatch(word):
        name = word.rpartition(".")[2]
    else:
        return False
    parts = name.split("_")
    is_other = any(each.startswith(("sft", "gen", "eval", "merge")) for each in parts)
    return "main" in parts and "." not in name and not is_other


def _has_arguments(command: _Command) -> bool:
    """Return whether a command has overrides or options for verl's trainer."""
    if any(_OTHER_STAGE.search(word) for word in command.words):
        return False
    return any(OVERRIDE.fullmatch(word) or _OPTION.fullmatch(word) for word in command.words[1:])


def _read(command: _Command, variables: Variables, script: Script) -> None:
    """Add the overrides, options and choices of a command."""
    rest = iter(command.words[(_program(command) or 0) + 1 :])
    for word in rest:
        if match := OVERRIDE.fullmatch(word):
            short_name(match[1])
            unknown = variables.unknown_value(match[2])
            known = script.overrides.get(match[1])
            if unknown and known is not None:
                before = known.text if isinstance(known, UnknownValue) else known
                unknown = UnknownValue(
                    unknown.text, f"{unknown.reason}; specified before as {before}"
                )
            script.overrides[match[1]] = unknown or parse_value(match[2])
        elif match := _OPTION.fullmatch(word):
            value = next(rest, "") if match[2] is None else match[2]
            if unknown := variables.unknown_value(value):
                script.missing.append(f"{match[1]}={unknown.text}: {unknown.reason}")
            else:
                script.options[_OPTIONS.get(match[1], match[1])] = value
        elif unknown := variables.unknown_value(word):
            script.missing.append(f"{unknown.text} in verl's command: {unknown.reason}")
        elif match := _CHOICE.fullmatch(word):
            script.choices[short_name(match[1])] = match[2]


class _Evaluator:
    """Evaluator of a script's commands, in order."""

    def __init__(self) -> None:
        self.variables = Variables()
        self._scopes: list[_Scope] = []

    def commands(self, text: str) -> Iterator[_Command]:
        """Yield the simple commands of a script with their words expanded."""
        collected: list[Token] = []
        before = ""
        for token in (*tokens(text), Token(0, "\n")):
            if not token.operator:
                collected.append(token)
                if _opens_case(collected):
                    self._process_reserved(collected[:-3])
                    self._open("case")
                    collected = []
                continue
            if self._is_pattern(token.operator, collected):
                collected = []
                continue
            if token.operator == "(" and self._process_reserved(collected):  # f() { …
                collected = []
                before = "("
                continue
            if token.operator == ")" and before == "(" and not collected:
                before = ""
                continue
            if token.operator == "(":
                self._open("(")
                collected = []
                before = ""
                continue
            yield from self._command(collected, is_certain=before not in ("&&", "||"))
            collected = []
            before = token.operator
            if token.operator == ")":
                self._close("(")
            elif token.operator.startswith(";;") and self._is_in("case"):
                self._branch()
                self._scopes[-1].expects_pattern = True

    def _is_pattern(self, operator: str, collected: Sequence[Token]) -> bool:
        """Consume the pattern of a `case` branch, and return whether there was a pattern."""
        if not self._is_in("case") or not self._scopes[-1].expects_pattern:
            return False
        if collected and _plain(collected[0]) == "esac":
            return False
        if operator == ")":
            self._scopes[-1].expects_pattern = False
            self._scopes[-1].is_complete |= [_plain(each) for each in collected] == ["*"]
        return True

    def _command(self, given: Sequence[Token], is_certain: bool) -> Iterator[_Command]:
        rest = self._process_reserved(given)
        if rest and _plain(rest[0]) == "unset":
            for each in rest:
                self.variables.current.pop(_plain(each), None)
            return
        if rest and _plain(rest[0]) in _DECLARATIONS:
            rest = [each for each in rest if _is_assignment(each)]
        prefix = next((i for i, each in enumerate(rest) if not _is_assignment(each)), len(rest))
        if prefix == len(rest):
            before = {} if is_certain else self.variables.snapshot()
            for each in rest:
                self._assign(each)
            if not is_certain:
                self.variables.merge([before, self.variables.current])
            return
        words = [word for each in rest[prefix:] for word in self.variables.words(each.word)]
        if words:
            yield _Command(rest[prefix].line, words)

    def _process_reserved(self, given: Sequence[Token]) -> list[Token]:
        """Process leading reserved words and return the remaining tokens."""
        for at, token in enumerate(given):
            if not self._is_reserved(_plain(token)):
                return list(given[at:])
            if _plain(token) in ("for", "select") and given[at + 1 :]:
                self._loop_over(_plain(given[at + 1]), given[at + 3 :])
                break
        return []

    def _is_reserved(self, word: str) -> bool:
        """Process a word if it is reserved, and return whether the word is reserved."""
        if word in _OPENING:
            self._open(word)
        elif word in ("elif", "else") and self._is_in("if"):
            self._branch()
            self._scopes[-1].is_complete |= word == "else"
        elif word == "fi":
            self._close("if")
        elif word == "done":
            self._close(*_OPENING - {"if"})
        elif word == "esac":
            self._close("case")
        else:
            return word in _SKIPPED
        return True

    def _is_in(self, *kinds: str) -> bool:
        return bool(self._scopes) and self._scopes[-1].kind in kinds

    def _open(self, kind: str) -> None:
        scope = _Scope(kind, self.variables.snapshot())
        scope.is_complete, scope.expects_pattern = kind == "for", kind == "case"
        self._scopes.append(scope)

    def _branch(self) -> None:
        scope = self._scopes[-1]
        scope.ends.append(self.variables.current)
        self.variables.current = self.variables.copy(scope.before)

    def _close(self, *kinds: str) -> None:
        if not self._is_in(*kinds):
            return
        scope = self._scopes.pop()
        if scope.kind == "(":
            self.variables.current = scope.before
            return
        ends = [*scope.ends, *([] if scope.expects_pattern else [self.variables.current])]
        first = [] if scope.is_complete else [scope.before]
        self.variables.merge([*first, *ends])

    def _loop_over(self, name: str, words: Sequence[Token]) -> None:
        values = [word for each in words for word in self.variables.words(each.word)]
        if len(values) == 1:
            self.variables.current[name] = values[0]
        elif values:
            self.variables.current[name] = self.variables.undecided(name, values)

    def _assign(self, token: Token) -> None:
        if match := _ELEMENT.match(_plain(token)):
            self.variables.current[match[1]] = self.variables.array_mark(match[1])
            return
        match = _ASSIGNMENT.match(_plain(token))
        assert match is not None
        name = match[1]
        adds = bool(match[2])
        old = self.variables.current.get(name)
        if token.array is not None:
            elements = tuple(w for each in token.array for w in self.variables.words(each))
            first = (old,) if isinstance(old, str) else old or ()
            self.variables.set_array(name, (*first, *elements) if adds else elements)
            return
        first_piece, *pieces = token.word
        value: Word = (Piece(first_piece.text[match.end() :]), *pieces)
        text = self.variables.text(value)
        self.variables.set_text(name, old + text if adds and isinstance(old, str) else text)


def _is_assignment(token: Token) -> bool:
    return bool(_ASSIGNMENT.match(_plain(token)) or _ELEMENT.match(_plain(token)))


def _plain(token: Token) -> str:
    """Return the start of a word, or "" if it is quoted or an expansion."""
    if not token.word or token.word[0].is_expansion or token.word[0].is_quoted:
        return ""
    return token.word[0].text


def _opens_case(words: Sequence[Token]) -> bool:
    """Return whether the words are `case WORD in`, preceded only by reserved words."""
    if len(words) < 3 or (_plain(words[-3]), _plain(words[-1])) != ("case", "in"):
        return False
    return all(_plain(word) in _RESERVED for word in islice(words, len(words) - 3))
