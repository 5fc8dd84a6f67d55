"""The quickstart's task with LangChain, in an application that knows nothing of training.

pip install langchain-openai
OPENAI_BASE_URL=http://localhost:8000/v1 OPENAI_API_KEY=x QUICKSTART_CORPUS=corpus.jsonl \
        python quickstart_langchain.py "Tamang, Western"
"""

import sys

from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_openai import ChatOpenAI
from quickstart_search import search


class Retriever(BaseRetriever):
    """Returns passages of the corpus."""

    def _get_relevant_documents(self, query: str, **_: object) -> list[Document]:
        return [Document(page_content=passage) for passage in search(query)]


retriever = Retriever()
prompt = ChatPromptTemplate.from_template("{context}{question}")
chain = prompt | ChatOpenAI(model="policy", max_tokens=4) | StrOutputParser()


def answer(request: dict[str, str]) -> dict[str, object]:
    """Answer {"question": ...} as {"answer": ..., "passages": [...]}."""
    passages = [document.page_content for document in retriever.invoke(request["question"])]
    context = "".join(f"{passage}\n" for passage in passages)
    text = chain.invoke({"context": context, "question": request["question"]})
    return {"answer": text, "passages": passages}


if __name__ == "__main__":
    print(answer({"question": sys.argv[1]}))
