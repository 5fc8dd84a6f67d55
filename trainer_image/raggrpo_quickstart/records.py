"""Turn pycountry's ISO tables into a corpus and questions about it; no model, nothing downloaded.

Every record is one passage, "Code of Aruba [ABW]", and its question, "Code of Aruba", asks for the
code in brackets, which only the retrieved passages hold.
"""

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pycountry

from raggrpo_retriever.corpus import Passage
from raggrpo_retriever.index import Bm25Index

TOP_K = 3
MAX_NAME = 24
"""Characters of a name: the few longer ones would set the length of every batch."""
VALIDATION_QUESTIONS = 256


@dataclass(frozen=True, slots=True)
class Record:
    """A country, currency or language and its ISO code."""

    name: str
    code: str

    @property
    def question(self) -> str:
        """What is asked, and searched for."""
        return f"Code of {self.name}"

    @property
    def answer(self) -> str:
        """What is expected: one token of the model, with the space before it."""
        return f" [{self.code}]"

    def passage(self, code: str = "") -> str:
        """Return what the corpus holds of it, or the same with another code."""
        return f"{self.question} [{code or self.code}]"


@dataclass(frozen=True, slots=True)
class Question:
    """A record that is asked for, and the records that BM25 finds for it."""

    record: Record
    found: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Questions:
    """Questions in random order; no record is asked for in both parts."""

    train: tuple[Question, ...]
    validation: tuple[Question, ...]


def load_records() -> list[Record]:
    """Return all records with names short enough, in the order of the ISO tables."""
    tables: tuple[Iterable[object], ...] = (
        pycountry.countries,
        pycountry.currencies,
        pycountry.languages,
    )
    records = [Record(item.name, item.alpha_3) for table in tables for item in table]  # type: ignore[attr-defined]
    return [record for record in records if len(record.name) <= MAX_NAME]


def ask(records: Sequence[Record], seed: int) -> Questions:
    """Ask for every record whose passage BM25 finds among the first three."""
    index = Bm25Index([Passage(str(i), r.passage()) for i, r in enumerate(records)])
    hits = index.search([record.question for record in records], TOP_K)
    found = [tuple(records[int(hit.passage.id)] for hit in each) for each in hits]
    asked = [Question(r, f) for r, f in zip(records, found, strict=True) if r in f]
    random.Random(seed).shuffle(asked)
    # Names that two tables share would be asked for in both parts.
    held_out = {question.record.name for question in asked[:VALIDATION_QUESTIONS]}
    return Questions(
        train=tuple(q for q in asked if q.record.name not in held_out),
        validation=tuple(q for q in asked if q.record.name in held_out),
    )


def write_corpus(records: Iterable[Record], path: Path) -> None:
    """Write one line {"id", "contents"} for each record."""
    lines = [
        json.dumps({"id": str(i), "contents": record.passage()}, ensure_ascii=False) + "\n"
        for i, record in enumerate(records)
    ]
    path.write_text("".join(lines), encoding="utf-8")


def write_questions(questions: Iterable[Question], path: Path) -> None:
    """Write a parquet file with the columns `prompt` and `answer`."""
    rows = [{"prompt": q.record.question, "answer": q.record.answer.strip()} for q in questions]
    pq.write_table(pa.Table.from_pylist(rows), path)
