"""In-memory search over one corpus: the index interface, and BM25.

Hits of equal score are in corpus order.
"""

import logging
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import bm25s
import numpy as np

from .corpus import Passage

logging.getLogger("bm25s").setLevel(logging.WARNING)  # bm25s sets it to DEBUG on import

# Kana, ideographs and Hangul: scripts that do not (reliably) separate words with spaces.
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_RUN = re.compile(rf"(?P<cjk>[{_CJK}]+)|[^\W{_CJK}]+")

MIN_MAX_WORDS = 2_000_000
"""Different words that any corpus may have; each takes about 200 bytes."""
MIN_BYTES_PER_WORD = 64
"""Bytes of text per further different word."""
_BATCH_WORDS = 1 << 16
"""Words of a text after which the number of different words is checked."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage and its score. Larger scores are better; their scale depends on the index."""

    position: int
    """Position in the corpus, from 0."""
    passage: Passage
    score: float


class Index(Protocol):
    """Search over one corpus. Must be thread-safe."""

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """Return at most `top_k` hits per query, best first."""


def tokenize(text: str) -> Iterator[str]:
    """Yield lower-cased words; a run of two or more CJK characters becomes bigrams."""
    for run in _RUN.finditer(text.lower()):
        word = run.group()
        if run["cjk"] and len(word) > 1:
            yield from (word[i : i + 2] for i in range(len(word) - 1))
        else:
            yield word


class TooManyWords(Exception):
    """A corpus has more different words than text of its size has, as random characters have.

    The index needs memory for each word, so that such a corpus may need 60 times its size.
    """


class Bm25Index:
    """BM25 (Lucene's variant, k1 1.5, b 0.75) over the tokens of `tokenize`."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        """Index the passages. Raises TooManyWords."""
        self._passages = passages
        self._vocabulary: dict[str, int] = {}
        self._max_words = float(MIN_MAX_WORDS)
        documents = [self._token_numbers(passage.contents) for passage in passages]
        self._bm25 = bm25s.BM25()
        self._bm25.index(
            (documents, self._vocabulary), create_empty_token=False, show_progress=False
        )

    def _token_numbers(self, text: str) -> "array[int]":
        """Return the numbers of a text's tokens, 4 bytes each: a short text may have millions."""
        vocabulary = self._vocabulary
        self._max_words += len(text.encode()) / MIN_BYTES_PER_WORD
        remaining = (vocabulary.setdefault(token, len(vocabulary)) for token in tokenize(text))
        numbers = array("i")
        while batch := array("i", islice(remaining, _BATCH_WORDS)):
            if len(vocabulary) > self._max_words:
                raise TooManyWords
            numbers.extend(batch)
        return numbers

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """Return at most `top_k` hits per query, best first; each hit has a token of the query."""
        return [self._search_one(query, top_k) for query in queries]

    def _search_one(self, query: str, top_k: int) -> list[Hit]:
        known = [self._vocabulary[t] for t in tokenize(query) if t in self._vocabulary]
        if not known:
            return []
        scores: np.ndarray = self._bm25.get_scores_from_ids(known)  # [N]
        best = _best(scores, top_k)
        return [Hit(i, self._passages[i], float(scores[i])) for i in best if scores[i] > 0]


def _best(scores: np.ndarray, top_k: int) -> list[int]:
    """Return the indices of the `top_k` largest `scores` [N], best first, ties in corpus order."""
    count = min(top_k, len(scores))
    smallest = scores[np.argpartition(scores, -count)[-count]]
    above = np.flatnonzero(scores > smallest)
    level = np.flatnonzero(scores == smallest)[: count - len(above)]
    chosen = np.concatenate([above[np.argsort(-scores[above], kind="stable")], level])
    return [int(position) for position in chosen]
