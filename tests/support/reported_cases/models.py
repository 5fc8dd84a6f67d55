"""Reported cases about models and tokenizers."""

import ast
import asyncio
import json
import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken
from tokenizers import Tokenizer as RustTokenizer
from tokenizers.processors import TemplateProcessing

from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import CheckId, CheckState
from raggrpo_trainer.data.prompt_files import Prompt
from raggrpo_trainer.data.prompts import compose
from raggrpo_trainer.data.tokenizer import load_tokenizer
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.policy.model import load_model
from raggrpo_trainer.retrieval.client import WARM_UP_TEXT
from raggrpo_trainer.rollout.search_turn import SEARCH_END, search_query
from support.builders.data.rows import write_rows
from support.builders.operator.jobs import data_of, make_manifest
from support.builders.trainer.policies import write_model
from support.builders.trainer.preflight import make_fit_config
from support.builders.trainer.word_model import END, write_word_model
from support.reported_cases.case import case
from support.reported_cases.checks import expect, preflight
from support.servers.faulty_server import search_r1, serving

BOS = "Ā"
"""A token of the byte tokenizer that no text contains."""
PLAIN = "{{ messages[-1].content }}"
MARKER = "####"
TAGS = (MARKER, "<search>", "</search>", "<answer>", "</answer>", "<think>", "</think>")


def change_tokenizer(model: Path, change: Callable[[RustTokenizer], None], **config: Any) -> None:
    """Change tokenizer.json and fields of tokenizer_config.json; None removes a field."""
    table = RustTokenizer.from_file(str(model / "tokenizer.json"))
    change(table)
    table.save(str(model / "tokenizer.json"))
    file = model / "tokenizer_config.json"
    fields = {**json.loads(file.read_text()), **config}
    file.write_text(json.dumps({key: value for key, value in fields.items() if value is not None}))


def prepend_bos(table: RustTokenizer) -> None:
    number = table.token_to_id(BOS)
    table.post_processor = TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, number)])


def add(*tokens: str) -> Callable[[RustTokenizer], None]:
    def change(table: RustTokenizer) -> None:
        table.add_special_tokens([AddedToken(each) for each in tokens])

    return change


@case("M1", fault="The tokenizer's <bos> is lost", inputs=["", PLAIN, BOS + PLAIN])
def prompts_start_with_bos_once(folder: Path, template: str) -> None:
    """Plain text and text of the job's template start with <bos>, as the tokenizer adds it."""
    changes = {"data.chatTemplate": template}
    config = make_fit_config(folder, changes)
    change_tokenizer(folder / "model", prepend_bos, bos_token=BOS)
    tokenizer = load_tokenizer(str(folder / "model"))

    composed = compose(
        Prompt(0, "Who?", "Who?", (), ""),
        [],
        config.retrieval,
        tokenizer,
        max_prompt_length=64,
        allow_truncation=False,
        seed=0,
        chat_template=template,
    )

    expected = tokenizer("Who?", add_special_tokens=True)["input_ids"]
    assert list(composed.token_ids) == expected
    result = preflight(folder, changes)
    expect(result, CheckId.TOKENIZER, CheckState.PASSED, f"prompts start with {BOS}")
    assert result.facts.prompt_start == BOS


WORDS = tuple(f"w{number}" for number in range(6))
OUTPUT = re.compile(r"sample (\d+/\d+): output '(.*)'")
PARTS = re.compile(r"sample (\d+/\d+): reward \S+ from parts (\{.*\})")


def write_tagged_job(folder: Path, url: str) -> Path:
    """Write a model whose tags are special tokens, data, and a job in mode Search."""
    write_word_model(folder / "model", ["ask", *WORDS, *TAGS], context=256, special=TAGS)
    write_rows(
        folder / "t.jsonl", [{"prompt": f"ask {word}", "answer": list(WORDS)} for word in WORDS]
    )
    job = make_manifest(
        "tags",
        {
            "model": {"path": str(folder / "model")},
            "data": data_of(folder / "t.jsonl", batch=4, prompt=16, response=96),
            "rollout": {"n": 4, "temperature": 1.0},
            "training": {"totalSteps": 2, "learningRate": 1e-5, "precision": "FP32"},
            "retrieval": {
                "mode": "Search",
                "maxTurns": 16,
                "passageTemplate": "{text} ",
                "endpoints": [{"name": "kb", "protocol": "SearchR1", "url": url, "cache": False}],
            },
            "reward": {
                "functions": [{"name": "Format"}, {"name": "Contains"}],
                "answerMarker": MARKER,
            },
            "checkpoint": {"path": str(folder / "checkpoints")},
            "monitoring": {"debug": {"modelOutput": True, "scoring": True}},
            "resources": {"device": "CPU"},
        },
    )
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


async def run_with_search(folder: Path) -> tuple[str, list[str]]:
    """Run the job; return the driver's log and the queries of samples."""
    async with serving(search_r1()) as server:
        job = write_tagged_job(folder, server.url)
        command = (sys.executable, "-m", "raggrpo_cli.main", "run", job, "--dir", folder / "job")
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    log = (folder / "checkpoints" / "logs" / "attempts" / "1" / "driver.log").read_text()
    queries = [query for request in server.requests for query in request.body["queries"]]
    others = {WARM_UP_TEXT, *(f"ask {word}" for word in WORDS)}
    return log, [query for query in queries if query not in others]


def by_sample(pattern: re.Pattern[str], log: str) -> dict[str, list[str]]:
    """Return the matches of a pattern by sample, in order of steps."""
    texts: dict[str, list[str]] = {}
    for sample, text in pattern.findall(log):
        texts.setdefault(sample, []).append(text)
    return texts


def queries_of(output: str) -> list[str]:
    """Return the queries of a completion if each of its turns ended at the stop string."""
    queries = []
    for turn in output.split(SEARCH_END)[:-1]:
        query = search_query(turn + SEARCH_END)
        if query is None:
            break
        queries += [query] if query else []
    return queries


@case("M2", fault="Special tokens decode to nothing")
def tags_that_are_special_tokens_work_in_a_run(folder: Path) -> None:
    log, queries = asyncio.run(run_with_search(folder))
    outputs, parts = by_sample(OUTPUT, log), by_sample(PARTS, log)
    texts = [text for each in outputs.values() for text in each]
    assert [tag for tag in TAGS if not any(tag in text for text in texts)] == []
    assert not any(END in text for text in texts)
    # A completion that ends with its turn may have no token left for a search.
    continued = [text.removesuffix(SEARCH_END) for text in texts]
    assert Counter(q for text in continued for q in queries_of(text)) <= Counter(queries)
    assert Counter(queries) <= Counter(q for text in texts for q in queries_of(text))
    formats, contained = set(), set()
    for sample, samples_parts in parts.items():
        for text, shown in zip(outputs[sample], samples_parts, strict=True):
            scores = ast.literal_eval(shown)
            answers = re.findall(r"<answer>(.*?)</answer>", text)
            assert scores["Format"] == float(any(answer.strip() for answer in answers)), text
            assert scores["Contains"] == float("w" in text.rpartition(MARKER)[2] and MARKER in text)
            formats.add(scores["Format"])
            contained.add(scores["Contains"])
    assert formats == contained == {0.0, 1.0}


@case("M3", fault="A token has no row in the embedding", inputs=[["<search>"], ["<a>", "<b>"]])
def token_beyond_the_embedding_is_rejected(folder: Path, tokens: Sequence[str]) -> None:
    make_fit_config(folder)
    change_tokenizer(folder / "model", add(*tokens))
    words = (repr(tokens[0]), "id 256", "embedding of 256 rows", "resize_token_embeddings")
    expect(preflight(folder), CheckId.TOKENIZER, CheckState.FAILED, *words)


@case("M3-end", fault="A token has no row in the embedding", inputs=[256, [7, 300]])
def end_token_beyond_the_embedding_is_rejected(folder: Path, number: object) -> None:
    make_fit_config(folder)
    file = folder / "model" / "generation_config.json"
    file.write_text(json.dumps({"eos_token_id": number}))
    words = ("eos_token_id", "embedding of 256 rows", "generation_config.json")
    expect(preflight(folder), CheckId.TOKENIZER, CheckState.FAILED, *words)


@case("M4", fault="Nothing ends a completion")
def missing_end_token_is_reported(folder: Path) -> None:
    make_fit_config(folder)
    change_tokenizer(folder / "model", lambda _: None, eos_token=None)
    words = ("no eos_token", "completions end only at data.maxResponseLength")
    expect(preflight(folder), CheckId.TOKENIZER, CheckState.WARNED, *words)


@case("M4-folder", fault="Nothing ends a completion", inputs=["generation_config", "config"])
def end_token_of_model_folder_counts(folder: Path, name: str) -> None:
    make_fit_config(folder)
    change_tokenizer(folder / "model", lambda _: None, eos_token=None)
    file = folder / "model" / f"{name}.json"
    fields = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**fields, "eos_token_id": [7, 8]}))
    expect(preflight(folder), CheckId.TOKENIZER, CheckState.PASSED, "completions end with")


@case("M5", fault="The weights are not finite", inputs=[math.nan, math.inf, -math.inf])
def non_finite_weight_is_named(folder: Path, value: float) -> None:
    model = write_model(folder / "model")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors = load_file(model / "model.safetensors")
    tensors[name][3, 2] = value
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    kind = "NaN" if math.isnan(value) else "infinity"
    with pytest.raises(TrainerError, match=f"weights contain {kind}: tensor {name}") as raised:
        load_model(str(model), None)
    assert raised.value.exit_code is ExitCode.PREFLIGHT_FAILED


@case("M6", fault="A file of the weights is missing")
def missing_shard_of_index_is_named(folder: Path) -> None:
    make_fit_config(folder)
    (folder / "model" / "b.safetensors").unlink()
    words = ("lacks b.safetensors", "model.safetensors.index.json", "download the model again")
    expect(preflight(folder), CheckId.MODEL_READABLE, CheckState.FAILED, *words)


@case("M6-name", fault="A file of the weights is missing")
def missing_index_is_named(folder: Path) -> None:
    make_fit_config(folder)
    model = folder / "model"
    (model / "model.safetensors.index.json").unlink()
    (model / "a.safetensors").rename(model / "model-00001-of-00003.safetensors")
    (model / "b.safetensors").rename(model / "model-00003-of-00003.safetensors")
    words = ("lacks model.safetensors.index.json", "download the model again")
    expect(preflight(folder), CheckId.MODEL_READABLE, CheckState.FAILED, *words)
