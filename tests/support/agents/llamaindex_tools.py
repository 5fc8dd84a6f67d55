"""An agent as written with LlamaIndex, which streams. It knows nothing of training."""

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike
from register import find


def search(query: str) -> str:
    """Search the register."""
    return find(query)


llm = OpenAILike(model="qwen", is_chat_model=True, is_function_calling_model=True)
agent = FunctionAgent(tools=[search], llm=llm, system_prompt="Search first.")


async def answer(request):
    return str(await agent.run(request["question"]))
