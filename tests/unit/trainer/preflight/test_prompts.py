import resource
import sys
from pathlib import Path
from typing import Any

import pytest

from raggrpo_api.trainer.preflight import CheckState
from raggrpo_trainer.data import template_time
from raggrpo_trainer.data.prompt_files import Prompt
from raggrpo_trainer.data.tokenizer import MAX_TOKEN_CHARACTERS, load_tokenizer, prompt_ids
from raggrpo_trainer.preflight import limited_tokenizer
from raggrpo_trainer.preflight.finding import Finding
from raggrpo_trainer.preflight.prompts import MIN_MEASURED_ROWS, check_lengths
from support.builders.trainer.preflight import make_fit_config

CHAT = "{% for m in messages %}{{ m.content }} {% endfor %}"
WITH_TOOLS = (
    "{{ tools[0].name if tools }}{% for m in messages %}{{ m.content }} "
    "{{ m.tool_calls[0].name if m.tool_calls }}{% endfor %}"
)
ONLY = (
    "{{% for m in messages %}}{{% if m.role in {roles} %}}{{{{ m.content }}}}"
    "{{% endif %}}{{% endfor %}}"
)
SYSTEM = {"role": "system", "content": "Be brief."}
TURN = {"role": "assistant", "content": "Hello."}


def make_prompt(text: str = "Who?", index: int = 0, **values: Any) -> Prompt:
    return Prompt(index, text, text, (), "", **values)


def check(
    folder: Path, prompts: list[Prompt], validation: list[Prompt] | None = None, **data: Any
) -> Finding:
    """Return the finding about prompts with a limit of 64 tokens, one per byte."""
    changes = {"maxPromptLength": 64, "chatTemplate": CHAT, **data}
    config = make_fit_config(folder, {f"data.{name}": value for name, value in changes.items()})
    return check_lengths(config, prompts, validation or [], load_tokenizer(config.model.path))


@pytest.mark.parametrize(
    "expression",
    [
        "('a' * 700000000) | length",
        "(messages[0].content[:1] * 700000000) | length",
        "messages[0].content[:1] | center(700000000) | length",
        "'%700000000d' % 1 | int",
    ],
)
def test_template_that_allocates_much_memory_is_rejected(tmp_path: Path, expression: str) -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    finding = check(tmp_path, [make_prompt()], chatTemplate=f"{CHAT}{{{{ {expression} }}}}")
    assert finding.state is CheckState.FAILED
    assert "is rejected by the chat template (MemoryError" in finding.evidence
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.parametrize(
    "expression",
    [
        "{% for i in range(3000) %}{% for j in range(3000) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(18) }}",
        "{{ range(90000)|map('string')|map('replace', '0', '1')|list|length }}",
    ],
)
def test_template_that_takes_much_time_is_rejected(
    tmp_path: Path, expression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_time, "MAX_TEMPLATE_SECONDS", 0.05)
    before = sys.gettrace()

    finding = check(tmp_path, [make_prompt()], chatTemplate=f"{CHAT}{expression}")

    assert finding.state is CheckState.FAILED
    assert "prompt 0 is rejected by the chat template (TemplateTooSlow" in finding.evidence
    assert sys.gettrace() is before


def test_time_of_all_prompts_together_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limited_tokenizer, "MAX_TEMPLATE_SECONDS", 0.0)
    finding = check(tmp_path, [make_prompt()])
    assert finding.state is CheckState.FAILED
    assert "(TemplateTooSlow: more than 0 seconds of CPU time for all prompts" in finding.evidence


@pytest.mark.row("D16")
@pytest.mark.parametrize(
    ("roles", "omitted"),
    [
        (["user"], "messages with role assistant, messages with role system:"),
        (["user", "system"], "messages with role assistant:"),
        (["user", "system", "assistant"], ""),
    ],
)
def test_messages_that_template_omits_are_a_warning(
    tmp_path: Path, roles: list[str], omitted: str
) -> None:
    prompts = [make_prompt(), make_prompt(index=1, earlier=(SYSTEM, TURN))]
    finding = check(tmp_path, prompts, chatTemplate=ONLY.format(roles=roles))
    assert finding.state is (CheckState.WARNED if omitted else CheckState.PASSED)
    assert finding.evidence.startswith(f"the chat template omits {omitted} row 1" * bool(omitted))


def test_tools_that_template_ignores_are_a_warning(tmp_path: Path) -> None:
    prompts = [make_prompt(tools=({"name": "search"},))]
    assert "omits the tools" in check(tmp_path, prompts).evidence
    with_tools = "{{ tools[0].name if tools }}" + CHAT
    assert check(tmp_path, prompts, chatTemplate=with_tools).state is CheckState.PASSED


@pytest.mark.parametrize(
    ("prompt", "is_truncatable"),
    [
        (make_prompt("x" * 100), True),
        (make_prompt("x" * 100, earlier=({"role": "system", "content": "s" * 59},)), True),
        (make_prompt("x" * 100, earlier=({"role": "system", "content": "s" * 70},)), False),
        (make_prompt("x", earlier=({"role": "assistant", "content": "s" * 70},)), False),
        (make_prompt("x", tools=({"name": "s" * 70},)), False),
    ],
)
def test_prompt_is_truncatable_if_rest_fits(
    tmp_path: Path, prompt: Prompt, is_truncatable: bool
) -> None:
    finding = check(tmp_path, [prompt], allowTruncation=True, chatTemplate=WITH_TOOLS)
    assert (finding.state is CheckState.PASSED) == is_truncatable, finding.evidence
    assert ("row 0 has" in finding.evidence) != is_truncatable


@pytest.mark.parametrize(
    "values",
    [
        {"tools": ({"name": "s" * 70},)},
        {"earlier": ({"role": "assistant", "content": "", "tool_calls": [{"name": "s" * 70}]},)},
    ],
)
def test_tools_and_tool_calls_count_when_longest_prompts_are_selected(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    others = [make_prompt("x" * 20, index=index) for index in range(1, MIN_MEASURED_ROWS + 21)]
    prompts = [make_prompt(**values), *others]
    finding = check(tmp_path, prompts, allowTruncation=True, chatTemplate=WITH_TOOLS)
    assert finding.state is CheckState.FAILED
    assert "row 0 has" in finding.evidence
    assert "tools" in finding.evidence


def test_validation_prompt_that_is_too_long_is_named(tmp_path: Path) -> None:
    finding = check(tmp_path, [make_prompt()], [make_prompt("x" * 100, index=7)])
    assert finding.state is CheckState.FAILED
    assert "at most 101 (validation row 7)" in finding.evidence


def test_row_of_many_characters_is_measured_without_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenized: list[int] = []

    def record(text: str, *arguments: Any) -> tuple[int, ...]:
        tokenized.append(len(text))
        return prompt_ids(text, *arguments)

    monkeypatch.setattr("raggrpo_trainer.data.prompts.prompt_ids", record)
    finding = check(tmp_path, [make_prompt("x" * (16 << 20))])
    assert finding.state is CheckState.FAILED
    assert "65537 (row 0)" in finding.evidence
    assert "set data.allowTruncation: true" in finding.evidence
    assert max(tokenized, default=0) <= 64 * MAX_TOKEN_CHARACTERS
