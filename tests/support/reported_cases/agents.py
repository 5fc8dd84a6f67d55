"""Reported cases about applications that call the policy through the gateway."""

import asyncio
import math
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from raggrpo_trainer.data.prompt_files import Prompt
from raggrpo_trainer.engines.generation import Generation
from raggrpo_trainer.exchange.groups import Completion
from raggrpo_trainer.gateway.trajectory import Trajectory, TrajectoryCause
from raggrpo_trainer.rollout.failure_ledger import FailureLedger
from raggrpo_trainer.rollout.grouping import form_groups
from raggrpo_trainer.rollout.sample_metrics import sample_metrics
from raggrpo_trainer.rollout.samples import Rollouts, Sample
from support.builders.trainer.gateway_models import Says, byte_tokenizer, ids_of, in_turn
from support.reported_cases.case import case
from support.servers.served_gateway import Served, served_gateway

USER = {"role": "user", "content": "q"}
CHANGES: list[Callable[[str], str]] = [
    str.strip,
    str.upper,
    lambda text: text.replace("\n", "\r\n"),
    lambda text: text + " ",
    lambda text: f"**{text}**",
    lambda _: "",
]


def talk(says: Says, application: Callable[[Served], Coroutine[Any, Any, None]]) -> Trajectory:
    """Run an application; return its trajectory."""

    async def run() -> Trajectory:
        async with served_gateway(says) as served:
            served.open()
            await application(served)
            return await served.gateway.close("key")

    return asyncio.run(run())


async def answer(served: Served, *messages: Any) -> Any:
    """Return the message that answers a conversation, or the error."""
    _, body = await served.post({"model": "m", "messages": messages})
    return body["choices"][0]["message"] if "choices" in body else body["error"]


@case("G1", fault="The application changes an answer before the next turn", inputs=CHANGES)
def changed_answer_starts_row(_folder: Path, change: Callable[[str], str]) -> None:
    """Each sampled token trains once, after what the engine processed."""

    async def application(served: Served) -> None:
        said = await answer(served, USER)
        changed = {"role": "assistant", "content": change(said["content"])}
        await answer(served, USER, changed, USER)

    trajectory = talk(in_turn(byte_tokenizer(), " fox\nred ", "end"), application)
    rows = trajectory.rows()
    assert len(rows) == 2
    expected = {(turn.prompt.ids, turn.token_ids, turn.logprobs) for turn in trajectory.turns}
    assert {(row.prompt_ids, row.token_ids, row.logprobs) for row in rows} == expected
    assert all(all(row.sampled) for row in rows)


@case(
    "G2",
    fault="A reply without logprobs",
    inputs=[(), (-1.0,), (-1.0, -1.0, -1.0), (math.nan, -1.0)],
)
def reply_without_logprobs_fails_sample(_folder: Path, logprobs: tuple[float, ...]) -> None:
    """The trajectory fails under its cause; the logprobs of the other turn stay with its tokens."""
    tokenizer = byte_tokenizer()
    ids = ids_of(tokenizer, "f") + ids_of(tokenizer, "x")
    says = in_turn(tokenizer, Generation(ids, logprobs, "stop", 0), "end")

    async def application(served: Served) -> None:
        assert "logprobs" in (await answer(served, USER))["message"]
        await answer(served, USER, USER)

    trajectory = talk(says, application)
    assert trajectory.failure
    assert trajectory.failure.cause is TrajectoryCause.MISSING_LOGPROBS
    assert trajectory.failure.is_fatal
    [turn] = trajectory.turns
    assert turn.content == "end"
    assert len(turn.logprobs) == len(turn.token_ids)


@case(
    "G3",
    fault="A request of another API",
    inputs=[
        "/messages",
        "/messages/count_tokens",
        "/responses",
        "/embeddings",
        "/chat",
        "/complete",
    ],
)
def request_of_other_api_is_rejected(_folder: Path, path: str) -> None:
    """The error names the supported endpoints, and the trajectory has a failure."""

    async def application(served: Served) -> None:
        body = {"model": "m", "max_tokens": 9, "messages": [USER]}
        status, error = await served.post(body, path)
        assert status == 404
        assert "POST /v1/chat/completions" in error["error"]["message"]

    trajectory = talk(in_turn(byte_tokenizer()), application)
    assert trajectory.turns == []
    assert trajectory.failure
    assert f"POST /v1{path} is not supported" in trajectory.failure.detail


@case("G4-rows", fault="A trajectory with two leaves")
def common_turn_of_two_leaves_trains_once(_folder: Path) -> None:
    """Both rows belong to one trajectory and train the common turn once."""

    async def application(served: Served) -> None:
        said = await answer(served, USER)
        for text in ("a", "b"):
            await answer(served, USER, said, {"role": "user", "content": text})

    trajectory = talk(in_turn(byte_tokenizer(), "fox", "one", "two"), application)
    rows = trajectory.rows()
    assert len(rows) == 2
    sampled = sum(len(turn.token_ids) for turn in trajectory.turns)
    assert sum(sum(row.sampled) for row in rows) == sampled


@case("G4-samples", fault="A trajectory with two leaves")
def sample_with_two_leaves_counts_once(_folder: Path) -> None:
    """Metrics and advantages of four samples count the one with two rows once."""
    samples = [_sample(index, reward=float(index == 0)) for index in range(4)]
    samples[0].forks = [((1, 3), Completion((4,), (True,), (-0.1,), (0, 0)))]
    groups = form_groups(samples, zero_reward=False, normalize_by_std=False)
    metrics = sample_metrics(Rollouts(tuple(samples), {}, FailureLedger()), groups)

    assert metrics.num_samples == 4
    assert metrics.reward_mean == metrics.exact_match == 0.25
    assert metrics.zero_variance == 0.0
    assert [group.advantages for group in groups] == [(0.75, -0.25, -0.25, -0.25), (0.75,)]


def _sample(index: int, reward: float) -> Sample:
    prompt = Prompt(0, "q", query="q", answer=("a",), context="")
    sample = Sample(prompt, index, 0, prompt_ids=(1,), reward=reward, exact_match=reward)
    sample.token_ids, sample.sampled, sample.logprobs = [2], [True], [-0.1]
    return sample
