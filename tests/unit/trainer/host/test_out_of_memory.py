import pytest
from ray.exceptions import RayTaskError

from raggrpo_trainer.host.out_of_memory import Kind, OutOfMemory, out_of_memory

CUDA = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 79.10 GiB of which 1.20 GiB is free."
)
NO_CACHE = (
    "ValueError: No available memory for the cache blocks. Try increasing "
    "`gpu_memory_utilization` when initializing the engine."
)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (CUDA, Kind.DEVICE),
        ("RuntimeError: CUDA error: out of memory", Kind.DEVICE),
        ("ERROR CUDA Error: out of memory at cumem_allocator.cpp:62", Kind.DEVICE),
        ("Cuda failure 2 'out of memory'", Kind.DEVICE),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublas", Kind.DEVICE),
        ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate", Kind.DEVICE),
        (
            "ValueError: Free memory on device cuda:0 (3.2/79.1 GiB) on startup is less than "
            "desired GPU memory utilization (0.6, 47.5 GiB).",
            Kind.DEVICE,
        ),
        ("RuntimeError: CUDA driver: CUDA_ERROR_OUT_OF_MEMORY", Kind.DEVICE),
        ("torch.OutOfMemoryError: Allocation on device 0 would exceed memory", Kind.DEVICE),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 9 GiB", Kind.HOST),
        (
            "ValueError: max_num_seqs (256) exceeds available Mamba cache blocks (12).",
            Kind.KV_CACHE,
        ),
        (NO_CACHE, Kind.KV_CACHE),
        (
            "ValueError: To serve at least one request with the model's max seq len (8192), 1.0 "
            "GiB KV cache is needed, which is larger than the available KV cache memory (0.5 GiB)",
            Kind.KV_CACHE,
        ),
        ("MemoryError", Kind.HOST),
        ("terminate called after throwing an instance of 'std::bad_alloc'", Kind.HOST),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't "
            "allocate memory: you tried to allocate 99999999999 bytes.",
            Kind.HOST,
        ),
        ("OSError: [Errno 12] Cannot allocate memory", Kind.HOST),
    ],
)
def test_known_out_of_memory_messages_are_recognized(text: str, kind: Kind) -> None:
    error = RuntimeError(f"Traceback (most recent call last):\n  File x\n{text}\nmore")
    assert out_of_memory(error) == OutOfMemory(kind, text)


@pytest.mark.parametrize(
    "text",
    [
        "the question was: why is my GPU out of memory?",
        'if "out of memory" in str(error).lower():',
        "loss nan at step 3",
        "MemoryErrorLog is not a function",
    ],
)
def test_unrelated_messages_are_not_out_of_memory(text: str) -> None:
    assert out_of_memory(RuntimeError(text)) is None


def test_out_of_memory_is_found_in_causes_contexts_and_groups() -> None:
    try:
        try:
            try:
                raise RuntimeError(CUDA)
            except RuntimeError as error:
                raise ValueError("the engine core failed") from error
        except ValueError:
            raise KeyError("while handling it") from None  # hides the context from tracebacks
    except KeyError as error:
        hidden = error
    assert out_of_memory(ExceptionGroup("two", [OSError("x"), hidden])) == OutOfMemory(
        Kind.DEVICE, CUDA
    )


@pytest.mark.row("D12")
def test_out_of_memory_line_is_found_before_long_traceback() -> None:
    text = f"Traceback:\n{CUDA}\n" + "During handling of the above, frame after frame\n" * 500
    error = RayTaskError("step", text, RuntimeError("something else"))
    assert out_of_memory(error) == OutOfMemory(Kind.DEVICE, CUDA)


def test_out_of_memory_search_terminates_for_cyclic_exception_chain() -> None:
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__context__, second.__context__ = second, first
    assert out_of_memory(first) is None


def test_memory_error_without_message_is_recognized() -> None:
    assert out_of_memory(MemoryError()) == OutOfMemory(Kind.HOST, "MemoryError")
