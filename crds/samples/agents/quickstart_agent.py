"""The quickstart's task as an application of the `openai` package, which knows nothing of training.

It searches a corpus, asks a model and returns the answer with the passages. Try it with any server:
    OPENAI_BASE_URL=http://localhost:8000/v1 OPENAI_API_KEY=x QUICKSTART_CORPUS=corpus.jsonl \
        python quickstart_agent.py "Tamang, Western"
"""

import sys

from openai import OpenAI
from quickstart_search import search

client = OpenAI()


def answer(request: dict[str, str]) -> dict[str, object]:
    """Answer {"question": ...} as {"answer": ..., "passages": [...]}."""
    passages = search(request["question"])
    prompt = "".join(f"{passage}\n" for passage in passages) + request["question"]
    completion = client.completions.create(model="policy", prompt=prompt, max_tokens=4)
    return {"answer": completion.choices[0].text, "passages": passages}


if __name__ == "__main__":
    print(answer({"question": sys.argv[1]}))
