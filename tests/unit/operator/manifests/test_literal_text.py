"""Text of a job reaches the processes of its pods unchanged."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raggrpo_api import names
from raggrpo_api.trainer.sealed_config import open_sealed
from raggrpo_operator.core.manifests.pods import literal
from raggrpo_operator.core.spec.resolve import resolve, trainer_config
from support.builders.operator.adversarial_text import ADVERSARIAL_TEXT
from support.builders.operator.jobs import KNOWN_TINY, make_job
from support.builders.operator.manifests import all_manifests, make_clustered_job, pod_templates
from support.kubernetes.kubelet import command_and_environment, expand_references

SECRET = {"name": "A_SECRET", "secretKeyRef": {"name": "wandb", "key": "key"}}
REFERENCES = "$(A_SECRET) $$(A_SECRET) $A_SECRET ${A_SECRET} $$"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("$(A)", "x"), ("$$(A)", "$(A)"), ("$$$(A)", "$x"), ("$(B)", "$(B)"), ("$(A", "$(A"),
     ("$A $ $", "$A $ $"), ("$$", "$"), ("$()", "$()"), ("$(A)$(A))", "xx)")],
)  # fmt: skip
def test_fake_kubelet_expands_variables(text: str, expected: str) -> None:
    assert expand_references(text, {"A": "x"}) == expected


@pytest.mark.row("E5")
@given(st.text("A$(){} ", max_size=12) | st.text(max_size=12))
def test_text_escaped_by_literal_is_not_expanded(text: str) -> None:
    assert expand_references(literal(text), {"A": "x", "": "y"}) == text


def test_templates_env_and_paths_reach_containers_unexpanded() -> None:
    template = "{passages} {prompt} " + REFERENCES + ADVERSARIAL_TEXT
    corpus = f"/mnt/kb/{REFERENCES}.jsonl"
    job = make_clustered_job(
        make_job(
            {
                "env": [SECRET, {"name": "GIVEN", "value": REFERENCES}],
                "retrieval.mode": "Prompt",
                "retrieval.promptTemplate": template,
                "retrieval.endpoints": [
                    {
                        "name": "kb",
                        "managed": {
                            "corpus": corpus,
                            "index": "Dense",
                            "embedding": {"path": corpus, "queryPrefix": REFERENCES},
                            "vectors": corpus,
                        },
                    }
                ],
            }
        ),
        KNOWN_TINY,
    )
    manifests = all_manifests(job)

    for pod in pod_templates(manifests["raycluster"]):
        for container in pod["spec"]["containers"]:
            assert command_and_environment({"command": [], **container})[1]["GIVEN"] == REFERENCES
    [preflight] = manifests["preflight"]["spec"]["containers"]
    _, env = command_and_environment(preflight)
    assert env["GIVEN"] == REFERENCES
    config = json.loads(open_sealed(env))
    assert config["retrieval"]["promptTemplate"] == template
    expected = trainer_config(job, resolve(job, KNOWN_TINY), number=1)
    assert config["schemaDigest"] == expected.schema_digest
    [retriever] = manifests["retriever-kb"]["spec"]["template"]["spec"]["containers"]
    command, _ = command_and_environment(retriever)
    assert command[command.index("--corpus") + 1] == corpus
    assert command[command.index("--vectors") + 1] == corpus
    assert f"--query-prefix={REFERENCES}" in command


def test_config_variables_are_reserved_in_job_env() -> None:
    assert {names.ENV_CONFIG, names.ENV_CONFIG_SHA256} <= names.RESERVED_ENV
