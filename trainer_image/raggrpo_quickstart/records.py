"""Turn pycountry's table of languages (ISO 639-3) into a corpus and questions. Downloads nothing.

Every language is one passage, "Tamang, Western [tdg]", under the standard's inverted name. Its
question, "Tamang, Western", asks for the code in brackets, which appears only in the retrieved
passages. A question is asked only if every passage found shares a word with it, so that the right
one cannot be picked without reading, and if its last word tells it from the other passages: that
word stands next to the code, where a model of two layers can see both.
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
MAX_NAME = 32
"""In characters: the few longer names would determine the length of every batch."""
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
        """The expected answer: one token of the model, including the leading space."""
        return f" [{self.code}]"

    @property
    def words(self) -> frozenset[str]:
        """The words of the name, in lower case."""
        return frozenset(re.findall(r"\w+", self.name.lower()))

    @property
    def last_word(self) -> str:
        """The word that stands next to the code."""
        return self.name.split()[-1]

    def passage(self, code: str = "") -> str:
        """Return the record's passage in the corpus, or the same with another code."""
        return f"{self.name} [{code or self.code}]"


@dataclass(frozen=True, slots=True)
class Question:
    """A record to ask for, and the records that BM25 finds for it."""

    record: Record
    found: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Questions:
    """Questions in random order; no language is asked for in both parts."""

    train: tuple[Question, ...]
    validation: tuple[Question, ...]


def load_records() -> list[Record]:
    """Return all languages with short and unambiguous names, in ISO table order."""
    named = [
        Record(getattr(language, "inverted_name", language.name), language.alpha_3)
        for language in pycountry.languages
    ]
    short = [record for record in named if len(record.name) <= MAX_NAME]
    seen = Counter(record.name for record in short)
    return [record for record in short if seen[record.name] == 1]


def ask(records: Sequence[Record], seed: int) -> Questions:
    """Ask for every record that can be told from two similar ones in its own BM25 top 3."""
    index = Bm25Index([Passage(str(i), r.passage()) for i, r in enumerate(records)])
    hits = index.search([record.question for record in records], TOP_K)
    found = [tuple(records[int(hit.passage.id)] for hit in each) for each in hits]
    asked = [Question(r, f) for r, f in zip(records, found, strict=True) if _to_be_read(r, f)]
    random.Random(seed).shuffle(asked)
    return Questions(
        train=tuple(asked[VALIDATION_QUESTIONS:]),
        validation=tuple(asked[:VALIDATION_QUESTIONS]),
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


def _to_be_read(record: Record, found: Sequence[Record]) -> bool:
    """Whether only reading the passages found tells the right one, and their last word does."""
    if record not in found or len(found) < TOP_K:
        return False
    others = [other for other in found if other != record]
    alike = all(record.words & other.words for other in others)
    return alike and all(record.last_word != other.last_word for other in others)
