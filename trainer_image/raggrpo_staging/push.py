"""`python -m raggrpo_staging.push`: upload a folder to a hub, object store or registry.

A repository is created as private if it does not exist. Clients read credentials, mirrors and
proxies from the environment. Exit codes: 2 for invalid arguments; 3 if the push failed, and 4 if it
may succeed later, with one line on standard error.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, assert_never

import requests

from raggrpo_api.fields.source import (
    MAIN,
    BucketSource,
    HubSource,
    ImageSource,
    InvalidSource,
    PushTarget,
    parse_push_target,
)
from raggrpo_api.trainer.staging import UPLOADING, PushResult, StagingReason, pushed_text

from .authorities import trust_authorities
from .failures import EXIT_FAILED, EXIT_RETRY, StagingFailed, detail
from .folder import write_json
from .progress import ProgressCounter
from .progress_server import shown
from .retries import with_retries

LAYER_TYPE = "application/octet-stream"
COMMIT_MESSAGE = "Upload results of training"


def push(folder: Path, target: PushTarget, progress: ProgressCounter) -> PushResult:
    """Upload all files of a folder; repeat transient failures. Raises StagingFailed."""
    try:
        return _push(folder, target, progress)
    except OSError as error:  # those of connections are StagingFailed
        raise StagingFailed(
            StagingReason.NOT_FOUND,
            f"{error.filename or folder} cannot be read ({error.strerror or detail(error)}); "
            "correct its permissions, or export the model again",
        ) from error


def _push(folder: Path, target: PushTarget, progress: ProgressCounter) -> PushResult:
    files = {each: (folder / each).stat().st_size for each in upload_files(folder)}
    size = sum(files.values())
    progress.expect(size, 0)
    match target:
        case HubSource():
            revision = _push_to_hub(folder, files, target, progress)
        case BucketSource():
            revision = _push_to_bucket(folder, files, target, progress)
        case ImageSource():
            revision = _push_to_registry(folder, files, target, progress)
        case _:
            assert_never(target)
    return PushResult(url=str(target), revision=revision, bytes=size)


def upload_files(folder: Path) -> list[str]:
    """Return the files to upload by relative path: regular ones that are not hidden.

    Raises StagingFailed if there are none.
    """
    regular = sorted(each for each in folder.rglob("*") if each.is_file() and not each.is_symlink())
    paths = [each.relative_to(folder) for each in regular]
    visible = [p.as_posix() for p in paths if not any(part.startswith(".") for part in p.parts)]
    if not visible:
        raise StagingFailed(
            StagingReason.NOT_FOUND, f"{folder} has no files; specify the folder of an export"
        )
    return visible


def _push_to_hub(
    folder: Path, files: Mapping[str, int], target: HubSource, progress: ProgressCounter
) -> str:
    """Upload one large file after the other, then commit all files; return the commit."""
    from huggingface_hub import CommitOperationAdd, HfApi

    from .hub import translated

    api = HfApi()
    repository, branch = target.repository, target.revision or MAIN
    prefix = f"{target.path}/" if target.path else ""
    added = {each: CommitOperationAdd(f"{prefix}{each}", folder / each) for each in files}

    def create() -> None:
        with translated(target, branch):
            api.create_repo(repository, private=True, exist_ok=True)
            if branch != MAIN:
                api.create_branch(repository, branch=branch, exist_ok=True)

    def upload(file: str) -> None:
        with translated(target, branch), progress.upload(files[file]):
            api.preupload_lfs_files(repository, [added[file]], revision=branch, free_memory=False)

    def commit() -> str:
        with translated(target, branch):
            done = api.create_commit(
                repository, added.values(), commit_message=COMMIT_MESSAGE, revision=branch
            )
        return str(done.oid)

    with_retries(create, progress.report)
    for each in files:
        with_retries(partial(upload, each), progress.report)
    return with_retries(commit, progress.report)


def _push_to_bucket(
    folder: Path, files: Mapping[str, int], target: BucketSource, progress: ProgressCounter
) -> str:
    from .bucket_progress import UploadCallback
    from .buckets import open_bucket, translated

    file_system = open_bucket(target)

    def upload(file: str) -> None:
        with translated(target), progress.upload(files[file]) as count:
            file_system.put_file(
                str(folder / file),
                f"{target.bucket}/{target.key}/{file}",
                callback=UploadCallback(count),
            )

    for each in files:
        with_retries(partial(upload, each), progress.report)
    return ""


def _push_to_registry(
    folder: Path, files: Mapping[str, int], target: ImageSource, progress: ProgressCounter
) -> str:
    """Upload an artifact with one layer per file; return its digest."""
    from oras import defaults, oci

    from .registry_client import UPLOAD_BYTES, RegistryClient
    from .web import translated

    def retry(call: Callable[[], requests.Response]) -> requests.Response:
        def translating() -> requests.Response:
            with translated(target.registry):
                return call()

        return with_retries(translating, progress.report)

    client = with_retries(lambda: RegistryClient(target), progress.report)
    options = {"do_chunked": True, "chunk_size": UPLOAD_BYTES}
    manifest = oci.NewManifest()

    def upload(path: str, layer: dict[str, Any]) -> requests.Response:
        with progress.upload(layer["size"]) as client.on_sent:
            return client.upload_blob(path, client.container, layer, **options)

    for each in files:
        path = str(folder / each)
        layer = oci.NewLayer(path, media_type=LAYER_TYPE)
        layer["annotations"] = {defaults.annotation_title: each}
        manifest["layers"].append(layer)
        retry(partial(upload, path, layer))
    manifest["config"], _ = oci.ManifestConfig()
    with tempfile.NamedTemporaryFile("w") as config:
        config.write("{}")
        config.flush()
        retry(partial(client.upload_blob, config.name, client.container, manifest["config"]))
    uploaded = retry(lambda: client.upload_manifest(manifest, client.container))
    return str(uploaded.headers.get("Docker-Content-Digest", ""))


def main(arguments: Sequence[str] | None = None) -> int:
    """Upload a folder and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="raggrpo_staging.push", description="Upload a folder to a hub, store or registry."
    )
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--target", required=True, help="URL such as hf://org/name")
    parser.add_argument("--progress", type=Path, help="file to write StagingProgress to")
    parser.add_argument("--result", type=Path, help="file to write PushResult to")
    options = parser.parse_args(arguments)
    try:
        target = parse_push_target(options.target)
    except InvalidSource as error:
        parser.error(f"--target: {error}")
    progress = ProgressCounter(options.progress, UPLOADING)
    progress.start("--target")
    try:
        trust_authorities()
        with shown(progress):
            result = push(options.folder, target, progress)
    except StagingFailed as failure:
        print(f"error: {failure.reason}: {failure}", file=sys.stderr)
        return EXIT_RETRY if failure.is_transient else EXIT_FAILED
    if options.result is not None:
        write_json(options.result, result.model_dump_json(by_alias=True))
    print(f"Pushed to {pushed_text(result)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
