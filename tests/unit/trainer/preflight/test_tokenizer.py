import json
from pathlib import Path
from typing import Any

import pytest

from raggrpo_api.trainer.preflight import CheckState
from raggrpo_trainer.data.tokenizer import Tokenizer, load_tokenizer
from raggrpo_trainer.preflight.tokenizer import check_tokenizer, required_texts
from support.builders.trainer.preflight import make_fit_config
from support.builders.trainer.word_model import END, write_word_model

SEARCH = {
    "retrieval.mode": "Search",
    "retrieval.endpoints": [{"name": "kb", "protocol": "SearchR1", "url": "http://127.0.0.1:9/"}],
}
REWARD = {
    "retrieval.mode": "Reward",
    "retrieval.actorOutput": {"format": "Tags", "fields": ["query"]},
    "retrieval.endpoints": [],
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, set()),
        ({"reward.answerMarker": "####"}, {"####"}),
        (SEARCH, {"<search>", "</search>"}),
        (
            SEARCH | {"reward.functions": [{"name": "Format"}]},
            {"<search>", "</search>", "<answer>", "</answer>"},
        ),
        (REWARD, {"<query>", "</query>"}),
    ],
)
def test_required_texts_depend_on_mode_and_rewards(
    tmp_path: Path, changes: dict[str, Any], expected: set[str]
) -> None:
    assert set(required_texts(make_fit_config(tmp_path, changes))) == expected


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Return a tokenizer of whole words; `<q>a</q>` is one word."""
    folder = tmp_path_factory.mktemp("words")
    write_word_model(folder, ["<search>", "</search>", "Final", "answer:", "<query>a</query>"])
    return load_tokenizer(str(folder))


@pytest.mark.row("D17")
@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (SEARCH, ""),
        (REWARD, ""),
        ({"reward.answerMarker": "Final answer:"}, ""),
        ({"reward.answerMarker": "####"}, "'####' (reward.answerMarker) becomes '?'"),
        ({"reward.answerMarker": END}, f"'{END}' (reward.answerMarker) becomes ''"),
        (SEARCH | {"reward.functions": [{"name": "Format"}]}, "'<answer>' (tag) becomes '?'"),
    ],
)
def test_text_that_no_completion_can_contain_is_rejected(
    tmp_path: Path, words: Tokenizer, changes: dict[str, Any], problem: str
) -> None:
    finding = check_tokenizer(make_fit_config(tmp_path, changes), words, 99).finding
    assert (finding.state is CheckState.FAILED) == bool(problem), finding.evidence
    assert problem in finding.evidence


def test_media_token_without_embedding_row_is_accepted(tmp_path: Path) -> None:
    """Text models of Gemma 3 have an image token without a row in the embedding."""
    config = make_fit_config(tmp_path)
    file = tmp_path / "model" / "tokenizer.json"
    table = json.loads(file.read_text())
    table["added_tokens"] = [
        {"id": 256, "content": "<image_soft_token>", "special": True, "single_word": False}
        | {"lstrip": False, "rstrip": False, "normalized": False}
    ]
    file.write_text(json.dumps(table))
    tokenizer: Any = load_tokenizer(config.model.path)

    assert check_tokenizer(config, tokenizer, 256).finding.state is CheckState.FAILED
    tokenizer.image_token = "<image_soft_token>"
    assert check_tokenizer(config, tokenizer, 256).finding.state is CheckState.PASSED
