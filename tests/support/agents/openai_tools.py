"""An agent as written with the `openai` package. It knows nothing of training."""

import json

from openai import OpenAI
from register import find

client = OpenAI()
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search the register.",
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string"}},
                "required": ["query"],
            },
        },
    }
]


def answer(request):
    messages = [
        {"role": "system", "content": "Search first."},
        {"role": "user", "content": request["question"]},
    ]
    while True:
        completion = client.chat.completions.create(
            model="gpt-4o-mini", messages=messages, tools=TOOLS
        )
        message = completion.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message)
        for call in message.tool_calls:
            content = find(json.loads(call.function.arguments)["query"])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
