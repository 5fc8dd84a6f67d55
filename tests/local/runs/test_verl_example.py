"""Import, validate and train verl's published examples from their scripts and data files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.builders.data.verl_files import gsm8k_row, search_row, write_parquet
from support.builders.data.verl_scripts import GSM8K
from support.builders.data.verl_tree import FILES, write_tree
from support.builders.trainer.word_model import write_word_model
from support.processes.ports import free_port

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

WORDS = [f"w{i}" for i in range(16)]
ON_CPU = ("resources.device=CPU", "resources.ranks=1", "training.precision=FP32")
TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"
MODEL = "actor_rollout_ref.model.path=$HOME/models/Qwen/Qwen2-7B-Instruct"
"""Override that replaces the model of a hub."""


def raggrpo(*words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "raggrpo_cli.main", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)


def train(
    folder: Path, overrides: list[str], sets: list[str], script: Path | None = None
) -> dict[str, object]:
    """Import a verl script with overrides, validate and run the job; return its summary."""
    home, job = folder / "home", folder / "job.yaml"
    if script is None:
        script = folder / "run.sh"
        script.write_text(GSM8K)
    write_word_model(
        home / "models" / "Qwen" / "Qwen2-7B-Instruct",
        ["####", "<search>", "</search>", *WORDS],
        context=256,
    )
    small = [
        MODEL,
        "data.train_batch_size=4",
        "data.max_prompt_length=32",
        "data.max_response_length=16",
        "actor_rollout_ref.rollout.n=2",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        "trainer.n_gpus_per_node=1",
        "trainer.val_before_train=False",
        "trainer.test_freq=-1",
        "trainer.total_training_steps=2",
        *overrides,
    ]
    imported = raggrpo("import", "verl", script, *small, "-o", job)
    assert imported.returncode == 0, imported.stderr
    assert raggrpo("validate", job).returncode == 0
    options = [word for each in (*ON_CPU, *sets) for word in ("--set", each)]
    done = raggrpo("run", job, "--mount", f"work={home}", "--dir", folder / "job", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    summary: dict[str, object] = json.loads((folder / "job" / "summary.json").read_text())
    return summary


@pytest.mark.row("D5")
def test_gsm8k_example_trains_on_its_parquet_files(tmp_path: Path) -> None:
    data = tmp_path / "home" / "data" / "gsm8k"
    rows = [gsm8k_row(f"{word} ?", word, i) for i, word in enumerate(WORDS)]
    write_parquet(data / "train.parquet", rows)
    write_parquet(data / "test.parquet", rows[:4])

    summary = train(tmp_path, [], [])

    assert (summary["phase"], summary["step"]) == ("Succeeded", 2)


@pytest.mark.row("D5")
def test_search_example_trains_with_system_prompt_and_answer_list(tmp_path: Path) -> None:
    data = tmp_path / "home" / "data" / "searchR1_processed_direct"
    rows = [search_row(f"{word} ?", [word, "w0"], i) for i, word in enumerate(WORDS)]
    write_parquet(data / "train.parquet", rows)

    overrides = [
        "data.train_files=$HOME/data/searchR1_processed_direct/train.parquet",
        "data.val_files=null",
    ]
    retrieval = ["retrieval={mode: None}", f"data.chatTemplate={json.dumps(TEMPLATE)}"]
    summary = train(tmp_path, overrides, retrieval)

    assert (summary["phase"], summary["step"]) == ("Succeeded", 2)


@pytest.mark.row("D5")
def test_search_tool_script_trains_with_imported_service(tmp_path: Path) -> None:
    data = tmp_path / "home" / "data" / "lookup"
    rows = [search_row(f"{word} ?", [word, "w0"], i) for i, word in enumerate(WORDS)]
    write_parquet(data / "train.parquet", rows)
    corpus, url = tmp_path / "corpus.jsonl", f"http://127.0.0.1:{(port := free_port())}/retrieve"
    passages = [{"id": word, "contents": f"{word} w1"} for word in WORDS]
    corpus.write_text("".join(json.dumps(each) + "\n" for each in passages))
    tools = "examples/lookup/config/tools/lookup.yaml"
    tool = FILES[tools].replace("http://retriever.rag:9000/retrieve", url)
    script = write_tree(tmp_path / "verl", {tools: tool})

    command = ("-m", "raggrpo_retriever", "--corpus", corpus, "--port", port)
    with subprocess.Popen([sys.executable, *map(str, command)]) as retriever:
        try:
            summary = train(
                tmp_path,
                [
                    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
                    "data.max_response_length=64",
                    "data.train_batch_size=16",
                    "actor_rollout_ref.rollout.n=4",
                ],
                [f"data.chatTemplate={json.dumps(TEMPLATE)}"],
                script,
            )
        finally:
            retriever.terminate()

    assert (summary["phase"], summary["step"]) == ("Succeeded", 2)
    [history] = (tmp_path / "home" / "checkpoints").rglob("metrics.e1.jsonl")
    records = [json.loads(line) for line in history.read_text().splitlines()]
    calls = [record["retrieval"]["search"] for record in records if "retrieval" in record]
    assert calls[-1]["answered"] > 2  # the warm-up makes two calls
    assert calls[-1]["failures"] == {}
