"""`python -m raggrpo_quickstart --dir DIR`: create corpus, questions and a warmed-up model."""

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path

MARKER = "COMPLETE"
STEPS = 12
VERSION = 3
"""Version of the prepared files; increment it to rebuild existing folders."""


def main() -> int:
    """Prepare the folder unless it is complete, and return the exit code."""
    parser = argparse.ArgumentParser(prog="raggrpo_quickstart", description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="output folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--steps", type=int, default=STEPS, help="number of supervised warm-up steps"
    )
    options = parser.parse_args()
    settings = {"version": VERSION, "seed": options.seed, "steps": options.steps}
    if _read_marker(options.dir) == settings:
        print(f"{options.dir} is already complete; nothing to prepare")
        return 0
    try:
        _prepare(options.dir, options.seed, options.steps)
    except KeyboardInterrupt:
        print("\ninterrupted; run the same command to start again", file=sys.stderr)
        return 130
    (options.dir / MARKER).write_text(json.dumps(settings))
    return 0


def _prepare(folder: Path, seed: int, steps: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # the existing folder is incomplete or outdated
    folder.mkdir(parents=True)
    # Imported late: a complete folder does not need torch, whose import takes seconds.
    import torch

    from . import model, records

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    languages = records.load_records()
    questions = records.select_questions(languages, seed)
    records.write_corpus(languages, folder / "corpus.jsonl")
    records.write_questions(questions.train, folder / "train.parquet")
    records.write_questions(questions.validation, folder / "validation.parquet")
    print(
        f"wrote {len(languages)} passages, {len(questions.train)} training questions and "
        f"{len(questions.validation)} validation questions"
    )
    tokenizer = model.make_tokenizer(languages)
    policy = model.make_model(tokenizer, seed)
    size = sum(p.numel() for p in policy.parameters())
    print(
        f"created a model with {size / 1e6:.1f}M parameters and a vocabulary of "
        f"{len(tokenizer)} tokens"
    )
    started = time.monotonic()

    def report(step: int, loss: float) -> None:
        if step % 4 == 0:
            seconds = time.monotonic() - started
            print(f"supervised step {step}/{steps}, {seconds:.0f} s, loss {loss:.2f}", flush=True)

    codes = sorted({record.code for record in languages})
    model.warm_up(policy, tokenizer, questions.train, codes, steps=steps, seed=seed, report=report)
    model.save(policy, tokenizer, folder / "model")


def _read_marker(folder: Path) -> object:
    marker = folder / MARKER
    return json.loads(marker.read_text()) if marker.is_file() else None


if __name__ == "__main__":
    sys.exit(main())
