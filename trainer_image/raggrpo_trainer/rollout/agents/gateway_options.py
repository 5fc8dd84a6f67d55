"""The settings of the gateway and of its parser, as the job specifies them."""

from pathlib import Path

from raggrpo_api.spec.agent import AgentSpec
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_trainer.data.tokenizer import Tokenizer, end_token_ids
from raggrpo_trainer.gateway.gateway import GatewayOptions

from .tool_parsers import default_tool_parser


def gateway_options(
    config: TrainerConfig, agent: AgentSpec, tokenizer: Tokenizer
) -> GatewayOptions:
    """Return the settings of the gateway."""
    return GatewayOptions(
        max_model_length=config.data.max_sequence_length,
        max_tokens=config.data.max_response_length,
        max_turns=agent.max_turns,
        stop_token_ids=tuple(sorted(end_token_ids(tokenizer, Path(config.model.path)))),
        chat_template=config.data.chat_template,
        policy_models=tuple(agent.policy_models),
    )


def tool_parser_name(config: TrainerConfig, agent: AgentSpec, tokenizer: Tokenizer) -> str:
    """Return the specified parser of tool calls, or that of the chat template, or ""."""
    template = config.data.chat_template or tokenizer.chat_template
    return agent.tool_parser or default_tool_parser(template if isinstance(template, str) else "")
