"""Detect from an error or its chain of causes which memory ran out, if any.

Errors cross processes as text, so text is searched line by line. Only the wordings of torch, CUDA,
vLLM, Python and the C++ runtime match, not the mere words "out of memory", which may be in a prompt
or in a quoted line of source code.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from ray.exceptions import OutOfMemoryError, RayTaskError

from raggrpo_api.memory.shortage import Shortage

MAX_LINE = 600
"""Maximum length of a reported line, in characters."""


class Kind(Enum):
    """Which memory ran out."""

    DEVICE = auto()
    KV_CACHE = auto()
    """GPU memory: the engine's share is too small for the KV cache."""
    HOST = auto()


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """Which memory ran out, with the line that reports it."""

    kind: Kind
    line: str


_WORDINGS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    (
        Kind.KV_CACHE,
        re.compile(
            r"No available memory for the cache blocks"
            r"|larger than the available KV cache memory"
            r"|not enough GPU memory available"
            r"|max_num_seqs \(\d+\) exceeds available Mamba cache blocks"
        ),
    ),
    (
        Kind.DEVICE,
        re.compile(
            r"(CUDA|HIP|XPU|cuda|CUDA driver)( error| Error| driver error)?:? out of memory"
            r"|[Ff]ailure (\d+ )?'out of memory'"
            r"|(CUBLAS|CUDNN|CUSPARSE|NCCL)_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation"
            r"|Failed to load model - not enough GPU memory"
            r"|CUDA_ERROR_OUT_OF_MEMORY|torch\.(cuda\.)?OutOfMemoryError: Allocation on device"
            r"|Free memory on device .* on startup is less than desired"
        ),
    ),
    (
        Kind.HOST,
        re.compile(
            r"(^|[\s:])MemoryError(:|$)|std::bad_alloc|DefaultCPUAllocator: can't allocate memory"
            r"|_ArrayMemoryError: Unable to allocate"
            r"|Cannot allocate memory|ray\.exceptions\.OutOfMemoryError"
        ),
    ),
)


def out_of_memory(error: BaseException) -> OutOfMemory | None:
    """Return which memory ran out according to the error and its chain of causes, or None."""
    for each in _chain(error):
        if isinstance(each, MemoryError | OutOfMemoryError):
            return OutOfMemory(Kind.HOST, str(each)[:MAX_LINE] or type(each).__name__)
        if (shortage := out_of_memory_in_text(str(each))) is not None:
            return shortage
    return None


def out_of_memory_in_text(text: str) -> OutOfMemory | None:
    """Return which memory ran out according to the first matching line, or None."""
    for line in text.splitlines():
        for kind, wording in _WORDINGS:
            if (match := wording.search(line)) is not None:
                start = max(0, match.start() - MAX_LINE // 2)
                return OutOfMemory(kind, line[start : start + MAX_LINE].strip())
    return None


def engine_shortage(error: OutOfMemory, *, colocated: bool) -> Shortage:
    """Return the memory term that was too small when an engine ran out of memory."""
    match error.kind:
        case Kind.KV_CACHE:
            return Shortage.KV_CACHE
        case Kind.DEVICE:
            return Shortage.ENGINE
        case Kind.HOST:
            return Shortage.TRAINER_HOST if colocated else Shortage.ROLLOUT_HOST


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, its causes, grouped errors and contexts, including suppressed contexts."""
    pending: list[BaseException | None] = [error]
    visited: set[int] = set()
    while pending:
        each = pending.pop(0)
        if each is None or id(each) in visited:
            continue
        visited.add(id(each))
        yield each
        pending += [each.__cause__, each.__context__]
        if isinstance(each, RayTaskError) and isinstance(each.cause, BaseException):
            pending.append(each.cause)
        if isinstance(each, BaseExceptionGroup):
            pending += each.exceptions
