"""Data files in the formats written by verl and TRL scripts, with made-up questions."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Row = dict[str, Any]
ASSISTANT = "You are a helpful and harmless assistant."


def gsm8k_row(question: str, answer: str, index: int = 0) -> Row:
    """Return a row in the format of verl's GSM8K preprocessing."""
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": question}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": {"split": "train", "index": index, "answer": answer, "question": question},
    }


def search_row(question: str, answers: Sequence[str], index: int = 0) -> Row:
    """Return a row in the format of verl's Search-R1 preprocessing."""
    truth = {"target": list(answers)}
    create = {"ground_truth": truth, "question": question, "data_source": "searchR1_nq"}
    return {
        "data_source": "searchR1_nq",
        "prompt": [
            {"role": "system", "content": ASSISTANT},
            {"role": "user", "content": question},
        ],
        "ability": "fact-reasoning",
        "reward_model": {"ground_truth": truth, "style": "rule"},
        "extra_info": {
            "index": index,
            "need_tools_kwargs": True,
            "question": question,
            "split": "train",
            "tools_kwargs": {"search": {"create_kwargs": create}},
        },
        "metadata": None,
    }


def trl_row(question: str, answer: str) -> Row:
    """Return a conversational prompt-completion row in the format of TRL."""
    return {
        "prompt": [
            {"role": "system", "content": ASSISTANT},
            {"role": "user", "content": question},
        ],
        "completion": [{"role": "assistant", "content": answer}],
    }


def write_parquet(path: Path, rows: Sequence[Row]) -> str:
    """Write rows as parquet, nested columns as structs; return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return str(path)


def write_jsonl(path: Path, rows: Sequence[Row]) -> str:
    """Write rows as JSON lines; return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)
