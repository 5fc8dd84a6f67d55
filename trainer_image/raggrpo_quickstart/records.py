"""Turn pycountry's ISO tables into a corpus and questions about it. Downloads nothing.

Every record is one passage, "Aruba alpha-3 [ABW]". Its question, "Aruba alpha-3", asks for the code
in brackets, which appears only in the retrieved passages. A question is asked only if every passage
found shares a word of the name with it, so that the right one cannot be picked without reading.
"""

import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pycountry

from raggrpo_retriever.corpus import Passage
from raggrpo_retriever.index import Bm25Index

TOP_K = 3
MAX_NAME = 24
"""In characters: the few longer names would determine the length of every batch."""
VALIDATION_QUESTIONS = 256

_KINDS: tuple[tuple[Iterable[Any], dict[str, str]], ...] = (
    (pycountry.countries, {"alpha-2": "alpha_2", "alpha-3": "alpha_3", "numeric": "numeric"}),
    (pycountry.currencies, {"currency": "alpha_3", "currency-number": "numeric"}),
    (pycountry.languages, {"language": "alpha_3"}),
)
"""Each table with its kinds of code: name in a passage → attribute in the table."""


@dataclass(frozen=True, slots=True)
class Record:
    """A country, currency or language and one of its ISO codes."""

    name: str
    kind: str
    code: str

    @property
    def question(self) -> str:
        """The question, which is also the search query."""
        return f"{self.name} {self.kind}"

    @property
    def answer(self) -> str:
        """The expected answer: one token of the model, including the leading space."""
        return f" [{self.code}]"

    @property
    def words(self) -> frozenset[str]:
        """The words of the name, in lower case."""
        return frozenset(re.findall(r"\w+", self.name.lower()))

    def passage(self, code: str = "") -> str:
        """Return the record's passage in the corpus, or the same with another code."""
        return f"{self.question} [{code or self.code}]"


@dataclass(frozen=True, slots=True)
class Question:
    """A record to ask for, and the records that BM25 finds for it."""

    record: Record
    found: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Questions:
    """Questions in random order; no record is asked for in both parts."""

    train: tuple[Question, ...]
    validation: tuple[Question, ...]


def load_records() -> list[Record]:
    """Return all records with short names and unambiguous questions, in ISO table order."""
    records = [
        Record(item.name, kind, getattr(item, field))
        for table, kinds in _KINDS
        for item in table
        for kind, field in kinds.items()
        if len(item.name) <= MAX_NAME
    ]
    asked = Counter(record.question for record in records)
    return [record for record in records if asked[record.question] == 1]


def ask(records: Sequence[Record], seed: int) -> Questions:
    """Ask for every record in its own BM25 top 3, if all three share a word of its name."""
    index = Bm25Index([Passage(str(i), r.passage()) for i, r in enumerate(records)])
    hits = index.search([record.question for record in records], TOP_K)
    found = [tuple(records[int(hit.passage.id)] for hit in each) for each in hits]
    asked = [
        Question(r, f)
        for r, f in zip(records, found, strict=True)
        if r in f and all(r.words & other.words for other in f)
    ]
    random.Random(seed).shuffle(asked)
    # A name's questions are held out together: a country or currency has several codes.
    held_out = {question.record.name for question in asked[:VALIDATION_QUESTIONS]}
    return Questions(
        train=tuple(q for q in asked if q.record.name not in held_out),
        validation=tuple(q for q in asked if q.record.name in held_out),
    )


def write_corpus(records: Iterable[Record], path: Path) -> None:
    """Write one line {"id", "contents"} per record."""
    lines = [
        json.dumps({"id": str(i), "contents": record.passage()}, ensure_ascii=False) + "\n"
        for i, record in enumerate(records)
    ]
    path.write_text("".join(lines), encoding="utf-8")


def write_questions(questions: Iterable[Question], path: Path) -> None:
    """Write a parquet file with the columns `prompt` and `answer`."""
    rows = [{"prompt": q.record.question, "answer": q.record.answer.strip()} for q in questions]
    pq.write_table(pa.Table.from_pylist(rows), path)
