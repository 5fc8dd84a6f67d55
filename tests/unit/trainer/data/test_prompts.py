import asyncio
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models, pre_tokenizers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from raggrpo_api.spec.retrieval import RetrievalSpec
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_trainer.data.prompt_files import Prompt
from raggrpo_trainer.data.prompts import (
    ComposedPrompt,
    Composer,
    PromptSource,
    PromptTooLong,
    compose,
    cut_to_tokens,
)
from raggrpo_trainer.data.sampler import Cursor, Sampler
from raggrpo_trainer.data.tokenizer import MAX_TOKEN_CHARACTERS, Tokenizer, leading_tokens
from raggrpo_trainer.errors import TrainerError
from support.builders.operator.jobs import make_trainer_config

CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def make_byte_tokenizer(chat_template: str | None = None) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    table = RustTokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    table.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    table.decoder = decoders.ByteLevel()
    tokenizer: Tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=table, chat_template=chat_template
    )
    return tokenizer


BYTES = make_byte_tokenizer()


def make_prompt(text: str = "Who?", index: int = 3) -> Prompt:
    return Prompt(index, text, text, ("me",), "")


def make_spec(**changes: Any) -> RetrievalSpec:
    return RetrievalSpec.model_validate(
        {
            "mode": "Prompt",
            "promptTemplate": "P:{passages}Q:{prompt}A:",
            "passageTemplate": "[{index}]{text};",
            **changes,
        }
    )


def compose_prompt(
    prompt: Prompt,
    passages: tuple[str, ...],
    retrieval: RetrievalSpec,
    *,
    limit: int = 1000,
    truncate: bool = False,
    seed: int = 0,
    tokenizer: Tokenizer = BYTES,
    template: str = "",
) -> ComposedPrompt:
    return compose(
        prompt,
        passages,
        retrieval,
        tokenizer,
        max_prompt_length=limit,
        allow_truncation=truncate,
        seed=seed,
        chat_template=template,
    )


def test_template_rendering_keeps_braces_in_values() -> None:
    result = compose_prompt(make_prompt("{prompt}?"), ("{text}", "b{"), make_spec())

    assert result.text == "P:[1]{text};[2]b{;Q:{prompt}?A:"
    assert result.passages == ("{text}", "b{")
    assert result.token_ids == tuple(BYTES(result.text, add_special_tokens=False)["input_ids"])
    assert len(result.token_ids) == len(result.text)
    assert not result.truncated


@pytest.mark.parametrize("mode", ["None", "Search", "Reward"])
def test_prompt_is_unchanged_in_retrieval_modes_other_than_prompt(mode: str) -> None:
    assert compose_prompt(make_prompt("Who?"), (), make_spec(mode=mode)).text == "Who?"


def test_chat_template_receives_rendered_text_as_user_message() -> None:
    result = compose_prompt(make_prompt(), ("p",), make_spec(), tokenizer=make_byte_tokenizer(CHAT))
    assert result.text == "<user>P:[1]p;Q:Who?A:</user><assistant>"
    assert len(result.token_ids) == len(result.text)


CONVERSATION = Prompt(
    3, "Who?", "Who?", ("me",), "", ({"role": "system", "content": "Be brief."},), ({"name": "f"},)
)


def test_earlier_messages_are_rendered_by_template() -> None:
    result = compose_prompt(CONVERSATION, ("p",), make_spec(), tokenizer=make_byte_tokenizer(CHAT))
    assert result.text == "<system>Be brief.</system><user>P:[1]p;Q:Who?A:</user><assistant>"


def test_job_chat_template_takes_precedence_and_receives_tools() -> None:
    job_template = "{{ tools[0].name }}|{% for m in messages %}{{ m.content }}|{% endfor %}"
    for tokenizer in (BYTES, make_byte_tokenizer(CHAT)):
        result = compose_prompt(
            CONVERSATION, (), make_spec(mode="None"), tokenizer=tokenizer, template=job_template
        )
        assert result.text == "f|Be brief.|Who?|"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("", "has a system prompt, earlier turns or tools, but the tokenizer has no chat template; "
            "set data.chatTemplate"),
        ("{{ raise_exception('no system role') }}", "rejected by the chat template "
            "(TemplateError: no system role); change the row, or set data.chatTemplate"),
        ("{% for %}", "rejected by the chat template (TemplateSyntaxError: "),
    ],
)  # fmt: skip
def test_unrenderable_conversation_is_rejected_with_row_number(
    template: str, expected: str
) -> None:
    with pytest.raises(TrainerError) as raised:
        compose_prompt(CONVERSATION, (), make_spec(mode="None"), template=template)
    assert str(raised.value).startswith("prompt 3 ")
    assert expected in str(raised.value)


def test_passages_are_truncated_to_max_passage_tokens() -> None:
    result = compose_prompt(make_prompt(), ("abcdef", "xy"), make_spec(maxPassageTokens=4))
    assert result.passages == ("abcd", "xy")
    assert not result.truncated


@pytest.mark.parametrize("tokenizer", [BYTES, ByT5Tokenizer()], ids=["fast", "slow"])
@pytest.mark.parametrize(
    ("limit", "expected"), [(0, ""), (2, ""), (3, "成"), (7, "成都"), (99, "成都市")]
)
def test_passage_truncation_does_not_split_characters(
    tokenizer: Any, limit: int, expected: str
) -> None:
    assert cut_to_tokens("成都市", limit, tokenizer) == expected


class Counting:
    """A tokenizer that records the lengths of the texts that it receives."""

    chat_template = None

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def __call__(self, text: str, **options: Any) -> Any:
        self.lengths.append(len(text))
        return BYTES(text, **options)


@pytest.mark.parametrize("truncate", [False, True])
def test_row_of_many_characters_is_not_tokenized(truncate: bool) -> None:
    tokenizer = Counting()
    question = "a" * (16 << 20)
    options: Any = {"limit": 64, "truncate": truncate, "tokenizer": cast("Tokenizer", tokenizer)}
    if truncate:
        composed = compose_prompt(make_prompt(question), (), make_spec(mode="None"), **options)
        assert composed.text == "a" * 64
    else:
        with pytest.raises(PromptTooLong, match="has at least 65536 tokens"):
            compose_prompt(make_prompt(question), (), make_spec(mode="None"), **options)
    assert max(tokenizer.lengths, default=0) <= 64 * MAX_TOKEN_CHARACTERS


@pytest.mark.parametrize("unit", ["a", "ab ", " ", "成"])
def test_long_passage_is_tokenized_only_at_its_start(unit: str) -> None:
    tokenizer = Counting()
    cut = cut_to_tokens(unit * 1_000_000, 100, cast("Tokenizer", tokenizer))

    assert cut == cut_to_tokens(unit * 200, 100, BYTES)
    assert sum(tokenizer.lengths) < 20_000


def test_passage_shuffling_depends_only_on_seed() -> None:
    passages = tuple("abcdefgh")
    orders = [
        compose_prompt(make_prompt(), passages, make_spec(shufflePassages=True), seed=s)
        for s in (1, 1, 2)
    ]

    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0].passages) == list(passages)
    assert orders[0].passages != passages
    assert "".join(orders[0].passages) == "".join(p[3] for p in orders[0].text[2:].split(";")[:-1])


def test_too_long_prompt_is_rejected_with_token_counts() -> None:
    with pytest.raises(
        PromptTooLong, match=r"has 26 tokens with its 2 passages .*maxPromptLength 25"
    ):
        compose_prompt(make_prompt(), ("aaaa", "bbbb"), make_spec(), limit=25)
    assert (
        len(compose_prompt(make_prompt(), ("aaaa", "bbbb"), make_spec(), limit=26).token_ids) == 26
    )


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (25, "P:[1]aaaa;Q:Who?A:"),
        (18, "P:[1]aaaa;Q:Who?A:"),
        (17, "P:Q:Who?A:"),
        (9, "P:Q:WhoA:"),
        (7, "P:Q:WA:"),
    ],
)
def test_truncation_drops_last_passages_then_end_of_question(limit: int, text: str) -> None:
    result = compose_prompt(
        make_prompt(), ("aaaa", "bbbb"), make_spec(), limit=limit, truncate=True
    )
    assert result.text == text
    assert len(result.token_ids) <= limit
    assert result.truncated


def test_truncated_question_is_reported_when_no_passage_was_dropped() -> None:
    result = compose_prompt(make_prompt("Who?"), (), make_spec(mode="None"), limit=3, truncate=True)
    assert (result.text, result.truncated) == ("Who", True)


def test_shuffling_does_not_change_dropped_passages() -> None:
    retrieval = make_spec(shufflePassages=True)
    for seed in range(8):
        result = compose_prompt(
            make_prompt(), tuple("abcd"), retrieval, limit=20, truncate=True, seed=seed
        )
        assert sorted(result.passages) == ["a", "b"]


def test_prompt_is_rejected_when_template_leaves_no_room_for_question() -> None:
    with pytest.raises(PromptTooLong):
        compose_prompt(make_prompt(), (), make_spec(), limit=6, truncate=True)


# --- prefetching ------------------------------------------------------------------------------


class CountingTokenizer:
    """Real tokenizer that records its inputs."""

    chat_template = None

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.calls = threading.Semaphore(0)

    def __call__(self, text: str, *, add_special_tokens: bool) -> Any:
        self.texts.append(text)
        self.calls.release()
        return BYTES(text, add_special_tokens=add_special_tokens)

    def apply_chat_template(self, conversation: Any, **_: Any) -> str:
        raise AssertionError("there is no template")


def make_config(**changes: Any) -> TrainerConfig:
    return make_trainer_config({"data.numWorkers": 2, "data.prefetchFactor": 2} | changes)


PROMPTS = [make_prompt(f"text {i}", i) for i in range(10)]


@pytest.fixture
def tokenizer() -> CountingTokenizer:
    counting = CountingTokenizer()
    leading_tokens(counting)  # cached, so that only prompts are counted
    counting.texts.clear()
    counting.calls = threading.Semaphore(0)
    return counting


@pytest.fixture
def composer(tokenizer: CountingTokenizer) -> Iterator[Composer]:
    composer = Composer(make_config(), tokenizer)
    yield composer
    composer.close()


async def batches(
    source: PromptSource, cursor: Cursor, count: int, size: int = 4
) -> list[list[int]]:
    result = []
    for _ in range(count):
        batch, cursor = await source.next_batch(cursor, size)
        result.append([p.index for p in batch])
    return result


async def test_prefetching_does_not_change_cursor_or_batch(composer: Composer) -> None:
    config = make_config(**{"training.seed": 9})
    plain = await batches(PromptSource(config, PROMPTS), Cursor(), 6)
    ahead = PromptSource(config, PROMPTS, composer)
    first, cursor = await ahead.next_batch(Cursor(), 4)

    assert cursor == Sampler(10, 9).next_batch(Cursor(), 4)[1] == Cursor(0, 4)
    assert [[p.index for p in first], *await batches(ahead, cursor, 5)] == plain
    assert await batches(ahead, cursor, 5) == plain[1:]  # resumes from a saved cursor


async def test_step_with_skipped_prompts_trains_on_next_batch() -> None:
    config = make_config().model_copy(update={"skipped_steps": [7]})
    source = PromptSource(config, PROMPTS)
    cursor = Cursor(0, 3)
    assert source.batch_start(6, cursor, 3) == cursor
    assert source.batch_start(7, cursor, 3) == Cursor(0, 6)


@pytest.mark.row("A18")
async def test_prompts_of_upcoming_batches_are_composed_in_advance(
    composer: Composer, tokenizer: CountingTokenizer
) -> None:
    source = PromptSource(make_config(), PROMPTS, composer)
    batch, cursor = await source.next_batch(Cursor(), 3)
    plain = PromptSource(make_config(), PROMPTS)
    upcoming = [i for b in await batches(plain, cursor, 2, size=3) for i in b]

    expected = {f"text {p.index}" for p in batch} | {f"text {i}" for i in upcoming}
    for _ in expected:
        assert await asyncio.to_thread(tokenizer.calls.acquire, timeout=20)
    assert set(tokenizer.texts) == expected


async def test_prefetched_prompt_is_composed_once(
    composer: Composer, tokenizer: CountingTokenizer
) -> None:
    source = PromptSource(make_config(), PROMPTS, composer)
    cursor = Cursor()
    for _ in range(2):
        batch, cursor = await source.next_batch(cursor, 3)
        for prompt in batch:
            assert await composer.compose(prompt, (), seed=1) == compose_prompt(
                prompt, (), make_config().retrieval
            )

    plain = PromptSource(make_config(), PROMPTS)
    used = [f"text {i}" for b in await batches(plain, Cursor(), 2, size=3) for i in b]
    assert [tokenizer.texts.count(text) for text in used] == [1] * 6


@pytest.mark.row("A8")
async def test_validation_prompt_is_not_confused_with_training_prompt_of_same_index(
    composer: Composer,
) -> None:
    batch, _ = await PromptSource(make_config(), PROMPTS, composer).next_batch(Cursor(), 3)
    for prompt in batch:
        held_out = make_prompt(f"held out {prompt.index}", prompt.index)
        assert "held out" in (await composer.compose(held_out, (), seed=1)).text
        assert prompt.text in (await composer.compose(prompt, (), seed=1)).text


async def test_prefetch_error_is_raised_when_prompt_is_used(composer: Composer) -> None:
    source = PromptSource(make_config(), [make_prompt("x" * 5000, 0)], composer)
    [prompt], _ = await source.next_batch(Cursor(), 1)

    with pytest.raises(PromptTooLong, match="5000 tokens"):
        await composer.compose(prompt, (), 0)
    with pytest.raises(PromptTooLong):
        await composer.compose(prompt, ("again",), 0)


async def test_prompts_with_passages_are_not_prefetched(tokenizer: CountingTokenizer) -> None:
    config = make_config(
        **{
            "retrieval.mode": "Prompt",
            "retrieval.endpoints": [{"name": "kb", "url": "http://kb:8000/retrieve"}],
        }
    )
    composer = Composer(config, tokenizer)
    [prompt, *_], _ = await PromptSource(config, PROMPTS, composer).next_batch(Cursor(), 2)

    result = await asyncio.wait_for(composer.compose(prompt, ("some passage",), 0), 10)
    composer.close()

    assert "some passage" in result.text
    assert all("Question" not in text or "some passage" in text for text in tokenizer.texts)


@pytest.mark.parametrize("num_workers", [1, 3])
async def test_prompts_are_composed_in_num_workers_threads(
    monkeypatch: pytest.MonkeyPatch, num_workers: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))
    barrier = threading.Barrier(num_workers, timeout=60)
    threads = set()

    def compose_together(*arguments: Any, **options: Any) -> ComposedPrompt:
        threads.add(threading.current_thread().name)
        barrier.wait()
        return compose(*arguments, **options)

    monkeypatch.setattr("raggrpo_trainer.data.prompts.compose", compose_together)
    composer = Composer(make_trainer_config({"data.numWorkers": num_workers}), BYTES)
    prompts = [make_prompt(index=i) for i in range(6)]
    await asyncio.gather(*(composer.compose(prompt, (), 0) for prompt in prompts))
    composer.close()

    assert len(threads) == num_workers
