import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from raggrpo_quickstart import model, records
from raggrpo_trainer.data.tokenizer import load_tokenizer

SAMPLE = Path(__file__).parents[3] / "crds/samples/quickstart.yaml"


@pytest.fixture(scope="module")
def corpus() -> list[records.Record]:
    return records.load_records()


@pytest.fixture(scope="module")
def questions(corpus: list[records.Record]) -> records.Questions:
    return records.select_questions(corpus, seed=0)


def test_corpus_records_are_complete_and_unique(
    corpus: list[records.Record],
) -> None:
    assert len(corpus) > 7500
    assert all(record.name and record.code for record in corpus)
    assert len({record.question for record in corpus}) == len(corpus)


def test_questions_have_three_similar_passages(
    questions: records.Questions,
) -> None:
    for question in questions.train + questions.validation:
        assert question.record in question.hits
        assert len(set(question.hits)) == records.TOP_K
        assert all(question.record.words & other.words for other in question.hits)


@pytest.mark.row("B32")
def test_token_before_code_is_usually_unique_among_hits(
    corpus: list[records.Record], questions: records.Questions
) -> None:
    """A two-layer model matches the last token of a question with the token before a code."""
    tokenizer = model.make_tokenizer(corpus)

    def last_token(record: records.Record) -> int:
        return int(tokenizer(record.question, add_special_tokens=False)["input_ids"][-1])

    for split in (questions.train, questions.validation):
        unique = sum(
            [last_token(record) for record in q.hits].count(last_token(q.record)) == 1
            for q in split
        )
        assert unique / len(split) > 0.9


def test_passages_are_within_token_limit(corpus: list[records.Record]) -> None:
    """The code is at the end of a passage."""
    retrieval = yaml.safe_load(SAMPLE.read_text())["spec"]["retrieval"]
    tokenizer = model.make_tokenizer(corpus)
    tokens = tokenizer([record.passage() for record in corpus], add_special_tokens=False)
    assert max(map(len, tokens["input_ids"])) <= retrieval["maxPassageTokens"]


def test_guessing_most_frequent_passage_has_chance_accuracy(questions: records.Questions) -> None:
    """Guessing the most frequent passage of the training data is no better than chance."""
    shown = Counter(record for q in questions.train for record in q.hits)
    correct = Counter(q.record for q in questions.train)
    guessed = [
        max(sorted(q.hits, key=lambda r: r.question), key=lambda r: correct[r] / max(1, shown[r]))
        for q in questions.validation
    ]
    num_correct = sum(g == q.record for g, q in zip(guessed, questions.validation, strict=True))
    assert num_correct / len(guessed) < 0.4


def test_validation_names_do_not_occur_in_training_data(questions: records.Questions) -> None:
    held_out = {q.record.name for q in questions.validation}
    assert len(questions.validation) == records.VALIDATION_QUESTIONS
    assert held_out.isdisjoint(q.record.name for q in questions.train)


def test_answers_are_single_tokens_after_tokenizer_reload(
    corpus: list[records.Record], tmp_path: Path
) -> None:
    model.make_tokenizer(corpus).save_pretrained(tmp_path)
    tokenizer = load_tokenizer(str(tmp_path))
    for record in corpus[::97]:
        text = f"{record.passage()}\n"
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text
        assert len(tokenizer(record.answer, add_special_tokens=False)["input_ids"]) == 1


def test_quickstart_warm_up_lowers_loss(
    corpus: list[records.Record], questions: records.Questions
) -> None:
    tokenizer = model.make_tokenizer(corpus)
    network = model.make_model(tokenizer, seed=0)
    losses: list[float] = []
    codes = sorted({record.code for record in corpus})
    model.warm_up(
        network,
        tokenizer,
        questions.train,
        codes,
        steps=12,
        seed=0,
        report=lambda step, loss: losses.append(loss),
    )
    assert losses[-1] < losses[0]


def prepare(folder: Path) -> str:
    command = [sys.executable, "-m", "raggrpo_quickstart", "--dir", str(folder), "--steps", "1"]
    completed = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    return completed.stdout


def test_incomplete_quickstart_folder_is_rebuilt_and_complete_folder_is_reused(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "input"
    folder.mkdir()
    (folder / "corpus.jsonl").write_text("torn")
    prepare(folder)
    assert (folder / "model" / "config.json").exists()
    assert (folder / "corpus.jsonl").read_text().count("\n") > 7500
    assert "nothing to prepare" in prepare(folder)
