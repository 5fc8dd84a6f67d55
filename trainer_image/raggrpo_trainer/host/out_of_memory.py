"""Whether an error, or anything in its chain of causes, says that memory ran out, and which.

Text is searched line by line, because errors cross processes as text, in which the reason stands
anywhere. Only the wordings of torch, CUDA, vLLM, Python and the C++ runtime count, not the mere
words "out of memory", which may stand in a prompt or in a quoted line of source code.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from ray.exceptions import OutOfMemoryError, RayTaskError

from raggrpo_api.memory.shortage import Shortage

MAX_LINE = 600
"""Characters kept of the line that says it."""


class Kind(Enum):
    """Which memory ran out."""

    DEVICE = auto()
    KV_CACHE = auto()
    """The engine started, but its share has no room for its KV cache."""
    HOST = auto()


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """What was found."""

    kind: Kind
    line: str
    """The line that says it."""


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
    """Return what ran out according to the error, its causes, contexts and grouped errors."""
    for each in _chain(error):
        if isinstance(each, MemoryError | OutOfMemoryError):
            return OutOfMemory(Kind.HOST, str(each)[:MAX_LINE] or type(each).__name__)
        if (found := in_text(str(each))) is not None:
            return found
    return None


def in_text(text: str) -> OutOfMemory | None:
    """Return the first line that says that memory ran out."""
    for line in text.splitlines():
        for kind, wording in _WORDINGS:
            if (match := wording.search(line)) is not None:
                start = max(0, match.start() - MAX_LINE // 2)
                return OutOfMemory(kind, line[start : start + MAX_LINE].strip())
    return None


def of_engine(found: OutOfMemory, *, colocated: bool) -> Shortage:
    """Return what was short when an engine ran out of memory."""
    match found.kind:
        case Kind.KV_CACHE:
            return Shortage.KV_CACHE
        case Kind.DEVICE:
            return Shortage.ENGINE
        case Kind.HOST:
            return Shortage.TRAINER_HOST if colocated else Shortage.ROLLOUT_HOST


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and all it came from; also contexts that a traceback would not show."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop(0)
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting += [each.__cause__, each.__context__]
        if isinstance(each, RayTaskError) and isinstance(each.cause, BaseException):
            waiting.append(each.cause)
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions
