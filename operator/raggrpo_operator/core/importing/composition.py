"""Composition of a Hydra configuration from `defaults` lists. Pure: files come from `read`.

Hydra's rules (hydra.cc, The Defaults List): later entries take precedence; `_self_` is the file's
own content, by default last; `group@package: option` adds group/option.yaml below the package.
"""

import posixpath
import re
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from raggrpo_api.limits import MAX_TEXT_FILE_BYTES

from .overrides import MAX_VALUES, Unreadable, Values, flatten, parse_mapping, short_name

Read = Callable[[str], str | None]
"""Function that returns the text of a file, or None if the file is not available."""
MAX_FILES: Final = 200
"""Maximum files of a composition; a verl configuration has about 20."""
MAX_FOLDERS: Final = 20
"""Maximum folders of a search path."""
NO_CHOICES: Final[Mapping[str, str]] = MappingProxyType({})
_HEADER: Final = re.compile(r"\s*#\s*@package\s+(\S+)")
_CHOICE: Final = re.compile(r"\$\{(\w+)\}")


@dataclass
class Composition:
    """The values of a configuration by dotted path, with their source files."""

    values: Values = field(default_factory=dict)
    inherited: dict[str, str] = field(default_factory=dict)
    """Source file of every value that comes from a `defaults` list, by dotted path."""
    missing: list[str] = field(default_factory=list)
    """Names of unavailable files, each with the file that references it."""

    def override(self, values: Values) -> None:
        """Replace values with the overrides of a command line."""
        self.values |= values
        for path in values.keys() & self.inherited.keys():
            del self.inherited[path]


def compose(
    name: str,
    folders: Sequence[str],
    read: Read,
    choices: Mapping[str, str] = NO_CHOICES,
    text: str | None = None,
) -> Composition:
    """Return the configuration `name` from the folders and its own search path.

    `choices` are options of groups from a command line (`model_engine=megatron`); `text` is the
    content of the configuration if already read. Raises Unreadable for a file that is not a mapping
    or includes itself.
    """
    composer = _Composer(list(folders), read, dict(choices))
    composer.add(_Entry(name.removesuffix(".yaml"), package=""), text=text)
    return composer.result


@dataclass(frozen=True, slots=True)
class _Entry:
    """A file that a `defaults` list includes."""

    place: str
    """Path without suffix below a search path folder: actor/dp_actor."""
    package: str | None = None
    """Package relative to the parent's; None: the package in the file's header, else its group."""
    group: str = ""
    is_optional: bool = False


class _Composer:
    def __init__(self, folders: list[str], read: Read, choices: dict[str, str]) -> None:
        self.result = Composition()
        self._folders, self._read, self._choices = folders, read, choices
        self._num_files = self._num_characters = self._num_values = 0
        self._paths: list[str] = []
        """Paths of all values, sorted."""

    def add(
        self, entry: _Entry, parent: str = "", above: tuple[str, ...] = (), text: str | None = None
    ) -> None:
        """Add the values of a file below the package `parent`; `above` are the including files."""
        if entry.place in above:
            raise Unreadable(f"{entry.place}.yaml includes itself in its defaults")
        self._num_files += 1
        if self._num_files > MAX_FILES:
            raise Unreadable(f"its defaults include more than {MAX_FILES} files")
        text = self._text(entry.place) if text is None else text
        if text is None:
            if not entry.is_optional:
                of = f", in the defaults of {above[-1]}.yaml" if above else ""
                self.result.missing.append(f"{entry.place}.yaml{of}")
            return
        self._num_characters += len(text)
        if self._num_characters > MAX_TEXT_FILE_BYTES:
            raise Unreadable(f"its files have more than {MAX_TEXT_FILE_BYTES} characters")
        try:
            raw = parse_mapping(text)
        except Unreadable as error:
            raise Unreadable(f"{entry.place}.yaml: {error}" if above else str(error)) from error
        package = _package(entry, parent, text)
        if not above:
            self._folders += _search_path(raw)
            if len(self._folders) > MAX_FOLDERS:
                raise Unreadable(f"its search path has more than {MAX_FOLDERS} folders")
        own = {key: each for key, each in raw.items() if key not in ("defaults", "hydra")}
        is_added = False
        for each in self._entries(raw.get("defaults"), posixpath.dirname(entry.place)):
            if each is None:
                self._put(own, package, entry.place if above else "")
                is_added = True
            else:
                self.add(each, package, (*above, entry.place))
        if not is_added:
            self._put(own, package, entry.place if above else "")

    def _text(self, place: str) -> str | None:
        texts = (self._read(posixpath.join(each, f"{place}.yaml")) for each in self._folders)
        return next((text for text in texts if text is not None), None)

    def _entries(self, defaults: Any, folder: str) -> Iterator[_Entry | None]:
        """Yield the entries of a Hydra defaults list in order; None stands for `_self_`."""
        given = defaults if isinstance(defaults, list) else []
        pairs = [
            (short_name(str(key)), option)
            for each in given
            for key, option in (each.items() if isinstance(each, Mapping) else [(each, "")])
        ]
        for key, option in pairs:
            if key.startswith("override "):
                self._choices.setdefault(_group(key).lstrip("/"), str(option))
        for key, option in pairs:
            if key == "_self_":
                yield None
            elif not key.startswith("override ") and option is not None:
                if isinstance(option, list):
                    yield from (self._entry(key, str(each), folder) for each in option)
                else:
                    yield self._entry(key, self._chosen(key, str(option)), folder)

    def _entry(self, key: str, option: str, folder: str) -> _Entry:
        path, _, package = _group(key).partition("@")
        place = posixpath.normpath(posixpath.join("/", folder, path)).lstrip("/")
        group = path.lstrip("./") if option else posixpath.dirname(path).lstrip("./")
        if option:
            place = f"{place}/{short_name(option)}"
        return _Entry(place, package or None, group, key.startswith("optional "))

    def _chosen(self, key: str, option: str) -> str:
        """Return the chosen option of a group; later options may refer to it as `${group}`."""
        chosen = short_name(self._choices.setdefault(_group(key), option))
        return _CHOICE.sub(lambda match: short_name(self._choices.get(match[1], match[0])), chosen)

    def _put(self, own: Mapping[Any, Any], package: str, file: str) -> None:
        values = self.result.values
        inherited = self.result.inherited
        for path, value in flatten(own, f"{package}." if package else ""):
            self._num_values += 1
            if self._num_values > MAX_VALUES:
                raise Unreadable(f"its files have more than {MAX_VALUES} values")
            self._remove_others(path)
            if path not in values:
                insort(self._paths, path)
            values[path] = value
            inherited.pop(path, None)
            if file:
                inherited[path] = f"{file}.yaml"

    def _remove_others(self, path: str) -> None:
        """Remove the values below a path, and those of the blocks that contain it."""
        start, end = (bisect_left(self._paths, f"{path}{mark}") for mark in "./")  # "." < "/"
        blocks = [path[:at] for at, char in enumerate(path) if char == "."]
        for known in (*self._paths[start:end], *blocks):
            if known in self.result.values:
                del self.result.values[known], self._paths[bisect_left(self._paths, known)]
                self.result.inherited.pop(known, None)


def _group(key: str) -> str:
    """Return the group of an entry without its keywords: actor of `override /actor`."""
    return key.split()[-1] if key.strip() else ""


def _package(entry: _Entry, parent: str, text: str) -> str:
    """Return the package of a file: from its entry, else its header, else its group."""
    own = entry.group.replace("/", ".")
    package = entry.package
    if package is None and (header := _HEADER.match(text)):
        package = header[1] if header[1].startswith("_") else f"_global_.{header[1]}"
    package = {None: own, "_group_": own, "_here_": ""}.get(package, package or "")
    if package.startswith("_global_"):
        return package.removeprefix("_global_").lstrip(".")
    return ".".join(each for each in (parent, package) if each)


def _search_path(raw: Mapping[Any, Any]) -> list[str]:
    hydra = raw.get("hydra")
    paths = hydra.get("searchpath") if isinstance(hydra, Mapping) else None
    return [
        each.removeprefix("pkg://").replace(".", "/")
        if each.startswith("pkg://")
        else each.removeprefix("file://")
        for each in (paths if isinstance(paths, list) else [])
        if isinstance(each, str)
    ]
