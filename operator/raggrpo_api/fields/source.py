"""Sources of models and data, and targets of results: their URLs as values.

    hf://org/name[@revision][/path]
    hf://datasets/org/name[@revision][/path | #[config=NAME&]split=NAME]
    s3://bucket/key    gs://bucket/key
    https://host/path[#sha256=DIGEST]
    oci://registry/name[:tag][@sha256:DIGEST]

A path or key names a file or a folder. Credentials are never part of a URL. Must not import a
client.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Final

from pydantic import AfterValidator, StringConstraints

from .addresses import MAX_URL, has_other_path, url_problem


class Scheme(StrEnum):
    """Scheme of a source or target."""

    HF = "hf"
    S3 = "s3"
    GS = "gs"
    HTTPS = "https"
    OCI = "oci"


FORMS: Final[Mapping[Scheme, str]] = {
    Scheme.HF: "hf://org/name@revision, hf://datasets/org/name@revision/file or "
    "hf://datasets/org/name@revision#config=NAME&split=NAME",
    Scheme.S3: "s3://bucket/key",
    Scheme.GS: "gs://bucket/key",
    Scheme.HTTPS: "https://host/file#sha256=DIGEST",
    Scheme.OCI: "oci://registry/name@sha256:DIGEST",
}
"""How to write the URL of each scheme."""
MAIN: Final = "main"
"""Default revision of a repository on a hub."""
COMMIT: Final = re.compile("[0-9a-f]{40}")
"""Revision of a repository on a hub that cannot change."""
HUB_HOSTS: Final = frozenset({"huggingface.co", "hf.co"})
"""Hosts of the hub. Their URLs without `/resolve/` return web pages."""
LATEST: Final = "latest"
"""Default tag of an image."""
MAX_NAME: Final = 255
"""Maximum characters between two slashes; the limit of file systems."""


class InvalidSource(ValueError):
    """The URL is not a source or target. The message has problem and remedy, but not the URL."""


@dataclass(frozen=True, slots=True)
class HubSource:
    """Files of a repository on a hub."""

    repository: str
    """`org/name`."""
    is_dataset: bool = False
    revision: str = ""
    """Branch, tag, commit, `refs/pr/N` or `refs/convert/NAME`; empty: MAIN."""
    path: str = ""
    """File or folder in the repository; empty: all files."""
    config: str = ""
    """Configuration of a data set; empty with `split`: its default configuration."""
    split: str = ""
    """Split of a data set; empty: `path` selects the files."""

    def __str__(self) -> str:
        kind = "datasets/" if self.is_dataset else ""
        selection = f"/{self.path}" if self.path else ""
        if self.split:
            config = f"config={self.config}&" if self.config else ""
            selection = f"#{config}split={self.split}"
        return f"hf://{kind}{self.repository}{_after('@', self.revision)}{selection}"


@dataclass(frozen=True, slots=True)
class BucketSource:
    """An object, or all objects whose key starts with `key/`, in an object store."""

    scheme: Scheme
    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}"


@dataclass(frozen=True, slots=True)
class HttpsSource:
    """A file on a web server."""

    host: str
    """Host, with the port if there is one."""
    path: str
    sha256: str = ""
    """Expected SHA-256 in hexadecimal; empty: not checked."""

    @property
    def url(self) -> str:
        """URL of the file."""
        return f"https://{self.host}/{self.path}"

    def __str__(self) -> str:
        return f"{self.url}{_after('#sha256=', self.sha256)}"


@dataclass(frozen=True, slots=True)
class ImageSource:
    """Files below `/models` in an image, or the files of an artifact, in an OCI registry."""

    registry: str
    """Host, with the port if there is one."""
    name: str
    tag: str = ""
    digest: str = ""
    """`sha256:DIGEST`; empty: the image that `tag` names, or LATEST."""

    def __str__(self) -> str:
        version = f"{_after(':', self.tag)}{_after('@', self.digest)}"
        return f"oci://{self.registry}/{self.name}{version}"


Source = HubSource | BucketSource | HttpsSource | ImageSource
PushTarget = HubSource | BucketSource | ImageSource


def parse_source(url: str) -> Source:
    """Return the source that a URL names. Raises InvalidSource."""
    return _PARSERS[_scheme(url)](url)


def parse_push_target(url: str) -> PushTarget:
    """Return the target that a URL names. Raises InvalidSource."""
    target = parse_source(url)
    match target:
        case HttpsSource():
            schemes = ", ".join(f"{each}://" for each in Scheme if each is not Scheme.HTTPS)
            raise InvalidSource(f"results cannot be pushed to https://; use {schemes}")
        case HubSource(is_dataset=True):
            raise InvalidSource("results are a model, not a data set; write hf://org/name")
        case ImageSource(digest=digest) if digest:
            raise InvalidSource("it has a digest, which the push determines; write name:tag")
    return target


def without_revision(source: Source) -> Source:
    """Return the source of all revisions, which names the files independent of their version."""
    match source:
        case HubSource():
            return replace(source, revision="")
        case HttpsSource():
            return replace(source, sha256="")
        case ImageSource():
            return replace(source, tag="", digest="")
    return source


def _valid_source(url: str) -> str:
    parse_source(url)
    return url


SOURCE_PATTERN: Final = "^[!-~]+$"
"""Pattern of printable ASCII without spaces; `parse_source` reports all other errors."""

SourceUrl = Annotated[
    str,
    StringConstraints(max_length=MAX_URL, pattern=SOURCE_PATTERN),
    AfterValidator(_valid_source),
]
"""URL of a source, see `parse_source`."""


def _valid_model_source(url: str) -> str:
    match parse_source(url):
        case HubSource(is_dataset=True):
            raise InvalidSource("a data set is not a model; write hf://org/name@revision")
        case HttpsSource():
            raise InvalidSource(
                "it is a file, but a model is a folder; write hf://org/name@revision, "
                "s3://bucket/folder, gs://bucket/folder or oci://registry/name"
            )
    return url


ModelUrl = Annotated[SourceUrl, AfterValidator(_valid_model_source)]
"""URL of a source with the files of a model."""


def _valid_target(url: str) -> str:
    parse_push_target(url)
    return url


PUSH_PATTERN: Final = "^(hf|s3|gs|oci)://[!-~]+$"
"""Pattern of URLs of targets; `parse_push_target` reports all other errors."""

PushUrl = Annotated[
    str,
    StringConstraints(max_length=MAX_URL, pattern=PUSH_PATTERN),
    AfterValidator(_valid_target),
]
"""URL of a target of results, see `parse_push_target`."""


def _after(separator: str, text: str) -> str:
    return f"{separator}{text}" if text else ""


_WORD: Final = "[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_SHA256: Final = "[0-9a-f]{64}"
_HUB: Final = re.compile(
    rf"(?P<kind>datasets/)?(?P<repository>{_WORD}/{_WORD})"
    rf"(?:@(?P<revision>refs/(?:pr|convert)/{_WORD}|{_WORD}))?"
    rf"(?:/(?P<path>[^#]+)|#(?:config=(?P<config>{_WORD})&)?split=(?P<split>{_WORD}))?"
)
_BUCKET: Final = re.compile("(?P<bucket>[a-z0-9][a-z0-9._-]{1,61}[a-z0-9])/(?P<key>[^#]+)")
_HTTPS: Final = re.compile(rf"(?P<host>[^/#]+)/(?P<path>[^#]+)(?:#sha256=(?P<sha256>{_SHA256}))?")
_IMAGE: Final = re.compile(
    r"(?P<registry>localhost(?::[0-9]+)?|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+(?::[0-9]+)?"
    r"|[A-Za-z0-9-]+:[0-9]+|\[[0-9A-Fa-f:]+\](?::[0-9]+)?)"
    r"/(?P<name>[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)"
    rf"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{{0,127}}))?(?:@(?P<digest>sha256:{_SHA256}))?"
)


def _scheme(url: str) -> Scheme:
    scheme, separator, _ = url.partition("://")
    if separator and scheme in set(Scheme):
        return Scheme(scheme)
    forms = ", ".join(FORMS.values())
    raise InvalidSource(f"it does not start with a known scheme; write {forms}")


def _groups(pattern: re.Pattern[str], url: str) -> dict[str, str]:
    """Return the groups of a URL that any client reads as the same host and path."""
    scheme = _scheme(url)
    rest = url.removeprefix(f"{scheme}://")
    form = f"write {FORMS[scheme]}"
    location = rest.partition("#")[0]
    segments = location.removesuffix("/").split("/")
    if "@" in segments[0]:
        raise InvalidSource(f"it has credentials; pass them in a Secret, and {form}")
    if "?" in url:
        raise InvalidSource(f"it has a query, which may contain credentials; {form}")
    if any(set(each) <= {"."} for each in segments):
        raise InvalidSource(f"it has an empty part, or a part such as . or ..; {form}")
    if len(url) > MAX_URL or any(len(each) > MAX_NAME for each in segments):
        raise InvalidSource(f"it is longer than {MAX_URL}, or a part than {MAX_NAME}, characters")
    match = pattern.fullmatch(rest.removesuffix("/"))
    if match is None or not re.fullmatch(SOURCE_PATTERN, url) or has_other_path(url):
        raise InvalidSource(f"a part is missing or invalid; {form}")
    return match.groupdict("")


def _hub(url: str) -> HubSource:
    groups = _groups(_HUB, url)
    is_dataset = bool(groups.pop("kind"))
    if groups["repository"].startswith("datasets/"):
        raise InvalidSource(f"its organization is missing; write {FORMS[Scheme.HF]}")
    if groups["split"] and not is_dataset:
        raise InvalidSource("only a data set has splits; write hf://datasets/org/name#split=NAME")
    return HubSource(is_dataset=is_dataset, **groups)


def _bucket(url: str) -> BucketSource:
    return BucketSource(_scheme(url), **_groups(_BUCKET, url))


def _https(url: str) -> HttpsSource:
    groups = _groups(_HTTPS, url)
    if problem := url_problem(url):
        raise InvalidSource(f"{problem}; write {FORMS[Scheme.HTTPS]}")
    if groups["host"] in HUB_HOSTS and "/resolve/" not in groups["path"]:
        raise InvalidSource(f"it is a web page of the hub, not a file; write {FORMS[Scheme.HF]}")
    return HttpsSource(**groups)


def _image(url: str) -> ImageSource:
    return ImageSource(**_groups(_IMAGE, url))


_PARSERS: Final[Mapping[Scheme, Callable[[str], Source]]] = {
    Scheme.HF: _hub,
    Scheme.S3: _bucket,
    Scheme.GS: _bucket,
    Scheme.HTTPS: _https,
    Scheme.OCI: _image,
}
