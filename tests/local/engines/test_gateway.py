"""The gateway in front of the real vLLM engine, with vLLM's parsers and OpenAI's client."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.builders.trainer.gateway_models import write_byte_model

PROBE = Path(__file__).parents[2] / "support" / "engines" / "gateway_probe.py"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = write_byte_model(tmp_path_factory.mktemp("model"))
    done = subprocess.run(
        [sys.executable, str(PROBE), str(folder)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(PROBE.parents[2]), *sys.path])},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_logprobs_of_rows_match_those_of_transformers(measured: Any) -> None:
    assert measured["gap"] <= 1e-4
    assert measured["sampled"] > 300
    assert measured["rows"] > 6


def test_rows_do_not_depend_on_order_of_trajectories(measured: Any) -> None:
    assert measured["order_free"]


def test_parser_process_parses_as_vllm(measured: Any) -> None:
    call = ["search", '{"query": "fox"}']
    assert measured["parsed"] == [
        ["", [call], False],
        ["so\n", [call], False],
        ['<tool_call>{"name":', [], True],
        ["plain", [], False],
    ]


def test_messages_reach_template_as_in_vllm(measured: Any) -> None:
    assert measured["rendered"] == measured["served"]


def test_tools_reach_template_as_in_vllm(measured: Any) -> None:
    assert json.dumps(measured["tools"]) == json.dumps(measured["served_tools"])


def test_content_format_of_template_is_detected_as_in_vllm(measured: Any) -> None:
    assert all(ours == served for ours, served in measured["content_formats"])
