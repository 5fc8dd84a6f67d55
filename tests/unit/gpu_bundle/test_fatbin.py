"""The CUDA code of a shared library is reduced to one architecture."""

import struct

import pytest

from gpu.bundle.fatbin import (
    CUBIN,
    MAGIC,
    UNUSED_ARCHITECTURE,
    find_section,
    keep_architecture,
    read_containers,
)

PTX = 1
CODE = b"machine code"


def image(architecture: int, code: bytes, kind: int = CUBIN) -> bytes:
    """Return an image with the header size that nvcc writes."""
    code = code.ljust(-(-len(code) // 8) * 8, b"\0")
    return struct.pack("<HHIQ12xI32x", kind, 257, 64, len(code), architecture) + code


def container(*images: bytes) -> bytes:
    content = b"".join(images)
    return struct.pack("<IHHQ", MAGIC, 1, 16, len(content)) + content


def library(*containers: bytes, section: str = ".nv_fatbin", padding: int = 16) -> bytes:
    """Return a 64-bit ELF file with code, names and one section of containers."""
    fatbin = b"".join(each + bytes(padding) for each in containers)
    names = b"\0.text\0.shstrtab\0" + section.encode() + b"\0"
    contents = [b"", CODE.ljust(16), names.ljust(64, b"\0"), fatbin]
    headers, body = b"", b""
    for name, content in zip(["", ".text", ".shstrtab", section], contents, strict=True):
        offset = names.index(name.encode() + b"\0")
        place = (64 + len(body), len(content))
        headers += struct.pack("<IIQQQQIIQQ", offset, 1, 0, 0, *place, 0, 0, 0, 0)
        body += content
    start = b"\x7fELF\x02\x01\x01".ljust(40, b"\0")
    table = 64 + len(body)
    return start + struct.pack("<QIHHHHHH", table, 0, 64, 0, 0, 64, 4, 2) + body + headers


def contents(content: bytes) -> list[list[tuple[int, int, bytes]]]:
    return [
        [(each.kind, each.architecture, each.content[64:].rstrip(b"\0")) for each in group.images]
        for group in read_containers(content)
    ]


MANY = container(
    image(80, b"ampere kernel"), image(90, b"hopper kernel"), image(90, b"PTX", kind=PTX)
)
NEWER = container(image(100, b"blackwell kernel, longer"))


def test_images_of_architecture_remain_and_others_become_zeros() -> None:
    original = library(MANY, NEWER, MANY)

    reduced = keep_architecture(original, 90)

    hopper = [(CUBIN, 90, b"hopper kernel")]
    placeholder = [(CUBIN, UNUSED_ARCHITECTURE, b"ampere kernel")]
    assert contents(reduced) == [hopper, placeholder, hopper]
    assert len(reduced) == len(original)
    assert b"blackwell" not in reduced
    assert b"PTX" not in reduced


def test_bytes_outside_of_containers_are_unchanged() -> None:
    original = library(MANY, NEWER)
    start, end = find_section(original, ".nv_fatbin")

    reduced = keep_architecture(original, 90)

    assert (reduced[:start], reduced[end:]) == (original[:start], original[end:])


def test_containers_remain_at_their_addresses() -> None:
    original = library(MANY, NEWER, MANY)

    reduced = keep_architecture(original, 90)

    starts = [each.start for each in read_containers(original)]
    assert [each.start for each in read_containers(reduced)] == starts


def test_images_with_dropped_text_are_replaced() -> None:
    original = library(
        container(image(90, b"kernel<float_e4m3>")), container(image(90, b"kernel<half>"))
    )

    reduced = keep_architecture(original, 90, [b"float_e4m3"])

    assert contents(reduced) == [
        [(CUBIN, UNUSED_ARCHITECTURE, b"kernel<half>")],
        [(CUBIN, 90, b"kernel<half>")],
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (library(MANY, section=".data"), "no section .nv_fatbin"),
        (library(), "no machine code"),
        (library(container(bytes(64))), "no image at offset"),
        (library(container(image(90, b"PTX", kind=PTX))), "no machine code"),
    ],
)
def test_unexpected_library_is_rejected(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        keep_architecture(content, 90)
