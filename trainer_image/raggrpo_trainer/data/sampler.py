"""Prompts of a batch and seeds of samples, as pure functions of counters.

No random state is carried between steps, so a resumed run continues with the same prompts and seeds
on any number of ranks.
Must not use the global generators of torch and numpy, nor Python's `hash()`, which differs between
processes.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from raggrpo_api.fields.base import Count


@dataclass(frozen=True, slots=True)
class Cursor:
    """Start of the next batch: `position` prompts of pass `epoch` have been used."""

    epoch: Count = 0
    position: Count = 0


@dataclass(frozen=True, slots=True)
class Sampler:
    """Orders prompt indices; each pass over the data is shuffled differently."""

    num_prompts: int
    seed: int

    def __post_init__(self) -> None:
        if self.num_prompts < 1:
            raise ValueError("a sampler needs at least one prompt")

    def next_batch(self, cursor: Cursor, size: int) -> tuple[tuple[int, ...], Cursor]:
        """Return the next `size` indices and the cursor after them.

        A batch may continue in the next pass; each pass contains each prompt exactly once.
        Raises ValueError if the cursor is beyond the data.
        """
        if not 0 <= cursor.position < self.num_prompts:
            raise ValueError(
                f"{cursor} is not in the data ({self.num_prompts} prompts): rows were removed"
            )
        indices: list[int] = []
        while len(indices) < size:
            order = _order(self.num_prompts, self.seed, cursor.epoch)
            taken = order[cursor.position : cursor.position + size - len(indices)]
            indices += taken.tolist()
            cursor = Cursor(cursor.epoch, cursor.position + len(taken))
            if cursor.position == self.num_prompts:
                cursor = Cursor(cursor.epoch + 1)
        return tuple(indices), cursor


def sample_seed(seed: int, step: int, prompt_id: int, sample: int) -> int:
    """Return the 63-bit seed of one completion."""
    return int.from_bytes(_digest("sample", seed, step, prompt_id, sample)[:8]) >> 1


def permutation(count: int, *key: int) -> NDArray[np.int64]:
    """Return a permutation of range(count), int64 [count], that depends only on `key`.

    Uses the raw stream of Philox, which numpy keeps stable; `Generator.permutation` may change.
    """
    bits = np.random.Philox(key=int.from_bytes(_digest("permutation", *key)[:16]))
    return np.argsort(bits.random_raw(count), kind="stable")


@lru_cache(maxsize=4)
def _order(num_prompts: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return permutation(num_prompts, seed, epoch)


def _digest(purpose: str, *key: int) -> bytes:
    return hashlib.sha256(f"{purpose}:{','.join(map(str, key))}".encode()).digest()
