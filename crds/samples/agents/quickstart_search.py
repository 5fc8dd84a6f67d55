"""The retrieval of the sample applications: BM25 over a corpus of lines of JSON with `contents`."""

import json
import math
import os
import re
from collections import Counter, defaultdict
from pathlib import Path

K1, B = 1.5, 0.75
corpus = Path(__file__).parents[1] / "input" / "corpus.jsonl"
lines = Path(os.environ.get("QUICKSTART_CORPUS", corpus)).read_text(encoding="utf-8").splitlines()
passages: list[str] = [json.loads(line)["contents"] for line in lines]


def words(text: str) -> list[str]:
    """Return the words of a text, in lower case."""
    return re.findall(r"\w+", text.lower())


def make_index() -> dict[str, dict[int, float]]:
    """Return the score of each passage for each of its words."""
    counts = [Counter(words(passage)) for passage in passages]
    mean = sum(each.total() for each in counts) / len(counts)
    numbers = Counter(word for each in counts for word in each)
    idf = {word: math.log(1 + (len(counts) - n + 0.5) / (n + 0.5)) for word, n in numbers.items()}
    scores: dict[str, dict[int, float]] = defaultdict(dict)
    for i, each in enumerate(counts):
        norm = K1 * (1 - B + B * each.total() / mean)
        for word, count in each.items():
            scores[word][i] = idf[word] * count / (count + norm)
    return scores


index = make_index()


def search(query: str, top_k: int = 3) -> list[str]:
    """Return the passages with the highest scores, in the order of the corpus."""
    scores: dict[int, float] = defaultdict(float)
    for word in words(query):
        for i, score in index.get(word, {}).items():
            scores[i] += score
    best = sorted(scores, key=lambda i: (-scores[i], i))[:top_k]
    return [passages[i] for i in sorted(best)]
