"""Which files of a source are needed. Pure."""

import fnmatch
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

import yaml

from raggrpo_api.data_files import DATA_SUFFIXES, is_data_file
from raggrpo_api.fields.source import HubSource, Source
from raggrpo_api.file_names import checked_parts
from raggrpo_api.trainer.staging import SourceRole, StagingReason
from raggrpo_api.weight_formats import conversion_remedy

from .failures import StagingFailed

WEIGHTS = ".safetensors"
_MODEL_SUFFIXES = (WEIGHTS, ".json", ".jinja", ".txt", ".model", ".tiktoken", ".md")
_MODEL_NAMES = ("license", "notice", "use_policy")
_MODEL_FOLDERS = ("", "additional_chat_templates", "1_Pooling")
_UNUSED_WEIGHTS = re.compile(r"consolidated[.\-].*safetensors")
"""Copies of the weights in the format of another library."""
MAX_LISTED = 8
MAX_ENTRIES = 100_000
"""Files and folders that a listing of a source may have."""
MAX_HEADER = 2**18
"""Characters of the YAML in a card; without it, file names select the files of a split."""
MAX_MATCHING = 5 * 10**9
"""Cost of the names of files times that of the patterns of a split; 10**9 take up to 4 s."""
_MAGIC = re.compile(r"[*?\[]")


def require_few(count: int, source: Source) -> None:
    """Raise StagingFailed if a source has more than MAX_ENTRIES files and folders."""
    if count > MAX_ENTRIES:
        raise StagingFailed(
            StagingReason.UNSUITABLE_CONTENT,
            f"{source} has more than {MAX_ENTRIES:,} files and folders; specify one of its folders",
        )


def role_files(paths: Sequence[str], role: SourceRole, source: Source) -> list[str]:
    """Return the paths that a role needs; paths are relative to the repository or bucket folder.

    Raises StagingFailed if there are none, or if a path must not become a file.
    """
    if not paths:
        raise StagingFailed(
            StagingReason.NOT_FOUND, f"{source} has no files; correct the path or key"
        )
    for each in paths:
        require_plain(each, source)
    folder = source.path if isinstance(source, HubSource) else ""
    if list(paths) == [folder]:
        return [single_file(folder, role, source)]
    is_needed = _is_model_file if role is SourceRole.MODEL else _is_data_file
    chosen = [each for each in paths if is_needed(each.removeprefix(f"{folder}/"))]
    if role is SourceRole.MODEL and not any(each.endswith(WEIGHTS) for each in chosen):
        model = source.repository if isinstance(source, HubSource) else "FOLDER"
        raise StagingFailed(
            StagingReason.UNSUITABLE_CONTENT,
            f"{source} has no weights in safetensors ({_some(paths)}); specify a revision or "
            "folder that has, such as refs/pr/N of a conversion, or "
            f"{conversion_remedy(paths, model)}",
        )
    if not chosen:
        raise StagingFailed(
            StagingReason.UNSUITABLE_CONTENT,
            f"{source} has no {' or '.join(DATA_SUFFIXES)} file ({_some(paths)}); specify a file",
        )
    return chosen


def hub_files(
    paths: Sequence[str], card: Callable[[], str], role: SourceRole, source: HubSource
) -> dict[str, str]:
    """Return the needed files of a repository, each with its path in the staged folder.

    `card` returns the text of README.md. Raises StagingFailed as `role_files`.
    """
    if source.split:
        return {each: each for each in data_files_of_split(paths, card(), source)}
    within = [each for each in paths if _is_within(each, source.path)]
    chosen = role_files(within, role, source)
    folder = source.path.rpartition("/")[0] if chosen == [source.path] else source.path
    targets = {each: each.removeprefix(f"{folder}/") for each in chosen}
    for each in targets.values():
        require_plain(each, source)
    return targets


def _is_within(path: str, folder: str) -> bool:
    return not folder or path == folder or path.startswith(f"{folder}/")


def single_file(path: str, role: SourceRole, source: Source) -> str:
    """Return the path of a source that is one file. Raises StagingFailed if a role needs more."""
    if role is SourceRole.MODEL:
        raise StagingFailed(
            StagingReason.UNSUITABLE_CONTENT,
            f"{source} is a file, but a model is a folder; specify its repository or folder",
        )
    require_plain(path, source)
    return path


def require_plain(path: str, source: Source) -> None:
    """Raise StagingFailed unless a path of a server is a relative path below a folder."""
    try:
        is_hidden = checked_parts(path)[0].startswith((".staged", ".partial"))
    except ValueError as error:
        raise StagingFailed(
            StagingReason.UNSUITABLE_CONTENT, f"{source}: {error}; rename the file"
        ) from error
    if is_hidden:
        raise StagingFailed(
            StagingReason.UNSUITABLE_CONTENT, f"{source}: {path} is a reserved name; rename it"
        )


def data_files_of_split(paths: Sequence[str], card: str, source: HubSource) -> list[str]:
    """Return the files of a configuration and split of a data set.

    The card (README.md) lists them in its field `configs`; without that field, file names do, as
    `CONFIG/SPLIT-*` or `data/SPLIT-*`. Raises StagingFailed if there are none.
    """
    data = [each for each in paths if _is_data_file(each)]
    listed = list(_card_patterns(card, source)) or _name_patterns(source)
    patterns = [each.replace("**/", "*").removeprefix("./") for each in listed]
    names = {each for each in patterns if not _MAGIC.search(each)}
    patterns = [each for each in patterns if each not in names]
    if _cost(data) * _cost(patterns) > MAX_MATCHING:
        raise StagingFailed(
            StagingReason.UNSUITABLE_CONTENT,
            f"{source}: {len(patterns):,} patterns of README.md for {len(data):,} data files are "
            f"too many; specify a file as hf://datasets/{source.repository}/FILE",
        )
    chosen = [
        each
        for each in data
        if each in names or any(fnmatch.fnmatchcase(each, pattern) for pattern in patterns)
    ]
    if not chosen:
        raise StagingFailed(
            StagingReason.NOT_FOUND,
            f"{source}: no data file matches ({_some(data)}); correct config and split, or "
            f"specify a file as hf://datasets/{source.repository}/FILE",
        )
    for each in chosen:
        require_plain(each, source)
    return chosen


def _cost(texts: Sequence[str]) -> int:
    """Return the number of characters, with a constant cost per text."""
    return sum(len(each) + 16 for each in texts)


class _PlainLoader(yaml.SafeLoader):
    """Reads YAML without aliases, which could multiply values."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not supported")
        return super().compose_node(parent, index)


def _header(card: str) -> Any:
    """Return the YAML between the first two lines `---`, or None."""
    first, *lines = card.splitlines() or [""]
    if first.rstrip() != "---" or "---" not in (stripped := [each.rstrip() for each in lines]):
        return None
    header = "\n".join(lines[: stripped.index("---")])
    if len(header) > MAX_HEADER:
        return None
    try:
        return yaml.load(header, _PlainLoader)
    except (yaml.YAMLError, ValueError, LookupError, RecursionError):
        return None


def _card_patterns(card: str, source: HubSource) -> Iterator[str]:
    metadata = _header(card)
    configs = metadata.get("configs") if isinstance(metadata, dict) else None
    listed = [each for each in _list(configs) if isinstance(each, dict)]
    for config in listed:
        is_default = config.get("default") is True or config.get("config_name") == "default"
        is_selected = source.config == config.get("config_name")
        if is_selected or (not source.config and (is_default or len(listed) == 1)):
            yield from _split_patterns(config.get("data_files"), source.split)


def _split_patterns(entries: Any, split: str) -> Iterator[str]:
    for each in _list(entries):
        if isinstance(each, dict) and each.get("split") == split:
            path = each.get("path")
            yield from [str(one) for one in path] if isinstance(path, list) else [str(path)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _name_patterns(source: HubSource) -> list[str]:
    folders = [f"{source.config}/"] if source.config else ["data/", "", "default/"]
    names = (f"{source.split}-*", f"{source.split}.*", f"{source.split}/*")
    return [f"{folder}{name}" for folder in folders for name in names]


def _is_model_file(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    is_known = name.lower().endswith(_MODEL_SUFFIXES) or name.lower().startswith(_MODEL_NAMES)
    return folder in _MODEL_FOLDERS and is_known and not _UNUSED_WEIGHTS.fullmatch(name)


def _is_data_file(path: str) -> bool:
    return is_data_file(PurePosixPath(path))


def _some(paths: Sequence[str]) -> str:
    more = f", … ({len(paths)} files)" if len(paths) > MAX_LISTED else ""
    return "found: " + (", ".join(paths[:MAX_LISTED]) or "no data files") + more
