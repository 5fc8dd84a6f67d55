"""Files of a repository on a hub that speaks the protocol of the Hugging Face Hub.

huggingface_hub reads HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE. It has no download that
resumes after a kill, so ranges are requested through its client.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from itertools import islice

import httpx2
from huggingface_hub import HfApi, RepoFile, constants, get_token, hf_hub_url
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

from raggrpo_api.fields.source import COMMIT, MAIN, HubSource
from raggrpo_api.foreign_bodies import UNEXPECTED, UnsuitableBody
from raggrpo_api.trainer.staging import SourceRole, StagingReason

from .bodies import limited, require_plain
from .failures import (
    TOKEN_REMEDY,
    StagingFailed,
    body_failure,
    connection_failure,
    detail,
    status_failure,
    unexpected_failure,
)
from .hub_client import hub_address, use_limited_client
from .ranges import range_headers, require_range
from .redirects import answering_server, is_other_server, other_server_denied
from .remote import Checksum, Remote, RemoteFile, Snapshot
from .retries import retry_after
from .selection import MAX_ENTRIES, hub_files, require_few

use_limited_client()
CHUNK_BYTES = 2**20
CARD = "README.md"
MAX_CARD_BYTES = 2**20
"""A larger card is not read; file names then select the files of a split."""


class HubRemote(Remote):
    """Files of a repository."""

    def __init__(self, source: HubSource, role: SourceRole) -> None:
        self._source, self._role = source, role
        self._type = repository_type(source)
        self._commit = ""
        self.card: RemoteFile | None = None
        """The card that selects the files of a split, or None."""

    def snapshot(self, revision: str) -> Snapshot:
        """Return the files of the commit that the revision names now."""
        expected = revision or self._source.revision or MAIN
        with translated(self._source, expected):
            info = self._api.repo_info(
                self._source.repository, repo_type=self._type, revision=expected
            )
            self._commit = _commit(info.sha)
            listed = {each.path: each for each in self._listed()}
        with translated(self._source, self._commit):
            chosen = hub_files(list(listed), lambda: self._card(listed), self._role, self._source)
            files = [_remote_file(listed[each], target) for each, target in chosen.items()]
        return Snapshot(self._commit, tuple(files), is_file=list(chosen) == [self._source.path])

    def chunks(self, file: RemoteFile, start: int, stop: int | None) -> Iterator[bytes]:
        """Yield a range of a file at the pinned commit."""
        url = hf_hub_url(
            self._source.repository, file.location, repo_type=self._type, revision=self._commit
        )
        headers = {
            **build_hf_headers(),
            "Accept-Encoding": "identity",
            **range_headers(start, stop),
        }
        with (
            translated(self._source, self._commit),
            get_session().stream(
                "GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT
            ) as response,
        ):
            if response.status_code >= 400:
                response.read()
            hf_raise_for_status(response)
            require_plain(response.headers, hub_address())
            require_range(response.status_code, response.headers, file, start, stop)
            yield from response.iter_raw(CHUNK_BYTES)

    def _listed(self) -> list[RepoFile]:
        source = self._source
        if source.path:
            entries = self._api.get_paths_info(
                source.repository, source.path, revision=self._commit, repo_type=self._type
            )
            files = [each for each in entries if isinstance(each, RepoFile)]
            if files or not entries:
                return files
        tree = self._api.list_repo_tree(
            source.repository,
            source.path or None,
            recursive=True,
            revision=self._commit,
            repo_type=self._type,
        )
        listed = list(islice(tree, MAX_ENTRIES + 1))
        require_few(len(listed), source)
        return [each for each in listed if isinstance(each, RepoFile)]

    def _card(self, listed: Mapping[str, RepoFile]) -> str:
        if CARD not in listed or listed[CARD].size > MAX_CARD_BYTES:
            return ""
        self.card = _remote_file(listed[CARD], CARD)
        chunks = self.chunks(self.card, 0, self.card.size)
        content = b"".join(limited(chunks, hub_address()))
        # a server may send more than it announces
        return content.decode(errors="replace") if len(content) <= MAX_CARD_BYTES else ""

    @cached_property
    def _api(self) -> HfApi:
        return HfApi()


def repository_type(source: HubSource) -> str:
    """Return the type of a repository as huggingface_hub names it."""
    return "dataset" if source.is_dataset else "model"


def _commit(sha: object) -> str:
    if isinstance(sha, str) and COMMIT.fullmatch(sha):
        return sha
    raise ValueError(f"{str(sha)[:80]!r} is not a commit")


def _remote_file(file: RepoFile, path: str) -> RemoteFile:
    checksum = Checksum(algorithm="git", digest=file.blob_id)
    if file.lfs is not None:
        checksum = Checksum(algorithm="sha256", digest=file.lfs.sha256)
    return RemoteFile(path=path, location=file.path, size=file.size, checksum=checksum)


@contextmanager
def translated(source: HubSource, revision: str) -> Iterator[None]:
    """Raise StagingFailed for errors of huggingface_hub."""
    try:
        yield
    except UnsuitableBody as error:
        raise body_failure(error) from error
    except HFValidationError as error:
        message = f"{source}: {detail(error)}; correct the source"
        raise StagingFailed(StagingReason.NOT_FOUND, message) from error
    except OfflineModeIsEnabled as error:
        raise StagingFailed(
            StagingReason.NOT_FOUND,
            f"{source} is not in the cache, and HF_HUB_OFFLINE is set; unset it for one run",
        ) from error
    except LocalEntryNotFoundError as error:  # of a download into the cache
        raise connection_failure(hub_address(), error) from error
    except HfHubHTTPError as error:
        raise _response_failure(source, revision, error) from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        server = answering_server(error, hub_address())
        raise connection_failure(server, error) from error
    except UNEXPECTED as error:
        raise unexpected_failure(hub_address(), str(source), error) from error


def _response_failure(source: HubSource, revision: str, error: HfHubHTTPError) -> StagingFailed:
    status = error.response.status_code
    name = f"hf://{'datasets/' if source.is_dataset else ''}{source.repository}"
    has_token = bool(get_token())
    correction = "correct the name"
    if not source.is_dataset:
        correction += f" (a data set is hf://datasets/{source.repository})"
    url = str(error.response.url)
    if status in (401, 403) and is_other_server(url, constants.ENDPOINT):
        return other_server_denied(url, hub_address(), name, status)
    match error:
        case GatedRepoError() if has_token:
            return StagingFailed(
                StagingReason.GATED_MODEL,
                f"{name} is gated; accept its conditions at {hub_address()}/"
                f"{source.repository} with the account of the token in HF_TOKEN",
            )
        case GatedRepoError():
            return StagingFailed(
                StagingReason.TOKEN_MISSING, f"{name} is gated; {TOKEN_REMEDY['hf']}"
            )
        case RevisionNotFoundError():
            return StagingFailed(
                StagingReason.UNKNOWN_REVISION,
                f"{name} has no revision {revision}; specify a branch, tag or commit",
            )
        case EntryNotFoundError():
            return StagingFailed(
                StagingReason.NOT_FOUND,
                f"{name} has no file or folder {source.path} at {revision}; correct the path",
            )
    if not has_token and (status == 401 or isinstance(error, RepositoryNotFoundError)):
        return StagingFailed(
            StagingReason.TOKEN_MISSING,
            f"{name} does not exist, or is private; {correction}, or {TOKEN_REMEDY['hf']}",
        )
    if isinstance(error, RepositoryNotFoundError):
        return StagingFailed(
            StagingReason.NOT_FOUND,
            f"{name} does not exist, or the token in HF_TOKEN has no access to it; {correction} or "
            "the token",
        )
    if status in (401, 403):
        return StagingFailed(
            StagingReason.ACCESS_DENIED,
            f"{hub_address()} denied access to {name} (HTTP {status}); {TOKEN_REMEDY['hf']}",
        )
    if status in (408, 429) or status >= 500:
        return status_failure(hub_address(), status, retry_after(error.response.headers))
    return StagingFailed(StagingReason.NOT_FOUND, f"{name}: {detail(error)}; correct the source")
