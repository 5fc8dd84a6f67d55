"""The quickstart's task with LlamaIndex, in an application that knows nothing of training.

pip install llama-index-core llama-index-llms-openai-like
OPENAI_API_BASE=http://localhost:8000/v1 OPENAI_API_KEY=x QUICKSTART_CORPUS=corpus.jsonl \
        python quickstart_llamaindex.py "Tamang, Western"
"""

import sys

from llama_index.core import PromptTemplate, QueryBundle
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.llms.openai_like import OpenAILike
from quickstart_search import search


class Retriever(BaseRetriever):
    """Returns passages of the corpus."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        passages = search(query_bundle.query_str)
        return [NodeWithScore(node=TextNode(text=passage)) for passage in passages]


model = OpenAILike(model="policy", is_chat_model=True, max_tokens=4)
retriever = Retriever()
prompt = PromptTemplate("{context}{question}")


def answer(request: dict[str, str]) -> dict[str, object]:
    """Answer {"question": ...} as {"answer": ..., "passages": [...]}."""
    passages = [node.text for node in retriever.retrieve(request["question"])]
    context = "".join(f"{passage}\n" for passage in passages)
    text = model.predict(prompt, context=context, question=request["question"])
    return {"answer": text, "passages": passages}


if __name__ == "__main__":
    print(answer({"question": sys.argv[1]}))
