"""YAML examples in README.md and docs/guides are valid."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.spec.resources import CaBundle, EnvVar
from raggrpo_api.spec.retrieval import RetrievalEndpoint
from raggrpo_api.spec.reward import RewardSpec
from raggrpo_api.spec.rollout import RolloutSpec
from raggrpo_api.spec.training import TrainingSpec
from raggrpo_api.trainer.progress import Segment
from raggrpo_operator.core.spec.parse import parse_job
from support.builders.operator.jobs import SAMPLES, make_job

ROOT = Path(__file__).parents[3]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
VALUES = yaml.safe_load((ROOT / "helm" / "raggrpo-operator" / "values.yaml").read_text())


def yaml_blocks(page: Path) -> list[Any]:
    """Return the parsed YAML blocks of a page."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [yaml.safe_load(block) for block in blocks]


def validate(example: Any) -> None:
    """Validate one example by its keys. Raises if it is invalid or of an unknown kind."""
    match example:
        case {"reward": reward}:
            RewardSpec.model_validate(reward)
        case {"jobPolicy": policy}:
            assert set(policy) <= set(VALUES["jobPolicy"])
        case {"endpoints": endpoints} | [*endpoints]:
            assert [RetrievalEndpoint.model_validate(each) for each in endpoints]
        case {"env": _} | {"model": _, "data": _} | {"volumes": _}:
            make_job(example)
        case {"caBundle": bundle}:
            CaBundle.model_validate(bundle)
        case {"env": variables}:
            assert [EnvVar.model_validate(each) for each in variables]
        case {"training": training}:
            TrainingSpec.model_validate(training)
        case {"rollout": rollout}:
            RolloutSpec.model_validate(rollout)
        case {"segments": segments}:
            assert [Segment.model_validate(each) for each in segments]
        case _:
            raise AssertionError(f"no validation for this example: {example}")


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "guides").glob("*.md")), ids=lambda p: p.stem
)
def test_guide_examples_are_valid(page: Path) -> None:
    for example in yaml_blocks(page):
        validate(example)


def test_readme_job_equals_minimal_sample() -> None:
    [job] = yaml_blocks(ROOT / "README.md")
    [sample] = [path for path in SAMPLES if path.stem == "minimal"]

    assert job == yaml.safe_load(sample.read_text())
    assert isinstance(parse_job(job), RagGrpoJob)
