"""Wrong jobs, each with what must be said about it: for the command and for the API server."""

from collections.abc import Mapping
from typing import Any

from support.builders.operator.jobs import REMOVED

AN_ENDPOINT = {"name": "kb", "url": "http://kb:8000/retrieve"}
ACTOR = {"name": "actor", "role": "Actor", "protocol": "RagChat", "url": "http://rag:8000/chat"}


def prompt_mode(**endpoint: object) -> dict[str, object]:
    return {"spec.retrieval": {"mode": "Prompt", "endpoints": [AN_ENDPOINT | endpoint]}}


def rewards(*functions: Mapping[str, object]) -> dict[str, object]:
    return {"spec.reward.functions": list(functions)}


WRONG: Mapping[str, tuple[Mapping[str, Any], list[str]]] = {
    "unknown field": ({"spec.data.trainBatchsize": 4},
        ["spec.data.trainBatchsize", "unknown field", "did you mean trainBatchSize?"]),
    "field of another block": ({"spec.training.temperature": 0.7},
        ["spec.training.temperature", "it belongs at spec.rollout.temperature"]),
    "wrong type": ({"spec.data.trainBatchSize": "many"},
        ["spec.data.trainBatchSize", "'many'", "→ give a valid integer"]),
    "number out of range": ({"spec.rollout.gpuMemoryUtilization": 1.7},
        ["spec.rollout.gpuMemoryUtilization", "1.7", "less than"]),
    "not a choice": ({"spec.preset": "Fastt"}, ["spec.preset", "did you mean Fast?"]),
    "wrong kind": ({"kind": "RayJob"}, ["kind:", "'RayJob'", "kind: RagGrpoJob"]),
    "wrong apiVersion": ({"apiVersion": "v1"}, ["'v1'", "→ apiVersion: raggrpo.io/v1alpha1"]),
    "missing block": ({"spec.model": REMOVED}, ["spec.model", "is missing", "add model:"]),
    "name too long": ({"metadata.name": "n" * 45},
        ["metadata.name", "lower-case letters, digits and hyphens, at most 44"]),
    "relative path": ({"spec.data.trainFiles": ["data/train.jsonl"]},
        ["spec.data.trainFiles[0]", "'data/train.jsonl'", "use an absolute path"]),
    "checkpoint off the volumes": ({"spec.checkpoint.path": "/tmp/checkpoints"},
        ["spec.checkpoint.path", "lies on no volume", "/mnt/runs/small"]),
    "n is not groupSize": ({"spec.rollout.n": 5, "spec.algorithm.groupSize": 3},
        ["spec.rollout.n", "5", "groupSize is 3", "make them equal"]),
    "group of one": ({"spec.rollout.n": 1}, ["spec.rollout.n", "rollout.n: 2 or more"]),
    "bad divisibility": ({"spec.data.trainBatchSize": 128, "spec.training.miniBatchPrompts": 48},
        ["spec.training.miniBatchPrompts", "48 prompts", "training.miniBatchPrompts: 32"]),
    "too long for the engine": (
        {"spec.rollout.maxNumBatchedTokens": 1024, "spec.data.maxPromptLength": 2048},
        ["spec.rollout.maxNumBatchedTokens", "maxPromptLength + maxResponseLength", "or more"]),
    "too long for a micro-batch": ({"spec.training.tokensPerMicroBatch": 100},
        ["spec.training.tokensPerMicroBatch", "100 tokens", "or more"]),
    "passages leave no room": ({**prompt_mode(topK=10), "spec.retrieval.maxPassageTokens": 256,
            "spec.data.maxPromptLength": 1024},
        ["spec.data.maxPromptLength", "10 passages × 256 tokens", "a lower topK"]),
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
        ["spec.env[0].value", "HF_TOKEN looks like a secret", "secretKeyRef"]),
    "secret in a header": (prompt_mode(headers=[{"name": "Authorization", "value": "Bearer abc"}]),
        ["endpoints[0].headers[0].value", "Authorization looks like a secret", "secretKeyRef"]),
    "URL with credentials": (prompt_mode(url="http://me:word@kb:8000/retrieve"),
        ["endpoints[0].url", "the URL holds credentials", "secretKeyRef"]),
    "URL without scheme": (prompt_mode(url="kb:8000"), ["endpoints[0].url", "give a full URL"]),
    "endpoint with neither url nor managed": (
        {"spec.retrieval": {"mode": "Prompt", "endpoints": [{"name": "kb"}]}},
        ["endpoints[0]", "endpoint kb has neither", "give exactly one of url and managed"]),
    "Prompt without a retriever": ({"spec.retrieval": {"mode": "Prompt"}},
        ["spec.retrieval.endpoints", "there are 0", "role: Retriever"]),
    "template without passages": ({**prompt_mode(), "spec.retrieval.promptTemplate": "{prompt}"},
        ["spec.retrieval.promptTemplate", "misses {passages}", "write {passages} and {prompt}"]),
    "RagScore without endpoints": (
        {**rewards({"name": "RagScore"}), "spec.retrieval": {"mode": "Reward"}},
        ["spec.retrieval.endpoints", "role Reference", "{name, role: Reference"]),
    "RagScore without a field": (
        {**rewards({"name": "RagScore"}),
         "spec.retrieval": {
             "mode": "Reward", "actorOutput": {"fields": ["rewritten_query"]},
             "endpoints": [ACTOR, ACTOR | {"name": "reference", "role": "Reference"}]}},
        ["spec.retrieval.actorOutput.fields", "need user_profile", "fields: [rewritten_query, "]),
    "Python reward without function": (rewards({"name": "Python"}),
        ["spec.reward.functions[0].python", "python: package.module:function"]),
    "Http reward without url": (rewards({"name": "Http"}),
        ["spec.reward.functions[0].url", "url: http://judge:8000/score"]),
    "validation without files": ({"spec.validation.everySteps": 10},
        ["spec.data.validationFiles", "held_out.jsonl"]),
}  # fmt: skip
