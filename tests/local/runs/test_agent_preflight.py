"""Preflight of an agent that calls tools, with vLLM's own parsers and OpenAI's client."""

from pathlib import Path

import pytest

from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import CheckId, CheckState
from raggrpo_trainer.preflight.run import run_checks
from support.builders.trainer.gateway_models import byte_tokenizer
from support.builders.trainer.preflight import check_of, make_fit_config

CODE = Path(__file__).parents[2] / "support" / "agents"


def make_job_config(folder: Path, tool_parser: str) -> TrainerConfig:
    agent = {"python": "openai_tools:answer", "toolParser": tool_parser}
    changes = {"rollout.agent": agent, "reward.codeFrom": {"path": str(CODE)}}
    config = make_fit_config(folder, changes)
    byte_tokenizer().save_pretrained(config.model.path)
    return config


@pytest.mark.row("F5")
async def test_agent_is_ready_when_parser_of_its_template_reads_its_calls(tmp_path: Path) -> None:
    result = await run_checks(make_job_config(tmp_path, ""), {})
    check = check_of(result, CheckId.AGENT_READY)

    assert check.state is CheckState.PASSED, check.evidence
    assert "calls of the scripted policy: 2, rows: 1" in check.evidence
    assert "a second run sent the same requests" in check.evidence


@pytest.mark.row("F5")
@pytest.mark.parametrize(
    ("tool_parser", "evidence"),
    [
        ("granite", "rollout.agent.toolParser (granite) finds no call in '<tool_call>"),
        ("hermess", "rollout.agent.toolParser, reasoningParser (hermess): "),
    ],
)
async def test_agent_is_not_ready_with_parser_that_reads_no_calls(
    tmp_path: Path, tool_parser: str, evidence: str
) -> None:
    result = await run_checks(make_job_config(tmp_path, tool_parser), {})
    check = check_of(result, CheckId.AGENT_READY)

    assert check.state is CheckState.FAILED, check.evidence
    assert evidence in check.evidence
    assert "set rollout.agent.toolParser to one of vLLM's parsers" in check.evidence
    assert result.exit_code == ExitCode.AGENT_ERROR
