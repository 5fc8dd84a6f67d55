from raggrpo_operator.local_runtime.secret_values import missing_secrets, trainer_env
from support.builders.operator.jobs import make_job

ENV = [
    {"name": "PLAIN", "value": "x"},
    {"name": "WANDB_API_KEY", "secretKeyRef": {"name": "wandb", "key": "key"}},
]
HEADERS = [{"name": "Authorization", "secretKeyRef": {"name": "rag", "key": "token"}}]
ENDPOINTS = [{"name": "kb", "url": "http://kb", "headers": HEADERS}]


def test_trainer_env_reads_secrets_from_variables() -> None:
    spec = make_job({"env": ENV}).spec

    env = trainer_env(spec, {"HOME": "/h", "RAGGRPO_SECRET_WANDB_KEY": "s3"})

    assert env["WANDB_API_KEY"] == "s3"
    assert (env["PLAIN"], env["HOME"]) == ("x", "/h")


def test_missing_secrets_are_reported_with_variables() -> None:
    key = {"name": "models", "key": "token"}
    forward = [{"models": ["judge"], "url": "http://models/v1", "apiKeySecret": key}]
    agent = {"python": "app:answer", "forward": forward}
    spec = make_job({"env": ENV, "retrieval.endpoints": ENDPOINTS, "rollout.agent": agent}).spec

    assert missing_secrets(spec, {}) == [
        "spec.env WANDB_API_KEY refers to key key of Secret wandb: "
        "export RAGGRPO_SECRET_WANDB_KEY=...",
        "spec.rollout.agent.forward[0].apiKeySecret refers to key token of Secret models: "
        "export RAGGRPO_SECRET_MODELS_TOKEN=...",
        "spec.retrieval.endpoints[0].headers[0].secretKeyRef refers to key token of Secret rag: "
        "export RAGGRPO_SECRET_RAG_TOKEN=...",
    ]


def test_empty_secret_variable_is_not_reported_as_missing() -> None:
    spec = make_job({"env": ENV}).spec

    assert missing_secrets(spec, {"RAGGRPO_SECRET_WANDB_KEY": ""}) == []


def test_ca_bundle_requires_variable_with_path_of_file() -> None:
    spec = make_job({"caBundle": {"configMap": "authorities"}}).spec

    [missing] = missing_secrets(spec, {})
    assert missing == "spec.caBundle: export RAGGRPO_CA_BUNDLE=/path/to/ca.crt"
    assert missing_secrets(spec, {"RAGGRPO_CA_BUNDLE": "/etc/ca.crt"}) == []
    assert trainer_env(spec, {"RAGGRPO_CA_BUNDLE": "/c"})["RAGGRPO_CA_BUNDLE"] == "/c"
