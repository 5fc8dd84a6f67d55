"""Corpus and questions from pycountry's table of languages (ISO 639-3). Downloads nothing.

Each language is a passage, such as "Tamang, Western [tdg]", with the inverted name from ISO 639-3.
The answer to its question, "Tamang, Western", is the code in brackets, which occurs only in the
retrieved passages. A question is used only if it meets two conditions. All hits share a word with
the question, so that the right hit cannot be chosen without reading. Only the right hit has
the last word of the question next to its code: a model of two layers can use no other word.
"""

import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pycountry

from raggrpo_retriever.corpus import Passage
from raggrpo_retriever.index import Bm25Index

TOP_K = 3
MAX_NAME_CHARACTERS = 32
"""Maximum length of a name; longer names, which would lengthen all batches, are excluded."""
VALIDATION_QUESTIONS = 256


@dataclass(frozen=True, slots=True)
class Record:
    """A language and its ISO 639-3 code."""

    name: str
    code: str

    @property
    def question(self) -> str:
        """The question, which is also the search query."""
        return self.name

    @property
    def answer(self) -> str:
        """The accepted answer: one token of the model, with its leading space."""
        return f" [{self.code}]"

    @property
    def words(self) -> frozenset[str]:
        """The words of the name, in lower case."""
        return frozenset(re.findall(r"\w+", self.name.lower()))

    @property
    def last_word(self) -> str:
        """The last word of the name, which precedes the code in the passage."""
        return self.name.split()[-1]

    def passage(self, code: str = "") -> str:
        """Return the passage of the record, with `code` in place of its code if specified."""
        return f"{self.name} [{code or self.code}]"


@dataclass(frozen=True, slots=True)
class Question:
    """The record that a question is about, and BM25's hits for the question."""

    record: Record
    hits: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Questions:
    """Questions in random order; no language is in both splits."""

    train: tuple[Question, ...]
    validation: tuple[Question, ...]


def load_records() -> list[Record]:
    """Return the languages with short and unique names, in the order of the ISO table."""
    named = [
        Record(getattr(language, "inverted_name", language.name), language.alpha_3)
        for language in pycountry.languages
    ]
    short = [record for record in named if len(record.name) <= MAX_NAME_CHARACTERS]
    counts = Counter(record.name for record in short)
    return [record for record in short if counts[record.name] == 1]


def select_questions(records: Sequence[Record], seed: int) -> Questions:
    """Return training and validation questions that meet the conditions of the module docstring."""
    index = Bm25Index([Passage(str(i), r.passage()) for i, r in enumerate(records)])
    results = index.search([record.question for record in records], TOP_K)
    candidates = [
        Question(record, tuple(records[int(hit.passage.id)] for hit in hits))
        for record, hits in zip(records, results, strict=True)
    ]
    questions = [each for each in candidates if _requires_reading(each)]
    random.Random(seed).shuffle(questions)
    return Questions(
        train=tuple(questions[VALIDATION_QUESTIONS:]),
        validation=tuple(questions[:VALIDATION_QUESTIONS]),
    )


def write_corpus(records: Iterable[Record], path: Path) -> None:
    """Write one line of JSON per record, with the keys `id` and `contents`."""
    lines = [
        json.dumps({"id": str(i), "contents": record.passage()}, ensure_ascii=False) + "\n"
        for i, record in enumerate(records)
    ]
    path.write_text("".join(lines), encoding="utf-8")


def write_questions(questions: Iterable[Question], path: Path) -> None:
    """Write a parquet file with the columns `prompt` and `answer`."""
    rows = [{"prompt": q.record.question, "answer": q.record.answer.strip()} for q in questions]
    pq.write_table(pa.Table.from_pylist(rows), path)


def _requires_reading(question: Question) -> bool:
    record = question.record
    if record not in question.hits or len(question.hits) < TOP_K:
        return False
    others = [other for other in question.hits if other != record]
    is_similar = all(record.words & other.words for other in others)
    return is_similar and all(record.last_word != other.last_word for other in others)
