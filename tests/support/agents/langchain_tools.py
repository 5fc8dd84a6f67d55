"""An agent as written with LangChain. It knows nothing of training."""

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from register import find


@tool
def search(query: str) -> str:
    """Search the register."""
    return find(query)


agent = create_agent(ChatOpenAI(model="gpt-4o-mini"), [search], system_prompt="Search first.")


def answer(request):
    state = agent.invoke({"messages": [("user", request["question"])]})
    return str(state["messages"][-1].content)
