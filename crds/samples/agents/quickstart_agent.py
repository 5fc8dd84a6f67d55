"""The quickstart's task as an application of the `openai` package, which knows nothing of training.

It searches a corpus, asks a model and returns the answer with the passages. Try it with any server:
    OPENAI_BASE_URL=http://localhost:8000/v1 OPENAI_API_KEY=x QUICKSTART_CORPUS=corpus.jsonl \
        python quickstart_agent.py "Tamang, Western"
"""

import json
import os
import re
import sys
from pathlib import Path

from openai import OpenAI

client = OpenAI()
lines = Path(os.environ["QUICKSTART_CORPUS"]).read_text(encoding="utf-8").splitlines()
passages = [json.loads(line)["contents"] for line in lines]


def words(text: str) -> set[str]:
    """Return the words of a text, in lower case."""
    return set(re.findall(r"\w+", text.lower()))


def search(query: str, top_k: int = 3) -> list[str]:
    """Return the passages that share most words with the query, in the order of the corpus."""
    query_words = words(query)

    def similarity(passage: str) -> float:
        return len(query_words & words(passage)) / len(words(passage))

    return sorted(sorted(passages, key=similarity, reverse=True)[:top_k])


def answer(request: dict[str, str]) -> dict[str, object]:
    """Answer {"question": ...} as {"answer": ..., "passages": [...]}."""
    hits = search(request["question"])
    prompt = "".join(f"{passage}\n" for passage in hits) + request["question"]
    completion = client.completions.create(model="policy", prompt=prompt, max_tokens=4)
    return {"answer": completion.choices[0].text, "passages": hits}


if __name__ == "__main__":
    print(answer({"question": sys.argv[1]}))
