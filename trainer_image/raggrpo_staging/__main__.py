"""`python -m raggrpo_staging`: stage the sources of a request.

Clients read credentials, mirrors and proxies from the environment. Exit codes: 2 for an invalid
request; 3 if a source failed, and 4 if the failed sources may succeed later, with one line per
failure on standard error.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from pydantic import ValidationError

from raggrpo_api.foreign_files import read_limited
from raggrpo_api.limits import MAX_SPEC_BYTES
from raggrpo_api.names import ENV_STAGING_REQUEST
from raggrpo_api.trainer.staging import TRANSIENT_REASONS, StagingRequest

from .authorities import trust_authorities
from .failures import EXIT_FAILED, EXIT_RETRY, StagingFailed
from .progress import ProgressCounter
from .progress_server import shown
from .staging import stage_all


def main(arguments: Sequence[str] | None = None) -> int:
    """Stage all sources and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="raggrpo_staging", description="Download models and data into a folder."
    )
    parser.add_argument(
        "--request", type=Path, help=f"StagingRequest as JSON; default: {ENV_STAGING_REQUEST}"
    )
    parser.add_argument("--progress", type=Path, help="file to write StagingProgress to")
    parser.add_argument("--result", type=Path, help="file to write StagingResult to")
    options = parser.parse_args(arguments)
    for file in (options.progress, options.result):
        if file is not None and not file.parent.is_dir():
            parser.error(f"{file.parent} is not a folder; create it")
    try:
        request = StagingRequest.model_validate_json(_request_text(options.request))
    except OSError as error:
        parser.error(f"{options.request} cannot be read: {error.strerror}")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        parser.error(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
    signal.signal(signal.SIGTERM, _exit)  # releases locks
    try:
        trust_authorities()
    except StagingFailed as error:
        parser.error(str(error))
    progress = ProgressCounter(options.progress)
    with shown(progress):
        result = stage_all(request, progress)
    if options.result is not None:  # not replaced: Kubernetes reads the file that it mounts
        try:
            options.result.write_text(result.model_dump_json(by_alias=True))
        except OSError as error:
            parser.error(f"{options.result} cannot be written: {error.strerror}")
    for each in result.staged:
        print(f"{each.field}: {each.path} (revision {each.revision})", flush=True)
    for failure in result.failures:
        print(f"error: {failure.message}", file=sys.stderr)
    if not result.failures:
        return 0
    is_transient = all(each.reason in TRANSIENT_REASONS for each in result.failures)
    return EXIT_RETRY if is_transient else EXIT_FAILED


def _request_text(file: Path | None) -> bytes:
    if file is not None:
        return read_limited(file, MAX_SPEC_BYTES)
    return os.environ.get(ENV_STAGING_REQUEST, "").encode()


def _exit(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
