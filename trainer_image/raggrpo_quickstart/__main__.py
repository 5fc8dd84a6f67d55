"""`python -m raggrpo_quickstart --dir D`: create corpus, questions and warmed-up model, once."""

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
"""Bump when the prepared content changes, so that old folders are rebuilt."""


def main() -> int:
    """Prepare the folder unless it is complete."""
    parser = argparse.ArgumentParser(prog="raggrpo_quickstart", description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="folder to fill")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS, help="supervised steps")
    given = parser.parse_args()
    wanted = {"version": VERSION, "seed": given.seed, "steps": given.steps}
    if _marked(given.dir) == wanted:
        print(f"{given.dir} is complete: nothing to prepare")
        return 0
    try:
        _prepare(given.dir, given.seed, given.steps)
    except KeyboardInterrupt:
        print("\ninterrupted; the same command begins again", file=sys.stderr)
        return 130
    (given.dir / MARKER).write_text(json.dumps(wanted))
    return 0


def _prepare(folder: Path, seed: int, steps: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # left by an interrupted preparation
    folder.mkdir(parents=True)
    # Imported late: a complete folder should not cost torch's import time.
    import torch

    from . import model, records

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    found = records.load_records()
    questions = records.ask(found, seed)
    records.write_corpus(found, folder / "corpus.jsonl")
    records.write_questions(questions.train, folder / "train.parquet")
    records.write_questions(questions.validation, folder / "validation.parquet")
    print(
        f"{len(found)} passages; questions: {len(questions.train)} to train on, "
        f"{len(questions.validation)} held out"
    )
    tokenizer = model.make_tokenizer(found)
    made = model.make_model(tokenizer, seed)
    size = sum(p.numel() for p in made.parameters())
    print(f"model of {size / 1e6:.1f}M parameters, vocabulary {len(tokenizer)}")
    began = time.monotonic()

    def report(step: int, loss: float) -> None:
        if step % 4 == 0:
            seconds = time.monotonic() - began
            print(f"supervised step {step}/{steps}, {seconds:.0f} s, loss {loss:.2f}", flush=True)

    codes = sorted({record.code for record in found})
    model.warm_up(made, tokenizer, questions.train, codes, steps=steps, seed=seed, report=report)
    model.save(made, tokenizer, folder / "model")


def _marked(folder: Path) -> object:
    marker = folder / MARKER
    return json.loads(marker.read_text()) if marker.is_file() else None


if __name__ == "__main__":
    sys.exit(main())
