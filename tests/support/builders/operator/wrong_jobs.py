"""Invalid jobs and the texts that the CLI and the API server must report for them."""

from collections.abc import Mapping, Sequence
from typing import Any

from support.builders.operator.jobs import REMOVED

AN_ENDPOINT = {"name": "kb", "url": "http://kb:8000/retrieve"}
ACTOR = {"name": "actor", "role": "Actor", "protocol": "RagChat", "url": "http://rag:8000/chat"}
AN_AGENT = {"python": "app:answer"}


def prompt_mode(**endpoint: object) -> dict[str, object]:
    return {"spec.retrieval": {"mode": "Prompt", "endpoints": [AN_ENDPOINT | endpoint]}}


def rewards(*functions: Mapping[str, object]) -> dict[str, object]:
    return {"spec.reward.functions": list(functions)}


def make_volume(name: str, path: str, **more: object) -> dict[str, object]:
    return {"name": name, "claimName": name, "mountPath": path, **more}


Rows = Mapping[str, tuple[Mapping[str, Any], Sequence[str]]]
"""Name of a violation → (changes to a valid job, texts that the report must contain)."""

WRONG_FORMS: Rows = {
    "unknown field": ({"spec.data.trainBatchsize": 4},
        ["spec.data.trainBatchsize", "unknown field", "did you mean trainBatchSize?"]),
    "field of another block": ({"spec.training.temperature": 0.7},
        ["spec.training.temperature", "move it to spec.rollout.temperature"]),
    "wrong type": ({"spec.data.trainBatchSize": "many"},
        ["spec.data.trainBatchSize", "'many'", "→ specify a valid integer"]),
    "number out of range": ({"spec.rollout.gpuMemoryUtilization": 1.7},
        ["spec.rollout.gpuMemoryUtilization", "1.7", "less than"]),
    "not a choice": ({"spec.preset": "Fastt"}, ["spec.preset", "did you mean Fast?"]),
    "wrong kind": ({"kind": "RayJob"}, ["kind:", "'RayJob'", "kind: RagGrpoJob"]),
    "wrong apiVersion": ({"apiVersion": "v1"}, ["'v1'", "→ set apiVersion: raggrpo.io/v1alpha1"]),
    "missing block": ({"spec.model": REMOVED}, ["spec.model", "is missing", "add model to spec"]),
    "name too long": ({"metadata.name": "n" * 45},
        ["metadata.name", "at most 44 lower-case letters, digits and hyphens"]),
    "relative path": ({"spec.data.trainFiles": ["data/train.jsonl"]},
        ["spec.data.trainFiles[0]", "'data/train.jsonl'", "use an absolute path"]),
    "URL with credentials": (prompt_mode(url="http://me:word@kb:8000/retrieve"),
        ["endpoints[0].url", "the URL contains credentials", "secretKeyRef"]),
    "URL without scheme": (prompt_mode(url="kb:8000"), ["endpoints[0].url", "specify a full URL"]),
}  # fmt: skip
"""Texts reported by the CLI. (The API server words schema violations differently.)"""

WRONG_VALUES: Rows = {
    "checkpoint off the volumes": ({"spec.checkpoint.path": "/tmp/checkpoints"},
        ["spec.checkpoint.path", "not on a volume", "below the mountPath of a volume"]),
    "n differs from groupSize": ({"spec.rollout.n": 5, "spec.algorithm.groupSize": 3},
        ["spec.rollout.n", "differs from algorithm.groupSize", "make them equal"]),
    "group of one": ({"spec.rollout.n": 1}, ["spec.rollout.n", "rollout.n: 2 or more"]),
    "mini-batch no divisor": (
        {"spec.data.trainBatchSize": 128, "spec.training.miniBatchPrompts": 48},
        ["spec.training.miniBatchPrompts", "does not divide data.trainBatchSize", "to a divisor"]),
    "sequence exceeds engine step": (
        {"spec.rollout.maxNumBatchedTokens": 1024, "spec.data.maxPromptLength": 2048,
         "spec.data.maxResponseLength": 512},
        ["spec.rollout.maxNumBatchedTokens", "data.maxPromptLength + data.maxResponseLength",
         "rollout.maxNumBatchedTokens: 0"]),
    "sequence exceeds micro-batch": (
        {"spec.training.tokensPerMicroBatch": 100, "spec.data.maxPromptLength": 2048,
         "spec.data.maxResponseLength": 512},
        ["spec.training.tokensPerMicroBatch", "less than data.maxPromptLength", "at least this"]),
    "passages fill the prompt": ({**prompt_mode(topK=10), "spec.retrieval.maxPassageTokens": 256,
            "spec.data.maxPromptLength": 1024},
        ["spec.data.maxPromptLength", "leaves no room for the question", "reduce topK"]),
    "neither totalSteps nor epochs": ({"spec.training": {}},
        ["spec.training.totalSteps", "neither totalSteps nor epochs", "training.epochs: 1"]),
    "keepLast 1": ({"spec.checkpoint.keepLast": 1},
        ["spec.checkpoint.keepLast", "checkpoint.keepLast: 2 or more"]),
    "restarts without checkpoints": ({"spec.checkpoint.everySteps": 0},
        ["spec.checkpoint.everySteps", "recovery.maxRestarts: 0"]),
    "temperature 0": ({"spec.rollout.temperature": 0},
        ["spec.rollout.temperature", "rollout.temperature: 0.6"]),
    "off-policy on one GPU": ({"spec.training.offPolicySteps": 1},
        ["spec.training.offPolicySteps", "resources.placement: Disaggregated"]),
    "no GPU": ({"spec.resources.gpusPerNode": 0}, ["spec.resources.gpusPerNode", "device: CPU"]),
    "secret in plain env": ({"spec.env": [{"name": "HF_TOKEN", "value": "hf_abc"}]},
        ["spec.env[0].value", "the name looks like a secret", "secretKeyRef"]),
    **{
        f"secret in {name}": ({"spec.env": [{"name": name, "value": "x"}]},
            ["spec.env[0].value", "the name looks like a secret", "notSecret: true"])
        for name in ("DATABASE_URL", "BEARER", "OPENAIKEY", "KUBECONFIG_DATA", "SESSION_ID")
    },
    "token in plain env": ({"spec.env": [{"name": "MODE", "value": "gsk_" + "a1" * 20}]},
        ["spec.env[0].value", "the value looks like a secret", "notSecret: true"]),
    "session in a header": (prompt_mode(headers=[{"name": "X-Session-Id", "value": "x"}]),
        ["endpoints[0].headers[0].value", "the name looks like a secret", "notSecret: true"]),
    "token in a URL": (rewards({"name": "Http", "url": "http://h/r8_" + "a1" * 20}),
        ["spec.reward.functions[0].url", "looks like a secret", "notSecret: true"]),
    "secret in a header": (prompt_mode(headers=[{"name": "Authorization", "value": "Bearer abc"}]),
        ["endpoints[0].headers[0].value", "the name looks like a secret", "secretKeyRef"]),
    "endpoint with neither url nor managed": (
        {"spec.retrieval": {"mode": "Prompt", "endpoints": [{"name": "kb"}]}},
        ["endpoints[0]", "exactly one of url and managed", "specify one of the two"]),
    "Prompt without a retriever": ({"spec.retrieval": {"mode": "Prompt"}},
        ["spec.retrieval.endpoints", "exactly one endpoint with role Retriever", "SearchR1"]),
    "template without passages": ({**prompt_mode(), "spec.retrieval.promptTemplate": "{prompt}"},
        ["spec.retrieval.promptTemplate", "is missing", "write {passages} and {prompt}"]),
    "RagScore without endpoints": (
        {**rewards({"name": "RagScore"}), "spec.retrieval": {"mode": "Reward"}},
        ["spec.retrieval.endpoints", "role Reference", "{name, role: Reference"]),
    "RagScore without a field": (
        {**rewards({"name": "RagScore"}),
         "spec.retrieval": {
             "mode": "Reward", "actorOutput": {"fields": ["rewritten_query"]},
             "endpoints": [ACTOR, ACTOR | {"name": "reference", "role": "Reference"}]}},
        ["spec.retrieval.actorOutput.fields", "need user_profile", "fields: [user_profile, "]),
    "Python reward without function": (rewards({"name": "Python"}),
        ["spec.reward.functions[0].python", "python: package.module:function"]),
    "Http reward without url": (rewards({"name": "Http"}),
        ["spec.reward.functions[0].url", "url: http://judge:8000/score"]),
    "validation without files": ({"spec.validation.everySteps": 10},
        ["spec.data.validationFiles", "held_out.jsonl"]),
}  # fmt: skip
"""Texts reported by both the CLI and the API server."""


def forwarded(**values: object) -> dict[str, object]:
    return {"forward": [{"models": ["judge"], "url": "http://judge/v1"} | values]}


def nested(levels: int) -> object:
    """Return an object within objects, with a text on the innermost level."""
    return {"a": nested(levels - 1)} if levels > 1 else "{question}"


WRONG_AGENTS: Sequence[tuple[str, Mapping[str, Any], str, str]] = (
    ("type", {"type": "Docker"}, 'supported values: "Python"', "choose one of 'Python'"),
    ("python", {"python": "app.answer"}, "should match", "write package.module:function"),
    ("python", {"python": "app:answer()"}, "should match", "write package.module:function"),
    ("interpreter", {"interpreter": "venv/bin/python"}, "should match", "absolute path"),
    ("interpreter", {"interpreter": "/venv/../bin/python"}, "should match", "without them"),
    ("url", {"url": "app:8000"}, "should match", "full URL"),
    ("url", {"url": "https://me:word@app/"}, "should match", "remove the credentials"),
    ("identify", {"identify": "Header"}, 'supported values: "Slot"', "choose one of 'Slot'"),
    ("request", {"request": "a" * 16_385}, "16384", "shorten it"),
    ("request", {"request": ["a"] * 513}, "at most 512 items", "simplify it"),
    ("request", {"request": {f"k{i}": i for i in range(513)}}, "512", "simplify it"),
    ("request", {"request": nested(13)}, "", "simplify it"),
    ("request", {"request": {"k" * 257: "{question}"}}, "", "shorten it"),
    ("notSecret", {"notSecret": "yes"}, "must be of type boolean", "true or false"),
    ("answer", {"answer": "choices..text"}, "should match", "a path such as"),
    ("passages", {"passages": "hits[x]"}, "should match", "a path such as"),
    ("reward", {"reward": "$."}, "should match", "a path such as"),
    ("policyModels", {"policyModels": []}, "at least 1 items", "another"),
    ("policyModels", {"policyModels": ["a"] * 17}, "at most 16 items", "another"),
    ("policyModels[0]", {"policyModels": ["gpt 4"]}, "should match", "ASCII without spaces"),
    ("forward", {"forward": [{"models": ["a"], "url": "http://a"}] * 9},
        "at most 8 items", "another"),
    ("forward[0].models", {"forward": [{"url": "http://judge/v1"}]},
        "Required value", "add models to"),
    ("forward[0].models", forwarded(models=[]), "at least 1 items", "another"),
    ("forward[0].models[0]", forwarded(models=["my judge"]),
        "should match", "ASCII without spaces"),
    ("forward[0].url", {"forward": [{"models": ["judge"]}]}, "Required value", "add url to"),
    ("forward[0].url", forwarded(url=""), "at least 1 chars long", "another"),
    ("forward[0].url", forwarded(url="judge:8000/v1"), "should match", "full URL"),
    ("forward[0].apiKeySecret.name", forwarded(apiKeySecret={"name": "A", "key": "k"}),
        "should match", "lower-case letters"),
    ("forward[0].apiKeySecret.key", forwarded(apiKeySecret={"name": "a", "key": "..a"}),
        "should match", "hyphens, underscores"),
    ("forward[0].apiKeySecret.key", forwarded(apiKeySecret={"name": "a"}),
        "Required value", "add key to"),
    ("maxTurns", {"maxTurns": 0}, "greater than or equal to 1", "another"),
    ("maxTurns", {"maxTurns": 1025}, "less than or equal to 1024", "another"),
    ("maxTurns", {"maxTurns": 2.5}, "must be of type integer", "a valid"),
    ("timeoutSeconds", {"timeoutSeconds": 0}, "greater than 0", "another"),
    ("timeoutSeconds", {"timeoutSeconds": 86_401}, "less than or equal to 86400", "another"),
    ("timeoutSeconds", {"timeoutSeconds": "5m"}, "must be of type number", "a valid"),
    ("onError", {"onError": "Retry"}, 'supported values: "ZeroReward"', "'DropSample'"),
    ("processes", {"processes": -1}, "greater than or equal to 0", "another"),
    ("processes", {"processes": 1025}, "less than or equal to 1024", "another"),
    ("processMemory", {"processMemory": "1GB"}, "should match", "such as 64Gi"),
    ("toolParser", {"toolParser": "her mes"}, "should match", "vLLM's parsers"),
    ("reasoningParser", {"reasoningParser": "qwen/3"}, "should match", "vLLM's parsers"),
    ("maxTurn", {"maxTurn": 4}, "unknown field", "did you mean maxTurns?"),
)  # fmt: skip
"""Field below `spec.rollout.agent`, values of a Python agent, text of the API server, and remedy.

The text of the API server is empty if only the operator rejects the value.
"""
