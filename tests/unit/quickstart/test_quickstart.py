import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from raggrpo_quickstart import model, records
from raggrpo_trainer.data.prompts import load_tokenizer

SAMPLE = Path(__file__).parents[3] / "crds/samples/quickstart.yaml"


@pytest.fixture(scope="module")
def result() -> list[records.Record]:
    return records.load_records()


@pytest.fixture(scope="module")
def questions(result: list[records.Record]) -> records.Questions:
    return records.select_questions(result, seed=0)


def test_corpus_has_languages_and_questions_one_answer(
    result: list[records.Record],
) -> None:
    assert len(result) > 7500
    assert all(record.name and record.code for record in result)
    assert len({record.question for record in result}) == len(result)


def test_questions_have_three_similar_hits(
    questions: records.Questions,
) -> None:
    for question in questions.train + questions.validation:
        assert question.record in question.hits
        assert len(set(question.hits)) == records.TOP_K
        assert all(question.record.words & other.words for other in question.hits)


@pytest.mark.row("B32")
def test_token_next_to_code_is_unique_among_hits(
    result: list[records.Record], questions: records.Questions
) -> None:
    """Two layers match the question's last token with the one before a code: more is hard."""
    tokenizer = model.make_tokenizer(result)

    def last_token(record: records.Record) -> int:
        return int(tokenizer(record.question, add_special_tokens=False)["input_ids"][-1])

    for asked in (questions.train, questions.validation):
        reported = sum(
            [last_token(record) for record in q.hits].count(last_token(q.record)) == 1
            for q in asked
        )
        assert reported / len(asked) > 0.9


def test_passages_are_within_token_limit(result: list[records.Record]) -> None:
    """The code stands at a passage's end."""
    retrieval = yaml.safe_load(SAMPLE.read_text())["spec"]["retrieval"]
    tokenizer = model.make_tokenizer(result)
    tokens = tokenizer([record.passage() for record in result], add_special_tokens=False)
    assert max(map(len, tokens["input_ids"])) <= retrieval["maxPassageTokens"]


def test_accuracy_without_question_is_one_third(questions: records.Questions) -> None:
    """The best guess from training, by the passage alone, is not better than chance."""
    shown = Counter(record for q in questions.train for record in q.hits)
    right = Counter(q.record for q in questions.train)
    guessed = [
        max(sorted(q.hits, key=lambda r: r.question), key=lambda r: right[r] / max(1, shown[r]))
        for q in questions.validation
    ]
    hits = sum(g == q.record for g, q in zip(guessed, questions.validation, strict=True))
    assert hits / len(guessed) < 0.4


def test_validation_names_are_not_in_training(questions: records.Questions) -> None:
    held_out = {q.record.name for q in questions.validation}
    assert len(questions.validation) == records.VALIDATION_QUESTIONS
    assert held_out.isdisjoint(q.record.name for q in questions.train)


def test_answers_are_single_tokens_after_save_and_load(
    result: list[records.Record], tmp_path: Path
) -> None:
    model.make_tokenizer(result).save_pretrained(tmp_path)
    tokenizer = load_tokenizer(str(tmp_path))
    for record in result[::97]:
        text = f"{record.passage()}\n"
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text
        assert len(tokenizer(record.answer, add_special_tokens=False)["input_ids"]) == 1


def test_warm_up_lowers_the_loss(
    result: list[records.Record], questions: records.Questions
) -> None:
    tokenizer = model.make_tokenizer(result)
    made = model.make_model(tokenizer, seed=0)
    losses: list[float] = []
    codes = sorted({record.code for record in result})
    model.warm_up(
        made,
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
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    return done.stdout


def test_incomplete_folder_is_rebuilt_and_complete_one_reused(tmp_path: Path) -> None:
    folder = tmp_path / "input"
    folder.mkdir()
    (folder / "corpus.jsonl").write_text("torn")
    prepare(folder)
    assert (folder / "model" / "config.json").exists()
    assert (folder / "corpus.jsonl").read_text().count("\n") > 7500
    assert "nothing to prepare" in prepare(folder)
