"""The request to an application for one sample. Pure."""

from typing import Any

from raggrpo_api.fields.json_values import render_template
from raggrpo_api.spec.agent import AgentSpec
from raggrpo_trainer.data.prompt_files import Prompt

from .runner import AgentSlot


def agent_request(agent: AgentSpec, prompt: Prompt, message_id: str, slot: AgentSlot) -> Any:
    """Return the request with the values of its placeholders."""
    values = {
        **prompt.columns,
        "question": prompt.query,
        "prompt": prompt.text,
        "context": prompt.context,
        "message_id": message_id,
        "baseUrl": slot.base_url,
        "apiKey": slot.key,
    }
    return render_template(agent.request, values)
