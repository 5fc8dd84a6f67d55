"""Reported cases about sampling parameters that the engine rejects or changes."""

from pathlib import Path

import pytest
from vllm.exceptions import VLLMValidationError

from raggrpo_operator.core.rules import violations
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_trainer.engines.generation import GenerationRequest, sampling_params
from support.builders.operator.jobs import make_job
from support.reported_cases.case import case

REJECTED = [5.0, 2.001, 0.001, 100.0]


@case("J1", fault="The engine rejects or changes a value that the job accepts", inputs=REJECTED)
def temperatures_that_the_engine_does_not_apply_are_rejected(
    _folder: Path, temperature: float
) -> None:
    """The job is rejected with the engine's bounds."""
    job = make_job({"rollout.temperature": temperature})
    [problem] = violations(job, resolve(job))
    assert problem.path == "spec.rollout.temperature"
    assert "vLLM accepts 0 < temperature ≤ 2" in problem.message


@case("J1-bounds", fault="The bounds of a rule differ from those of the engine")
def bounds_of_the_rule_are_those_of_the_engine(_folder: Path) -> None:
    """The engine applies the lowest and highest accepted temperature unchanged."""
    for temperature in (0.01, 2.0):
        assert sampling_params(_request(temperature)).temperature == temperature
    with pytest.raises(VLLMValidationError, match="temperature"):
        sampling_params(_request(2.001))
    assert sampling_params(_request(0.009)).temperature == 0.01


def _request(temperature: float) -> GenerationRequest:
    return GenerationRequest(
        prompt_ids=(1,), max_tokens=1, temperature=temperature, top_p=1.0, seed=1,
        stop_token_ids=(), stop=(),
    )  # fmt: skip
