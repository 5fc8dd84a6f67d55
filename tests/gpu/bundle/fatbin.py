"""Reduce the CUDA code in a shared library to one GPU architecture.

nvcc puts the compiled kernels into the ELF section `.nv_fatbin`: a sequence of containers, each
with one image per architecture. The driver loads the image of the card and ignores the others.
Sizes and offsets stay as they are, because the library's code contains addresses of containers; the
bytes of removed images become zeros, which compress to nothing.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SECTION = ".nv_fatbin"
MAGIC = 0xBA55ED50
"""First four bytes of a container."""
ALIGNMENT = 8
"""Containers start at multiples of this number of bytes."""
CUBIN = 2
"""Kind of an image that contains machine code; 1 is PTX."""
UNUSED_ARCHITECTURE = 75
"""Architecture of images that no supported card loads (Turing)."""
_CONTAINER = struct.Struct("<IHHQ")
"""Magic number, version, size of this header, size of all images."""
_SIZE_OFFSET = 8
"""Offset of the size of all images in a container."""
_IMAGE = struct.Struct("<HHIQ")
"""Kind, version, size of this header, size of the code."""
_ARCHITECTURE = struct.Struct("<I")
_ARCHITECTURE_OFFSET = 28
"""Offset of the architecture in an image's header."""


@dataclass(frozen=True, slots=True)
class Image:
    """Code of one container for one architecture."""

    kind: int
    architecture: int
    """Compute capability without its dot, such as 90."""
    content: bytes
    """Header and code."""


@dataclass(frozen=True, slots=True)
class Container:
    """Images of the same kernels for several architectures."""

    start: int
    """Offset in the file."""
    first_image: int
    """Offset of the first image in the file."""
    end: int
    images: tuple[Image, ...]


def keep_architecture(library: bytes, architecture: int, dropped: Sequence[bytes] = ()) -> bytes:
    """Return the library with the machine code of one architecture, in the same number of bytes.

    Images that contain one of `dropped`, such as a part of a kernel's name, are removed, too. A
    container must not be empty, so one without remaining images gets the smallest image of the
    library, declared as code for UNUSED_ARCHITECTURE: calling its kernels fails with "no kernel
    image is available".

    Raises ValueError if the library contains no machine code.
    """
    containers = list(read_containers(library))
    cubins = [image for each in containers for image in each.images if image.kind == CUBIN]
    if not cubins:
        raise ValueError(f"section {SECTION} contains no machine code")
    placeholder = unusable(min(cubins, key=lambda image: len(image.content)))
    reduced = bytearray(library)
    for container in containers:
        kept = [
            image.content
            for image in container.images
            if (image.kind, image.architecture) == (CUBIN, architecture)
            and not any(text in image.content for text in dropped)
        ]
        write_images(reduced, container, b"".join(kept) or placeholder)
    return bytes(reduced)


def unusable(image: Image) -> bytes:
    """Return an image declared as code for UNUSED_ARCHITECTURE."""
    content = bytearray(image.content)
    _ARCHITECTURE.pack_into(content, _ARCHITECTURE_OFFSET, UNUSED_ARCHITECTURE)
    return bytes(content)


def write_images(library: bytearray, container: Container, images: bytes) -> None:
    """Replace the images of a container; zeros fill the remaining bytes."""
    room = container.end - container.first_image
    if len(images) > room:
        raise ValueError(f"container at {container.start} is smaller than the smallest image")
    library[container.first_image : container.end] = images.ljust(room, b"\0")
    struct.pack_into("<Q", library, container.start + _SIZE_OFFSET, len(images))


def read_containers(library: bytes) -> Iterator[Container]:
    """Yield the containers of a library. Raises ValueError if it has no section for them."""
    position, end = find_section(library, SECTION)
    while position < end:
        magic, _, header, size = _CONTAINER.unpack_from(library, position)
        if magic != MAGIC:
            position += ALIGNMENT
            continue
        first, last = position + header, position + header + size
        yield Container(position, first, last, tuple(_read_images(library, first, last)))
        position = last


def _read_images(library: bytes, position: int, end: int) -> Iterator[Image]:
    while position < end:
        kind, _, header, size = _IMAGE.unpack_from(library, position)
        if header < _ARCHITECTURE_OFFSET:
            raise ValueError(f"no image at offset {position}")
        (architecture,) = _ARCHITECTURE.unpack_from(library, position + _ARCHITECTURE_OFFSET)
        yield Image(kind, architecture, library[position : position + header + size])
        position += header + size


def find_section(library: bytes, name: str) -> tuple[int, int]:
    """Return start and end of a section of a 64-bit ELF file. Raises ValueError if it is absent."""
    (table,) = struct.unpack_from("<Q", library, 40)
    size, count, names = struct.unpack_from("<HHH", library, 58)
    headers = [struct.unpack_from("<I20xQQ", library, table + size * i) for i in range(count)]
    for name_offset, offset, length in headers:
        start = headers[names][1] + name_offset
        if library[start : library.index(b"\0", start)] == name.encode():
            return offset, offset + length
    raise ValueError(f"no section {name}")
