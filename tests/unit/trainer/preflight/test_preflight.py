import asyncio
import errno
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file, save_file
from starlette.responses import PlainTextResponse, Response
from tokenizers import Tokenizer

from raggrpo_api import limits
from raggrpo_api.spec.lora import LoraSpec
from raggrpo_api.spec.training import RowLayout
from raggrpo_api.trainer.config import TrainerConfig, schema_digest
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import CheckId, CheckState, Facts, PreflightResult
from raggrpo_api.trainer.sealed_config import seal
from raggrpo_trainer.checkpoint.fence import Fence
from raggrpo_trainer.preflight.finding import finding_for, not_evaluated
from raggrpo_trainer.preflight.model import check_model
from raggrpo_trainer.preflight.run import exit_code, result_of, run_checks, to_bytes
from support.builders.data.rows import write_rows
from support.builders.data.verl_files import gsm8k_row, search_row, write_jsonl, write_parquet
from support.builders.trainer.preflight import (
    PARAMETERS,
    check_of,
    make_fit_config,
    make_model_folder,
)
from support.servers.faulty_server import (
    FaultyServer,
    Received,
    always,
    rag_chat,
    search_r1,
    serving,
)

FAILED, PASSED = CheckState.FAILED, CheckState.PASSED


async def check_config(
    config: TrainerConfig, env: Mapping[str, str] | None = None
) -> PreflightResult:
    return await run_checks(config, env or {})


def run_preflight(config: TrainerConfig, **env: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [sys.executable, "-m", "raggrpo_trainer.preflight"],
        env={**os.environ, **seal(config.to_json()), **env},
        capture_output=True,
        timeout=120,
        check=False,
    )


def make_retrieval(*endpoints: dict[str, Any], mode: str = "Prompt") -> dict[str, Any]:
    return {"retrieval.mode": mode, "retrieval.endpoints": list(endpoints)}


@pytest.mark.row("A12")
def test_valid_job_passes_all_checks_and_yields_facts(tmp_path: Path) -> None:
    output = tmp_path / "result.json"

    completed = run_preflight(make_fit_config(tmp_path), RAGGRPO_PREFLIGHT_OUTPUT=str(output))

    assert completed.returncode == 0, completed.stderr.decode()
    result = PreflightResult.model_validate_json(output.read_bytes())
    assert output.stat().st_mode & 0o777 == 0o600
    assert {c.id for c in result.checks} == set(CheckId) - {
        CheckId.RULES_ON_FACTS,
        CheckId.START_CHECKPOINT,
        CheckId.LORA_TARGETS,
        CheckId.AGENT_READY,
    }
    assert [c for c in result.checks if c.state is FAILED] == []
    assert (result.exit_code, result.truncated) == (0, False)
    assert result.facts == Facts(
        parameters=PARAMETERS,
        layers=3,
        hidden_size=8,
        heads=4,
        kv_heads=2,
        head_size=32,
        mlp_size=16,
        vocabulary=256,
        context_length=2048,
        row_layout=RowLayout.SHARED_PREFIX,
        rows=20,
        ray_version=result.facts.ray_version,
        schema_digest=schema_digest(),
    )
    assert result.facts.ray_version.startswith("2.")


def test_result_is_written_to_stdout_without_output_file(tmp_path: Path) -> None:
    config = make_fit_config(tmp_path, {"data.trainFiles": [str(tmp_path / "none.jsonl")]})
    completed = run_preflight(config)
    result = PreflightResult.model_validate_json(completed.stdout)
    assert (completed.returncode, result.exit_code) == (0, ExitCode.DATA_ERROR)


def test_configuration_of_other_schema_version_is_rejected(tmp_path: Path) -> None:
    config = make_fit_config(tmp_path).model_copy(update={"schema_digest": "other"})
    completed = run_preflight(config)
    assert (completed.returncode, completed.stdout) == (ExitCode.CONFIG_ERROR, b"")
    assert b"schema other" in completed.stderr
    assert b"Traceback" not in completed.stderr


def test_preflight_does_not_import_torch_ray_or_vllm() -> None:
    code = (
        "import sys, raggrpo_trainer.preflight.__main__ as m;"
        "from transformers import PreTrainedTokenizerFast;"
        "print(sorted({'torch', 'ray', 'vllm'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment)

    assert completed.stdout.decode().strip() == "[]", completed.stderr.decode()


async def test_preflight_reports_all_problems_at_once(tmp_path: Path) -> None:
    config = make_fit_config(
        tmp_path,
        {
            "model.path": "/nowhere/model",
            "data.trainFiles": ["/nowhere/train.jsonl", "/nowhere/more.parquet"],
            "reward.functions": [{"name": "Python", "python": "no_such_module:score"}],
        },
    )

    result = await check_config(config)

    paths = check_of(result, CheckId.PATHS).evidence
    for path in ("/nowhere/model", "/nowhere/train.jsonl", "/nowhere/more.parquet"):
        assert path in paths
    assert {c.id for c in result.checks if c.state is FAILED} == {
        CheckId.PATHS,
        CheckId.MODEL_READABLE,
        CheckId.DATA_READABLE,
        CheckId.REWARD_CODE,
    }
    assert check_of(result, CheckId.SAMPLE_LENGTHS).state is CheckState.NOT_EVALUATED
    assert check_of(result, CheckId.CHECKPOINT_SPACE).state is CheckState.NOT_EVALUATED
    assert result.exit_code == ExitCode.DATA_ERROR


# --- model


def truncate_weights(model: Path) -> None:
    weights = model / "b.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncate_weights, ["b.safetensors has", "copy the file again"]),
        (lambda m: (m / "b.safetensors").write_bytes(b"x" * 100), ["is not a safetensors file"]),
        (lambda m: (m / "b.safetensors").write_bytes(b""), ["is not a safetensors file"]),
        (lambda m: (m / "a.safetensors").unlink(), ["lacks a.safetensors", "download the model"]),
        (lambda m: (m / "config.json").unlink(), ["config.json cannot be read"]),
        (lambda m: (m / "config.json").write_text("{"), ["config.json is not JSON"]),
        (lambda m: (m / "config.json").write_text("{}"), ["has no num_attention_heads"]),
        (lambda m: (m / "tokenizer.json").write_text("{}"), ["tokenizer", "cannot be loaded"]),
    ],
)
async def test_damaged_model_file_is_named_in_evidence(
    tmp_path: Path, damage: Any, words: list[str]
) -> None:
    config = make_fit_config(tmp_path)
    damage(tmp_path / "model")
    result = await check_config(config)

    check = check_of(result, CheckId.MODEL_READABLE)
    assert check.state is FAILED
    assert all(word in check.evidence for word in words), check.evidence
    assert result.exit_code == ExitCode.PREFLIGHT_FAILED


def change_config(**change: Any) -> Any:
    def write(model: Path) -> None:
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, **change}))

    return write


def break_index(model: Path) -> None:
    (model / "model.safetensors.index.json").write_text(
        '{"metadata": {}, "weight_map": ["a.safetensors"]}'
    )


def prefix_tensors(prefix: str) -> Any:
    def write(model: Path) -> None:
        for file in model.glob("*.safetensors"):
            save_file({f"{prefix}{n}": t for n, t in load_file(file).items()}, file)

    return write


@pytest.mark.row("D1")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            change_config(quantization_config={"quant_method": "gptq"}),
            ["quantized (gptq)", "full"],
        ),
        (
            lambda m: (m / "adapter_config.json").write_text("{}"),
            ["a model and adapter_config.json", "merge the adapter", "or remove adapter_config.js"],
        ),
        (prefix_tensors("_orig_mod."), ["lacks model.embed_tokens.weight and 21 more", "prefix"]),
        (change_config(num_hidden_layers=4), ["lacks model.layers.3.self_attn.q_proj.weight and"]),
        (change_config(hidden_size=16), ["lacks model.embed_tokens.weight"]),
        (change_config(tie_word_embeddings=False), ["lacks lm_head.weight, which"]),
        (change_config(vocab_size=32), ["lacks model.embed_tokens.weight"]),
        (change_config(num_attention_heads=0), ["has no num_attention_heads"]),
        (break_index, ["has no valid weight_map"]),
        (change_config(text_config=None, num_attention_heads=None), ["has no num_attention_he"]),
    ],
    ids=[
        "quantized",
        "adapter",
        "wrapper prefix",
        "missing layer",
        "hidden size",
        "missing head",
        "vocabulary",
        "zero heads",
        "index",
        "null field",
    ],
)
async def test_incomplete_weights_are_rejected(
    tmp_path: Path, change: Any, words: list[str]
) -> None:
    config = make_fit_config(tmp_path)
    change(tmp_path / "model")
    check = check_of(await check_config(config), CheckId.MODEL_READABLE)
    assert check.state is FAILED
    assert all(word in check.evidence for word in words), check.evidence


async def test_model_tensors_without_model_prefix_are_accepted(tmp_path: Path) -> None:
    config = make_fit_config(tmp_path)
    model = tmp_path / "model"
    for file in model.glob("*.safetensors"):
        save_file({n.removeprefix("model."): t for n, t in load_file(file).items()}, file)
    assert check_of(await check_config(config), CheckId.MODEL_READABLE).state is PASSED


async def test_model_without_safetensors_is_rejected_with_remedy(tmp_path: Path) -> None:
    config = make_fit_config(tmp_path)
    for file in (tmp_path / "model").glob("*.safetensors*"):
        file.unlink()
    (tmp_path / "model" / "pytorch_model.bin").write_bytes(b"")
    check = check_of(await check_config(config), CheckId.MODEL_READABLE)

    assert check.state is FAILED
    assert "save_pretrained" in check.evidence


@pytest.mark.parametrize("weights", ["adapter_model.safetensors", "adapter_model.bin"])
async def test_adapter_without_model_is_rejected_with_one_remedy(
    tmp_path: Path, weights: str
) -> None:
    config = make_fit_config(tmp_path)
    model = tmp_path / "model"
    for file in model.iterdir():
        file.unlink()
    (model / "adapter_config.json").write_text("{}")
    (model / weights).write_bytes(b"x")

    evidence = check_of(await check_config(config), CheckId.MODEL_READABLE).evidence

    assert (
        evidence == f"{model} is an adapter: merge it into its base model and use the merged model"
    )


async def test_model_facts_are_read_without_index_and_from_legacy_names(tmp_path: Path) -> None:
    model = make_model_folder(tmp_path / "gpt")
    for name in ("model.safetensors.index.json", "b.safetensors"):
        (model / name).unlink()
    (model / "a.safetensors").rename(model / "model.safetensors")
    old = {"n_embd": 8, "n_layer": 5, "n_head": 2, "n_positions": 64, "vocab_size": 9}
    (model / "config.json").write_text(json.dumps(old))
    facts = (await check_config(make_fit_config(tmp_path, {"model.path": str(model)}))).facts

    assert (facts.layers, facts.kv_heads) == (5, 2)
    assert 0 < facts.parameters < PARAMETERS
    assert (facts.head_size, facts.context_length) == (4, 64)


@pytest.mark.parametrize(
    ("config", "units"),
    [
        ({"intermediate_size": 9}, 9),
        ({"n_inner": 7}, 7),
        ({"n_inner": None}, 0),
        # Qwen3-MoE, DeepSeek-V3, Mixtral, Hunyuan and Llama 4: units that one token uses
        ({"intermediate_size": 64, "moe_intermediate_size": 4, "num_experts_per_tok": 8}, 64),
        (
            {"moe_intermediate_size": 4, "num_experts_per_tok": 8, "n_shared_experts": 1,
             "intermediate_size": 64},
            68,
        ),
        ({"intermediate_size": 64, "num_local_experts": 8, "num_experts_per_tok": 2}, 136),
        ({"moe_intermediate_size": [4, 6], "moe_topk": [2, 2], "num_shared_expert": [1, 1]}, 26),
        (
            {"intermediate_size": 64, "intermediate_size_mlp": 128, "num_experts_per_tok": 1},
            128,
        ),
        ({"intermediate_size": True}, 0),
    ],
)  # fmt: skip
async def test_mlp_size_counts_experts_active_per_token(
    tmp_path: Path, config: dict[str, Any], units: int
) -> None:
    model = make_model_folder(tmp_path / "other")
    known = json.loads((model / "config.json").read_text())
    known.pop("intermediate_size", None)
    (model / "config.json").write_text(json.dumps(known | config))

    facts = (await check_config(make_fit_config(tmp_path, {"model.path": str(model)}))).facts

    assert facts.mlp_size == units


# --- data


async def test_missing_column_is_reported_with_available_columns(tmp_path: Path) -> None:
    table = tmp_path / "train.parquet"
    pq.write_table(pa.table({"question": ["q"], "solution": ["s"]}), table)
    result = await check_config(make_fit_config(tmp_path, {"data.trainFiles": [str(table)]}))

    check = check_of(result, CheckId.DATA_COLUMNS)
    assert check.state is FAILED
    for word in ("'answer'", "'prompt'", "data.columns.prompt", "question, solution"):
        assert word in check.evidence
    assert check_of(result, CheckId.DATA_READABLE).state is CheckState.NOT_EVALUATED
    assert result.exit_code == ExitCode.DATA_ERROR


async def test_nested_columns_are_listed_by_path(tmp_path: Path) -> None:
    rows = [gsm8k_row("1 + 1?", "2")]
    for file in (
        write_parquet(tmp_path / "verl.parquet", rows),
        write_jsonl(tmp_path / "verl.jsonl", rows),
    ):
        changes = {"data.trainFiles": [file], "data.columns.answer": "reward_model.ground_truth"}
        fit = await check_config(make_fit_config(tmp_path, changes))
        assert check_of(fit, CheckId.DATA_COLUMNS).state is CheckState.PASSED
        assert check_of(fit, CheckId.DATA_READABLE).state is CheckState.PASSED

        wrong = await check_config(make_fit_config(tmp_path, {"data.trainFiles": [file]}))
        check = check_of(wrong, CheckId.DATA_COLUMNS)
        assert check.state is FAILED
        assert "has no column 'answer'" in check.evidence
        assert "reward_model.ground_truth" in check.evidence


@pytest.mark.row("D4")
async def test_unrenderable_conversation_fails_sample_lengths(
    tmp_path: Path,
) -> None:
    plain = gsm8k_row("1 + 1?", "2") | {"reward_model": {"ground_truth": {"target": ["2"]}}}
    file = write_jsonl(tmp_path / "verl.jsonl", [plain, search_row("Who?", ["Ada"])])
    answer = {"data.columns.answer": "reward_model.ground_truth.target"}
    changes = {"data.trainFiles": [file], **answer}

    rejected = await check_config(make_fit_config(tmp_path, changes))
    check = check_of(rejected, CheckId.SAMPLE_LENGTHS)
    assert check.state is FAILED
    assert "prompt 1 has a system prompt" in check.evidence
    assert "data.chatTemplate" in check.evidence
    assert rejected.exit_code == ExitCode.DATA_ERROR

    template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    fit = await check_config(make_fit_config(tmp_path, {**changes, "data.chatTemplate": template}))
    assert check_of(fit, CheckId.SAMPLE_LENGTHS).state is CheckState.PASSED


ONE_ROW = "{% if messages[0].content == 'question 7' %}{{ 1 // 0 }}{% endif %}"


@pytest.mark.row("D4")
@pytest.mark.parametrize(
    ("template", "reported"),
    [
        ("/m/template.jinja", "the chat template omits the question: data.chatTemplate must be"),
        ("{% for m in msgs %}{{ m.content }}{% endfor %}", "omits the question"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        (ONE_ROW + "{{ messages[0].content }}", "ZeroDivisionError"),
    ],
)
async def test_invalid_chat_template_fails_sample_lengths(
    tmp_path: Path, template: str, reported: str
) -> None:
    result = await check_config(make_fit_config(tmp_path, {"data.chatTemplate": template}))
    check = check_of(result, CheckId.SAMPLE_LENGTHS)
    assert check.state is FAILED
    assert reported in check.evidence
    assert result.exit_code == ExitCode.DATA_ERROR


async def test_unexpected_file_format_fails_only_its_check(tmp_path: Path) -> None:
    config = make_fit_config(tmp_path)
    change_config(num_hidden_layers=[3])(tmp_path / "model")
    tokenizer = json.loads((tmp_path / "model" / "tokenizer.json").read_text())
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps([tokenizer]))
    result = await check_config(config)
    assert check_of(result, CheckId.MODEL_READABLE).state is FAILED
    assert check_of(result, CheckId.DATA_READABLE).state is PASSED


# The first word without a token, and a pattern that backtracks too often for the library.
FAILING_RULES: dict[str, tuple[dict[str, Any], str]] = {
    "error": (
        {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "missing"}},
        "Exception: WordLevel error: Missing [UNK] token from the vocabulary",
    ),
    "panic": (
        {
            "pre_tokenizer": {
                "type": "Split",
                "pattern": {"Regex": "zebra(?:(?:(?:[a-z ]|[a-z0-9 ]|[a-z])+)+)+\\d{9}"},
                "behavior": "Isolated",
                "invert": False,
            }
        },
        "PanicException: Onig: Regex search error: retry-limit-in-match over",
    ),
}


@pytest.mark.parametrize("name", FAILING_RULES)
async def test_tokenizer_that_fails_on_prompts_is_reported_without_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    rules, reason = FAILING_RULES[name]
    config = make_fit_config(tmp_path)
    rows = [{"prompt": "zebra " * 20, "answer": "a"}]
    write_rows(tmp_path / "train.jsonl", rows)
    file = tmp_path / "model" / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"added_tokens": []} | rules))

    finding = check_of(await check_config(config), CheckId.SAMPLE_LENGTHS)

    assert finding.state is FAILED
    problem = f"the tokenizer in {tmp_path / 'model'} fails on a text ({reason})"
    assert finding.evidence == f"{problem}: use the tokenizer of the original model"
    assert "Traceback" not in caplog.text


@pytest.mark.row("A14")
async def test_context_column_is_required_by_rag_chat_endpoints(tmp_path: Path) -> None:
    endpoints = [
        {"name": "actor", "role": "Actor", "protocol": "RagChat", "url": "http://127.0.0.1:9/"},
        {"name": "ref", "role": "Reference", "protocol": "RagChat", "url": "http://127.0.0.1:9/"},
    ]
    reward = {"reward.functions": [{"name": "RagScore"}]}
    config = make_fit_config(tmp_path, make_retrieval(*endpoints, mode="Reward") | reward)
    check = check_of(await check_config(config), CheckId.DATA_COLUMNS)

    assert check.state is FAILED
    assert "'context'" in check.evidence
    assert "'answer'" not in check.evidence


async def test_unreadable_data_files_are_all_reported() -> None:
    with TemporaryDirectory() as folder:  # evidence is truncated: use short paths
        await check_unreadable_files(Path(folder))


async def check_unreadable_files(tmp_path: Path) -> None:
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 not really")
    torn = tmp_path / "torn.jsonl"
    torn.write_text('{"prompt": "p", "answer": "a"}\n{"prompt": "p", "ans')
    empty = write_rows(tmp_path / "empty.jsonl", [])
    make_fit_config(tmp_path)
    good = tmp_path / "train.jsonl"
    files = [str(file) for file in (broken, torn, good, empty)]

    result = await check_config(make_fit_config(tmp_path, {"data.trainFiles": files}))

    evidence = check_of(result, CheckId.DATA_READABLE).evidence
    assert check_of(result, CheckId.DATA_READABLE).state is FAILED
    for words in (
        "broken.parquet",
        "torn.jsonl, line 2: not JSON",
        "empty.jsonl: no rows",
    ):
        assert words in evidence
    assert str(good) not in evidence


async def test_validation_files_are_checked_and_rows_are_limited_by_max_samples(
    tmp_path: Path,
) -> None:
    make_fit_config(tmp_path)
    held_out = tmp_path / "held-out.jsonl"
    held_out.write_text("no JSON\n")
    changes = {"data.validationFiles": [str(held_out)], "data.maxSamples": 7}
    result = await check_config(make_fit_config(tmp_path, changes))

    assert "held-out.jsonl, line 1" in check_of(result, CheckId.DATA_READABLE).evidence
    assert result.facts.rows == 7


@pytest.mark.parametrize("longest", ["x" * 60, "率" * 20], ids=["ASCII", "3 tokens per character"])
@pytest.mark.parametrize(("limit", "state"), [(59, FAILED), (60, PASSED)])
async def test_longest_prompt_is_checked_anywhere_in_file(
    tmp_path: Path, limit: int, state: CheckState, longest: str
) -> None:
    rows = [{"prompt": "short", "answer": "A"} for _ in range(500)]
    rows[:150] = [{"prompt": "x" * 30, "answer": "A"} for _ in range(150)]
    rows[450]["prompt"] = longest
    data = write_rows(tmp_path / "rows.jsonl", rows)
    config = make_fit_config(
        tmp_path, {"data.trainFiles": [str(data)], "data.maxPromptLength": limit}
    )
    result = await check_config(config)

    check = check_of(result, CheckId.SAMPLE_LENGTHS)
    assert check.state is state
    assert "30 tokens (median) and at most 60 (row 450)" in check.evidence
    assert result.exit_code == (ExitCode.DATA_ERROR if state is FAILED else 0)


@pytest.mark.row("C8")
@pytest.mark.parametrize(
    ("limit", "truncation", "state"),
    [(143, False, PASSED), (142, False, FAILED), (142, True, PASSED)],
)
async def test_sample_lengths_include_passages_and_templates(
    tmp_path: Path, limit: int, truncation: bool, state: CheckState
) -> None:
    changes = {
        # 2 passages × (60 + 1 for the line end), 10 around them, 11 for the longest question
        **make_retrieval(
            {"name": "kb", "topK": 2, "managed": {"corpus": str(tmp_path / "c.jsonl")}}
        ),
        "retrieval.maxPassageTokens": 60,
        "retrieval.passageTemplate": "{text}\n",
        "retrieval.promptTemplate": "P:{passages} Q:{prompt} A:xx",
        "data.maxPromptLength": limit,
        "data.allowTruncation": truncation,
    }

    check = check_of(await check_config(make_fit_config(tmp_path, changes)), CheckId.SAMPLE_LENGTHS)

    assert check.state is state, check.evidence
    assert "passages add up to 120" in check.evidence


# --- checkpoint folder


async def test_unwritable_checkpoint_folder_is_named_in_evidence(tmp_path: Path) -> None:
    config = make_fit_config(tmp_path)
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    result = await check_config(config)

    check = check_of(result, CheckId.CHECKPOINT_WRITABLE)
    assert check.state is FAILED
    assert str(tmp_path / "checkpoints") in check.evidence
    assert result.exit_code == ExitCode.PREFLIGHT_FAILED


async def test_volume_without_hard_links_fails_checkpoint_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr("raggrpo_trainer.preflight.storage.os.link", refuse)
    result = await check_config(make_fit_config(tmp_path))

    check = check_of(result, CheckId.CHECKPOINT_WRITABLE)
    assert check.state is FAILED
    assert "its volume does not support hard links (Operation not supported)" in check.evidence
    assert "use another volume" in check.evidence


async def test_preflight_write_probe_removes_its_files(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    await check_config(make_fit_config(tmp_path, {"monitoring.logDir": str(logs)}))
    assert list((tmp_path / "checkpoints").iterdir()) == []
    assert list(logs.iterdir()) == []


def make_oversized_config(folder: Path) -> TrainerConfig:
    keep = shutil.disk_usage(folder).free // (12 * PARAMETERS) + 1000
    config = make_fit_config(folder)
    checkpoint = config.checkpoint.model_copy(update={"keep_last": keep})
    return config.model_copy(update={"checkpoint": checkpoint})


async def test_insufficient_checkpoint_space_is_reported_in_gib(tmp_path: Path) -> None:
    check = check_of(await check_config(make_oversized_config(tmp_path)), CheckId.CHECKPOINT_SPACE)

    assert check.state is FAILED
    assert "GiB free" in check.evidence
    assert "checkpoint.keepLast" in check.evidence
    fit = await check_config(make_fit_config(tmp_path))
    assert check_of(fit, CheckId.CHECKPOINT_SPACE).state is PASSED


async def test_checkpoints_of_adapters_need_less_space(tmp_path: Path) -> None:
    config = make_oversized_config(tmp_path)
    lora = config.training.model_copy(update={"lora": LoraSpec(rank=1)})
    result = await check_config(config.model_copy(update={"training": lora}))

    assert check_of(result, CheckId.CHECKPOINT_SPACE).state is PASSED


async def test_adapters_are_counted_as_facts(tmp_path: Path) -> None:
    result = await check_config(make_fit_config(tmp_path, {"training.lora": {"rank": 4}}))

    facts = result.facts
    per_layer = 2 * (8 + 128) + 2 * (8 + 64) + 3 * (8 + 16)
    assert (facts.adapted_layers, facts.adapter_parameters_per_rank) == (21, 3 * per_layer)


async def test_space_of_existing_checkpoints_counts_as_available(tmp_path: Path) -> None:
    config = make_oversized_config(tmp_path)
    shard = Path(config.checkpoint.path) / "step_00000001.e1" / "shard"
    os.makedirs(shard.parent)
    os.close(os.open(shard, os.O_CREAT))
    os.truncate(shard, shutil.disk_usage(tmp_path).free)  # sparse: it takes no space
    check = check_of(await check_config(config), CheckId.CHECKPOINT_SPACE)

    assert check.state is PASSED, check.evidence


async def test_checkpoint_folder_in_use_is_rejected_with_name_of_running_job(
    tmp_path: Path,
) -> None:
    config = make_fit_config(tmp_path)
    path = Path(config.checkpoint.path)
    os.makedirs(path)
    fence = Fence.claim(path, "other-uid", "other-job", 1, beat_seconds=0.1)
    try:
        result = await check_config(config)
    finally:
        fence.release()

    assert check_of(result, CheckId.CHECKPOINT_FREE).state is FAILED
    assert "other-job" in check_of(result, CheckId.CHECKPOINT_FREE).evidence
    assert result.exit_code == ExitCode.CHECKPOINT_PATH_IN_USE


# --- endpoints and rewards


@pytest.mark.row("A15")
async def test_endpoints_are_called_once_with_their_fields(tmp_path: Path) -> None:
    async def chat(received: Received) -> Response:
        return Response(json.dumps(json.loads(bytes(rag_chat(received).body))))

    headers = [
        {"name": "X-Team", "value": "sales"},
        {"name": "X-Key", "secretKeyRef": {"name": "rag", "key": "token"}},
    ]
    async with serving(chat) as actor, serving(chat) as reference:
        endpoints = [
            make_endpoint(actor, "actor", "Actor", headers=headers),
            make_endpoint(reference, "reference", "Reference"),
        ]
        config = make_fit_config(tmp_path, make_retrieval(*endpoints, mode="Reward"))
        rows = [{"prompt": "q", "answer": "A", "context": f"dialogue {n}"} for n in range(20)]
        write_rows(tmp_path / "train.jsonl", rows)

        result = await check_config(config, {"RAGGRPO_SECRET_RAG_TOKEN": "s3cret-token"})

    check = check_of(result, CheckId.RETRIEVAL_REACHABLE)
    assert check.state is PASSED, check.evidence
    assert check.evidence.startswith("actor: 1 passages in ")
    [actor_request] = actor.requests
    [reference_request] = reference.requests
    assert {"context", "user_profile", "rewritten_query"} <= set(actor_request.body)
    assert (actor_request.headers["x-team"], actor_request.headers["x-key"]) == (
        "sales",
        "s3cret-token",
    )
    assert "user_profile" not in reference_request.body
    contexts = [actor_request.body["context"], reference_request.body["context"]]
    assert contexts == ["dialogue 0", "dialogue 0"]
    assert b"s3cret" not in to_bytes(result)


def make_endpoint(server: FaultyServer, name: str, role: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "role": role, "protocol": "RagChat", "url": server.url, **more}


@pytest.mark.row("A15")
async def test_unreachable_endpoint_fails_within_seconds_with_name(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    config = make_fit_config(tmp_path, make_retrieval({"name": "kb", "url": url}))
    async with asyncio.timeout(30):
        result = await check_config(config)

    check = check_of(result, CheckId.RETRIEVAL_REACHABLE)
    assert check.state is FAILED
    assert f"endpoint kb ({url}): ConnectionRefused" in check.evidence
    assert result.exit_code == ExitCode.RETRIEVAL_UNAVAILABLE  # preflight is retried


async def test_unknown_host_name_is_not_reported_as_outage(tmp_path: Path) -> None:
    url = "http://kb.nowhere.invalid/retrieve"
    config = make_fit_config(tmp_path, make_retrieval({"name": "kb", "url": url}))
    result = await check_config(config)
    assert "DnsFailure" in check_of(result, CheckId.RETRIEVAL_REACHABLE).evidence
    assert result.exit_code == ExitCode.PREFLIGHT_FAILED


@pytest.mark.parametrize("code", [ExitCode.PREFLIGHT_FAILED, ExitCode.DATA_ERROR])
def test_exit_code_of_other_failed_check_takes_precedence_over_outage(code: ExitCode) -> None:
    down = finding_for(
        CheckId.RETRIEVAL_REACHABLE, ["kb refuses"], "", ExitCode.RETRIEVAL_UNAVAILABLE
    )
    other = finding_for(CheckId.PATHS, ["wrong"], "", code)
    assert exit_code([down, other]) == exit_code([other, down]) == code
    assert exit_code([down]) == ExitCode.RETRIEVAL_UNAVAILABLE


async def test_failing_endpoint_is_reported_with_status_and_body(tmp_path: Path) -> None:
    async def respond(_: Received) -> Response:
        return PlainTextResponse("index is not loaded", 500)

    async with serving(respond) as failing, serving(search_r1()) as fine:
        endpoints = [{"name": "bad", "url": failing.url}, {"name": "good", "url": fine.url}]
        result = await check_config(make_fit_config(tmp_path, make_retrieval(*endpoints)))

    evidence = check_of(result, CheckId.RETRIEVAL_REACHABLE).evidence
    assert "endpoint bad" in evidence
    assert "500 'index is not loaded'" in evidence
    assert "good" not in evidence


@pytest.mark.row("D6")
async def test_unmapped_response_suggests_mapping_without_values(
    tmp_path: Path,
) -> None:
    answer = {"payload": {"hits": [{"ref": 7, "body": "Savings pay 2 %.", "rel": 0.9}]}}
    async with serving(always(answer)) as server:
        kb = {"name": "kb", "url": server.url, "protocol": "Http", "body": {"q": "{question}"}}
        unmapped = check_of(
            await check_config(make_fit_config(tmp_path, make_retrieval(kb))),
            CheckId.RETRIEVAL_REACHABLE,
        )
        kb["response"] = {"items": "payload.hits", "id": "ref", "text": "body", "score": "rel"}
        mapped = check_of(
            await check_config(make_fit_config(tmp_path, make_retrieval(kb))),
            CheckId.RETRIEVAL_REACHABLE,
        )
    assert unmapped.state is FAILED
    assert "response: {items: payload.hits, id: ref, text: body, score: rel}" in unmapped.evidence
    assert "{payload: {hits: [1 × {ref: number, body: text, rel: number}]}}" in unmapped.evidence
    assert "Savings" not in unmapped.evidence
    assert mapped.state is CheckState.PASSED


@pytest.mark.row("A12")
async def test_empty_result_for_first_row_is_reported_as_warning(
    tmp_path: Path,
) -> None:
    async with serving(always({"results": []})) as server:
        kb = {"name": "kb", "url": server.url, "protocol": "Http", "body": {"q": "{question}"}}
        check = check_of(
            await check_config(make_fit_config(tmp_path, make_retrieval(kb))),
            CheckId.RETRIEVAL_REACHABLE,
        )
    assert [received.body["q"] for received in server.requests] == ["question 0"]
    assert check.state is CheckState.WARNED
    assert "no passages for the first row of the data" in check.evidence


async def test_surplus_passages_are_reported_as_warning(tmp_path: Path) -> None:
    results = [{"id": str(i), "text": "tea"} for i in range(8)]
    async with serving(always({"results": results})) as server:
        kb = {"name": "kb", "url": server.url, "protocol": "Http", "body": {"q": "{question}"}}
        check = check_of(
            await check_config(make_fit_config(tmp_path, make_retrieval(kb | {"topK": 2}))),
            CheckId.RETRIEVAL_REACHABLE,
        )
    assert check.state is CheckState.WARNED
    assert "kb: 2 passages" in check.evidence
    assert "it returned 8 passages for a query (topK 2); the first 2 are used" in check.evidence


async def test_endpoint_error_with_status_200_fails_check(
    tmp_path: Path,
) -> None:
    async with serving(always({"code": 401, "message": "token expired", "data": []})) as server:
        kb = {"name": "kb", "url": server.url, "protocol": "Http", "body": {"q": "{question}"}}
        check = check_of(
            await check_config(make_fit_config(tmp_path, make_retrieval(kb))),
            CheckId.RETRIEVAL_REACHABLE,
        )
    assert check.state is FAILED
    assert "ServiceError: the service reports an error: 401 token expired" in check.evidence


@pytest.mark.row("A4")
@pytest.mark.parametrize("status", [401, 403, 404])
async def test_endpoint_rejection_is_reported_with_its_message(tmp_path: Path, status: int) -> None:
    async with serving(always({"detail": "this key is not known"}, status)) as server:
        result = await check_config(
            make_fit_config(tmp_path, make_retrieval({"name": "kb", "url": server.url}))
        )

    check = check_of(result, CheckId.RETRIEVAL_REACHABLE)
    assert check.state is FAILED
    for text in ("kb", server.url, str(status), "this key is not known"):
        assert text in check.evidence
    assert result.exit_code == ExitCode.PREFLIGHT_FAILED


async def test_placeholder_without_column_is_rejected_with_both_names(tmp_path: Path) -> None:
    async with serving(always([])) as server:
        body = {"q": "{question}", "where": "{tenant}"}
        kb = {"name": "kb", "url": server.url, "protocol": "Http", "body": body}
        result = await check_config(make_fit_config(tmp_path, make_retrieval(kb)))
        num_requests = len(server.requests)
    check = check_of(result, CheckId.DATA_READABLE)
    assert check.state is FAILED
    assert "column 'tenant' does not exist" in check.evidence
    assert "retrieval.endpoints[0].body contains the placeholder {tenant}" in check.evidence
    assert result.exit_code == ExitCode.DATA_ERROR
    assert num_requests == 0


async def test_judge_rejection_with_and_without_json_format_is_reported(tmp_path: Path) -> None:
    async with serving(always({"error": "no such model"}, 404)) as server:
        judge = {"model": "grader", "prompt": "{completion}"}
        term = {"name": "Judge", "url": server.url, "judge": judge}
        result = await check_config(make_fit_config(tmp_path, {"reward.functions": [term]}))
        num_requests = len(server.requests)
    check = check_of(result, CheckId.REWARD_CODE)
    assert check.state is FAILED
    assert "reward.functions[0] (judge grader at" in check.evidence
    assert "404" in check.evidence
    assert result.exit_code == ExitCode.PREFLIGHT_FAILED
    assert num_requests == 2


@pytest.mark.row("D14")
async def test_ambiguous_judge_grade_for_reference_answer_fails_check(
    tmp_path: Path,
) -> None:
    reply = {"choices": [{"message": {"content": "Style 3, facts 4."}}]}
    async with serving(always(reply)) as server:
        judge = {"model": "grader", "prompt": "{completion}"}
        term = {"name": "Judge", "url": server.url, "judge": judge}
        result = await check_config(make_fit_config(tmp_path, {"reward.functions": [term]}))
        completion = server.requests[0].body["messages"][0]["content"]
    check = check_of(result, CheckId.REWARD_CODE)
    assert completion == "A"
    assert check.state is FAILED
    assert "several numbers" in check.evidence
    assert result.exit_code == ExitCode.PREFLIGHT_FAILED


async def test_reward_import_error_takes_precedence_over_judge_outage(
    tmp_path: Path,
) -> None:
    async with serving(always("loading", 503)) as server:
        judge = {"model": "grader", "prompt": "{completion}", "retries": 0}
        down = {"name": "Judge", "url": server.url, "judge": judge}
        wrong = {"name": "Python", "python": "no_such_module:score"}
        alone = await check_config(make_fit_config(tmp_path, {"reward.functions": [down]}))
        both = await check_config(make_fit_config(tmp_path, {"reward.functions": [down, wrong]}))
    assert alone.exit_code == ExitCode.RETRIEVAL_UNAVAILABLE
    assert both.exit_code == ExitCode.REWARD_CODE_ERROR


@pytest.mark.row("A12", "D10")
@pytest.mark.parametrize(
    ("answer", "status", "state", "reported", "code"),
    [
        ({"score": 0.25}, 200, CheckState.PASSED, "returned score 0.25", ExitCode.DONE),
        ({"reward": 1}, 200, FAILED, 'it returns {"score": number}', ExitCode.PREFLIGHT_FAILED),
        ({"score": "good"}, 200, FAILED, "NotANumber", ExitCode.PREFLIGHT_FAILED),
        ("no such page", 404, FAILED, "404", ExitCode.PREFLIGHT_FAILED),
        ("loading", 503, FAILED, "503", ExitCode.RETRIEVAL_UNAVAILABLE),
    ],
    ids=["valid", "missing field", "not a number", "not found", "unavailable"],
)
async def test_reward_service_scores_first_row(
    answer: Any, status: int, state: CheckState, reported: str, code: ExitCode, tmp_path: Path
) -> None:
    async with serving(always(answer, status)) as server:
        term = {"name": "Http", "url": server.url}
        result = await check_config(make_fit_config(tmp_path, {"reward.functions": [term]}))
        bodies = [request.body for request in server.requests]
    check = check_of(result, CheckId.REWARD_CODE)
    assert check.state is state
    assert "reward.functions[0] (service at" in check.evidence
    assert reported in check.evidence
    assert result.exit_code == code
    assert bodies[0]["prompt"] == "question 0"
    assert bodies[0]["answer"] == ["A"]


async def test_missing_secret_is_reported_with_variable_name(tmp_path: Path) -> None:
    header = {"name": "Authorization", "secretKeyRef": {"name": "rag", "key": "token"}}
    endpoint = {"name": "kb", "url": "http://127.0.0.1:9/", "headers": [header]}
    result = await check_config(make_fit_config(tmp_path, make_retrieval(endpoint)))

    check = check_of(result, CheckId.RETRIEVAL_REACHABLE)
    assert check.state is FAILED
    assert "RAGGRPO_SECRET_RAG_TOKEN" in check.evidence
    assert result.exit_code == ExitCode.CONFIG_ERROR


async def test_managed_retriever_corpus_is_measured_without_calling_endpoint(
    tmp_path: Path,
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("x" * 1234)
    changes = make_retrieval({"name": "kb", "managed": {"corpus": str(corpus)}})
    result = await check_config(make_fit_config(tmp_path, changes))

    check = check_of(result, CheckId.RETRIEVAL_REACHABLE)
    assert (check.state, check.evidence) == (
        CheckState.NOT_EVALUATED,
        "kb: starts after preflight",
    )
    assert result.facts.corpus_bytes == 1234
    assert result.facts.corpus_passages == 1
    assert check_of(result, CheckId.EMBEDDING_READABLE).state is CheckState.NOT_EVALUATED


def make_dense_config(folder: Path, embedding: dict[str, Any] | None = None, **managed: Any) -> Any:
    """Return a fit configuration with a managed dense retriever."""
    if not (folder / "e5").exists():
        make_model_folder(folder / "e5")
    corpus = write_rows(folder / "corpus.jsonl", [{"id": n, "contents": "x"} for n in range(7)])
    fields = {
        "corpus": str(corpus),
        "index": "Dense",
        "embedding": {"path": str(folder / "e5"), **(embedding or {})},
        "indexPath": str(folder / "indexes"),
        **managed,
    }
    return make_fit_config(folder, make_retrieval({"name": "kb", "managed": fields}))


async def test_embedding_model_facts_are_measured(tmp_path: Path) -> None:
    result = await check_config(make_dense_config(tmp_path))

    check = check_of(result, CheckId.EMBEDDING_READABLE)
    assert (check.state, check.evidence) == (
        PASSED,
        f"kb: {PARAMETERS:,} parameters, 7 passages, dimension 8",
    )
    facts = result.facts
    assert (facts.corpus_passages, facts.embedding_parameters) == (7, PARAMETERS)
    assert facts.embedding_dimension == 8
    assert (tmp_path / "indexes").is_dir()  # required by the pod's mount
    assert result.exit_code == 0


@pytest.mark.parametrize("rows", [1, 3])
async def test_parquet_corpus_passages_are_counted(tmp_path: Path, rows: int) -> None:
    corpus = tmp_path / "corpus.parquet"
    pq.write_table(pa.table({"id": ["a"] * rows, "text": ["x"] * rows}), corpus)
    result = await check_config(make_dense_config(tmp_path, corpus=str(corpus)))
    assert result.facts.corpus_passages == rows


def _declare_pooling(pooling: str) -> Any:
    def write(model: Path) -> None:
        (model / "1_Pooling").mkdir()
        (model / "1_Pooling" / "config.json").write_text(json.dumps({pooling: True}))

    return write


def _declare_module(kind: str) -> Any:
    modules = [{"type": f"sentence_transformers.models.{kind}"}]
    return lambda model: (model / "modules.json").write_text(json.dumps(modules))


@pytest.mark.row("D8")
def _link_pooling_elsewhere(model: Path) -> None:
    elsewhere = model.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "config.json").write_text('{"pooling_mode_secret": true}')
    (model / "1_Pooling").symlink_to(elsewhere)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (shutil.rmtree, "e5 is not a folder: use the folder of a Hugging Face"),
        (lambda model: (model / "config.json").write_text("{}"), "has no hidden_size"),
        (lambda model: (model / "tokenizer.json").write_text("{"), "cannot be loaded"),
        (lambda model: (model / "b.safetensors").write_bytes(b"x"), "copy the file again"),
        (
            lambda model: (model / "config.json").write_text(
                '{"hidden_size": 8, "is_encoder_decoder": true}'
            ),
            "is an encoder-decoder model",
        ),
        (_declare_pooling("pooling_mode_cls_token"), "Mean differs from Cls in"),
        (_declare_pooling("pooling_mode_max_tokens"), "enables pooling_mode_max_tokens, which is"),
        (_declare_module("Dense"), "modules.json lists Dense, which the retriever does not"),
        (_link_pooling_elsewhere, "outside of its folder"),
        (
            lambda model: (model / "adapter_config.json").write_text("{}"),
            "has a model and adapter_config.json, but adapters are not applied: merge the adapter",
        ),
    ],
)
async def test_unsuitable_embedding_model_fails_check(
    tmp_path: Path, change: Any, words: str
) -> None:
    config = make_dense_config(tmp_path)
    change(tmp_path / "e5")
    result = await check_config(config)

    check = check_of(result, CheckId.EMBEDDING_READABLE)
    assert check.state is FAILED
    assert "retrieval.endpoints[0].managed.embedding." in check.evidence
    assert words in check.evidence
    assert "secret" not in check.evidence
    assert result.exit_code == ExitCode.PREFLIGHT_FAILED


async def test_embedding_tokenizer_is_reported_with_its_own_remedy(tmp_path: Path) -> None:
    config = make_dense_config(tmp_path)
    file = tmp_path / "e5" / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.enable_padding(length=10**8)
    tokenizer.save(str(file))

    check = check_of(await check_config(config), CheckId.EMBEDDING_READABLE)

    assert f"the tokenizer in {file.parent} pads texts to 100,000,000 tokens" in check.evidence
    assert "save_pretrained" not in check.evidence


@pytest.mark.parametrize(
    "change",
    [
        _declare_pooling("pooling_mode_mean_tokens"),
        _declare_module("Normalize"),
        _declare_module("Pooling"),
    ],
)
async def test_embedding_model_with_matching_pooling_passes_check(
    tmp_path: Path, change: Any
) -> None:
    config = make_dense_config(tmp_path)
    change(tmp_path / "e5")
    assert check_of(await check_config(config), CheckId.EMBEDDING_READABLE).state is PASSED


async def test_vectors_of_wrong_dimension_fail_check(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.zeros((7, 3), np.float32))
    result = await check_config(make_dense_config(tmp_path, vectors=str(tmp_path / "v.npy")))
    evidence = check_of(result, CheckId.EMBEDDING_READABLE).evidence
    assert "v.npy has shape [7, 3], but the dimension of the model is 8" in evidence


async def test_unwritable_index_path_fails_check(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = await check_config(make_dense_config(tmp_path, indexPath=str(tmp_path / "file" / "i")))
    evidence = check_of(result, CheckId.CHECKPOINT_WRITABLE).evidence
    assert "retrieval.endpoints[0].managed.indexPath" in evidence


CODE = """
import os, sys, time

def score(sample):
    assert sample["prompt"] == "question 0" and sample["completion"] == "A"
    return 0.5

async def score_later(sample):
    return score(sample)

def verl(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": 1.0 if solution_str == ground_truth == "A" else 0.0, "data": data_source}

def trl(completions, level, **kwargs):
    return [float(level[0]) for _ in completions]

def none(sample): return None
def listed(sample): return [0.5]
def mapped(sample): return {"score": 1.0}
def text(sample): return "0.5"
def huge(sample): return -1e308
def wide(sample): return 10**400
def infinite(sample): return float("inf")
def raising(sample): return sample["reply"]
def exiting(sample): sys.exit(0)
def slow(sample): time.sleep(9)
def no_argument(): return 1.0
def three(a, b, c): return 1.0
value = 3
"""
BROKEN_CODE = {
    "raising": "raise RuntimeError('needs a license')\n",
    "exiting": "import os\nos._exit(0)\n",
}


def make_python_config(folder: Path, target: str, **term: Any) -> Any:
    """Return a fit configuration with one Python reward; its code has the modules `CODE` names."""
    code = folder / "code"
    code.mkdir(exist_ok=True)
    for name, text in {"rewards_of_user": CODE, **BROKEN_CODE}.items():
        (code / f"{name}.py").write_text(text)
    rows = write_rows(folder / "rows.jsonl", [{"prompt": "question 0", "answer": "A", "level": 3}])
    changes = {
        "data.trainFiles": [str(rows)],
        "reward.functions": [{"name": "Python", "python": target, **term}],
        "reward.codeFrom": {"path": str(code)},
    }
    return make_fit_config(folder, changes)


@pytest.mark.row("D15")
@pytest.mark.parametrize(
    ("function", "signature", "reward"),
    [
        ("score", "Native", "0.5"),
        ("score_later", "Native", "0.5"),
        ("verl", "Verl", "1"),
        ("trl", "Trl", "3"),
    ],
)
async def test_python_reward_is_called_with_first_row(
    tmp_path: Path, function: str, signature: str, reward: str
) -> None:
    config = make_python_config(tmp_path, f"rewards_of_user:{function}", signature=signature)
    result = await check_config(config)

    check = check_of(result, CheckId.REWARD_CODE)
    place = f"reward.functions[0] (rewards_of_user:{function})"
    assert check.evidence == f"{place} returned {reward} for the first row"
    assert check.state is PASSED


@pytest.mark.row("D15")
@pytest.mark.parametrize(
    ("target", "signature", "words"),
    [
        ("verl", "Native", ["(data_source, solution_str, ground_truth, extra_info)",
            "expected a function of one dict", "set signature: Verl"]),
        ("trl", "Native", ["expected a function of one dict", "set signature: Trl"]),
        ("trl", "Verl", ["expected a function of data_source", "set signature: Trl"]),
        ("score", "Verl", ["expected a function of data_source", "set signature: Native"]),
        ("no_argument", "Native", ["()", "expected a function of one dict", "change the function"]),
        ("three", "Native", ["(a, b, c)", "expected a function of one dict"]),
        ("none", "Native", ["returned None (NoneType)", "expected a function of one dict"]),
        ("listed", "Native", ["returned [0.5] (list)", "correct the function"]),
        ("mapped", "Native", ["returned {'score': 1.0} (dict)"]),
        ("text", "Native", ["returned '0.5' (str)"]),
        ("huge", "Native", ["-1e+308 is beyond ±1e+30"]),
        ("wide", "Native", ["is beyond ±1e+30"]),
        ("infinite", "Native", ["inf is beyond ±1e+30"]),
        ("raising", "Native", ["KeyError: 'reply'", "expected a function of one dict"]),
        ("exiting", "Native", ["process exited with code 0"]),
        ("slow", "Native", ["no result within 1 s", "increase timeoutSeconds"]),
        ("absent", "Native", ["has no function absent", "check reward.functions[].python"]),
        ("value", "Native", ["has no function value"]),
        ("raising:score", "Native", ["RuntimeError: needs a license"]),
        ("exiting:score", "Native", ["process exited with code 0"]),
        ("missing:score", "Native", ["No module named 'missing'"]),
    ],
)  # fmt: skip
async def test_unusable_python_reward_is_reward_code_error(
    tmp_path: Path, target: str, signature: str, words: list[str]
) -> None:
    target = target if ":" in target else f"rewards_of_user:{target}"
    result = await check_config(
        make_python_config(tmp_path, target, signature=signature, timeoutSeconds=1)
    )

    check = check_of(result, CheckId.REWARD_CODE)
    assert check.state is FAILED
    assert f"reward.functions[0] ({target})" in check.evidence
    for text in words:
        assert text in check.evidence
    assert result.exit_code == ExitCode.REWARD_CODE_ERROR


async def test_python_reward_is_only_imported_if_data_is_unreadable(tmp_path: Path) -> None:
    config = make_python_config(tmp_path, "rewards_of_user:raising")
    (tmp_path / "rows.jsonl").write_text("{")
    result = await check_config(config)

    check = check_of(result, CheckId.REWARD_CODE)
    assert (check.state, check.evidence) == (PASSED, "rewards_of_user:raising can be imported")
    assert result.exit_code == ExitCode.DATA_ERROR


# --- the result


def test_failure_evidence_is_truncated_less_than_other_evidence() -> None:
    findings = [finding_for(check, [], "evidence " * 60) for check in list(CheckId)[:9]]
    findings.append(finding_for(CheckId.REWARD_CODE, ["reason " * 60], ""))
    facts = Facts(parameters=7_000_000_000, schema_digest="d" * 16)
    result = result_of(facts, findings)

    assert len(to_bytes(result)) <= limits.MAX_PREFLIGHT_BYTES
    assert result.truncated
    assert result.facts == facts
    assert len(check_of(result, CheckId.REWARD_CODE).evidence) > 400
    assert check_of(result, CheckId.PATHS).evidence.endswith("…")


@pytest.mark.parametrize("text", ["密" * 5000, '"\\' * 3000, "\x00\x1b\n" * 2000, "x" * 10_000])
def test_result_size_is_bounded_for_any_evidence(text: str) -> None:
    findings = [finding_for(check, [text], "") for check in CheckId]
    facts = Facts(parameters=10**13, ray_version="2.60.0", schema_digest="d" * 16)
    result = result_of(facts, findings)

    assert len(to_bytes(result)) <= limits.MAX_PREFLIGHT_BYTES
    assert PreflightResult.model_validate_json(to_bytes(result)) == result
    assert result.truncated
    assert len(result.checks) == len(CheckId)


def test_short_evidence_is_not_truncated() -> None:
    result = result_of(Facts(), [not_evaluated(CheckId.GPU_MEMORY, "device  CPU\n")])
    assert not result.truncated
    assert result.checks[0].evidence == "device CPU"


@pytest.mark.parametrize(
    ("codes", "expected"), [([], 0), ([4], 4), ([4, 3], 3), ([4, 5], 5), ([3, 5], 3), ([4, 19], 19)]
)
def test_preflight_exit_code_matches_most_specific_failure(codes: list[int], expected: int) -> None:
    ids = list(CheckId)
    findings = [finding_for(ids[i], ["bad"], "", ExitCode(code)) for i, code in enumerate(codes)]
    assert result_of(Facts(), findings).exit_code == expected


@pytest.mark.row("C19")
def test_sampling_defaults_of_model_are_reported_as_unused(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "model")
    (folder / "generation_config.json").write_text('{"top_k": 20, "eos_token_id": 1}')
    finding = check_model(folder).finding
    assert finding.state is CheckState.PASSED
    assert (
        "generation_config.json (top_k 20) are not used, set rollout.temperature"
        in finding.evidence
    )
