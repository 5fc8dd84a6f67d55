"""Check Tokenizer: its ids, the texts that the run must find in completions, start and end."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raggrpo_api.spec.retrieval import ActorFormat, RetrievalMode
from raggrpo_api.spec.reward import RewardKind
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.preflight import CheckId
from raggrpo_trainer.data.tokenizer import (
    Tokenizer,
    completion_text,
    end_token_ids,
    start_tokens,
    token_ids,
)
from raggrpo_trainer.rollout.search_turn import SEARCH_END

from .finding import Finding, finding_for, not_evaluated

MEDIA_TOKENS = ("image_token", "video_token", "audio_token")
"""Attributes of tokenizers with tokens that only an encoder of media uses.

Text models of such families have no row for them in their embedding.
"""


@dataclass(frozen=True, slots=True)
class TokenizerCheck:
    """The finding, and the text of the tokens that start each prompt."""

    finding: Finding
    prompt_start: str


def check_tokenizer(
    config: TrainerConfig, tokenizer: Tokenizer | None, embedding_rows: int
) -> TokenizerCheck:
    """Check a model's tokenizer; `embedding_rows` is 0 if unknown."""
    if tokenizer is None:
        return TokenizerCheck(not_evaluated(CheckId.TOKENIZER, "requires the tokenizer"), "")
    end_ids = end_token_ids(tokenizer, Path(config.model.path))
    problems = [
        *_problems_of_ids(tokenizer, embedding_rows),
        *_problems_of_ends(end_ids, embedding_rows),
        *_problems_of_texts(config, tokenizer, end_ids),
    ]
    start = _shown(start_tokens(tokenizer, config.data.chat_template), tokenizer)
    evidence = [f"prompts start with {start}, as the tokenizer's default"] if start else []
    if end_ids:
        evidence.append(f"completions end with {_shown(sorted(end_ids), tokenizer)}")
    else:
        evidence.insert(
            0,
            "no eos_token in tokenizer, generation_config.json or config.json: completions end "
            "only at data.maxResponseLength; set it in tokenizer_config.json",
        )
    text = "; ".join(evidence)
    finding = finding_for(CheckId.TOKENIZER, problems, text, is_unusual=not end_ids)
    return TokenizerCheck(finding, start)


def required_texts(config: TrainerConfig) -> dict[str, str]:
    """Return the texts that the run must find in completions, with their purpose."""
    texts: dict[str, str] = {}
    retrieval = config.retrieval
    tags: list[str] = []
    if retrieval.mode is RetrievalMode.SEARCH:
        texts |= {"<search>": "start of a query", SEARCH_END: "stop string of a search"}
        if any(term.name is RewardKind.FORMAT for term in config.reward.functions):
            tags.append("answer")
    if retrieval.mode is RetrievalMode.REWARD and retrieval.actor_output.format is ActorFormat.TAGS:
        tags += retrieval.actor_output.fields
    for tag in tags:
        texts |= {f"<{tag}>": "tag", f"</{tag}>": "tag"}
    if config.reward.answer_marker:
        texts[config.reward.answer_marker] = "reward.answerMarker"
    return texts


def _problems_of_ids(tokenizer: Any, rows: int) -> Iterator[str]:
    """Yield a problem if the tokenizer has ids without a row in the embedding."""
    media = {getattr(tokenizer, name, None) for name in MEDIA_TOKENS}
    beyond = sorted(
        (number, token)
        for token, number in tokenizer.get_vocab().items()
        if 0 < rows <= number and token not in media
    )
    if not beyond:
        return
    number, token = beyond[0]
    others = f" and {len(beyond) - 1:,} more tokens" if beyond[1:] else ""
    yield (
        f"token {token!r}{others}: id {number:,} of the tokenizer is beyond the embedding of "
        f"{rows:,} rows: use the tokenizer of the model, or call "
        "model.resize_token_embeddings(len(tokenizer)) and save both"
    )


def _problems_of_ends(end_ids: frozenset[int], rows: int) -> Iterator[str]:
    """Yield a problem if a model folder names an end token without a row in the embedding."""
    if beyond := [str(number) for number in sorted(end_ids) if 0 < rows <= number]:
        yield (
            f"eos_token_id {', '.join(beyond)} is beyond the embedding of {rows:,} rows: correct "
            "generation_config.json and config.json"
        )


def _problems_of_texts(
    config: TrainerConfig, tokenizer: Tokenizer, end_ids: frozenset[int]
) -> Iterator[str]:
    """Yield a problem for each required text that no completion can contain."""
    for text, purpose in required_texts(config).items():
        ids = token_ids(text, tokenizer)
        decoded = completion_text(ids, tokenizer, end_ids)
        # Tokenizers may split or strip a text differently inside of a sentence.
        sentences = (token_ids(f"a{space}{text}{space}a", tokenizer) for space in (" ", ""))
        decodings = (decoded, *(completion_text(each, tokenizer, end_ids) for each in sentences))
        if not any(text in each for each in decodings) and not _is_in_a_token(text, tokenizer):
            yield (
                f"{text!r} ({purpose}) becomes {decoded!r} when it is encoded and decoded, so that "
                "no completion contains it: use a tokenizer that can represent it, or another text"
            )


def _is_in_a_token(text: str, tokenizer: Any) -> bool:
    return any(text != token and text in token for token in tokenizer.get_vocab())


def _shown(ids: Iterable[int], tokenizer: Any) -> str:
    """Return tokens as text; an id that the tokenizer does not have is shown as a number."""
    numbers = list(ids)
    tokens = tokenizer.convert_ids_to_tokens(numbers)
    return " ".join(token or str(number) for number, token in zip(numbers, tokens, strict=True))
