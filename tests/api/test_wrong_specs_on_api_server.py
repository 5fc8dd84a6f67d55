"""Wrong specs at `kubectl apply`, with no operator there; and that server and operator agree."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from raggrpo_api.job import RagGrpoJob
from raggrpo_operator.core.rules import violations
from raggrpo_operator.core.spec.parse import parse_job
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.spec.violation import Severity
from support.builders.operator.jobs import REMOVED, SAMPLES, make_raw_job
from support.builders.operator.wrong_jobs import ACTOR, AN_ENDPOINT, WRONG, prompt_mode, rewards
from support.kubernetes.admission import refusal
from tools.kind.api_server import ApiServer

CPU = {"device": "CPU"}
LONG = {"spec.data.maxPromptLength": 2048, "spec.data.maxResponseLength": 512}
APART = {"gpusPerNode": 8, "placement": "Disaggregated"}
RAG = {
    **rewards({"name": "RagScore"}),
    "spec.retrieval": {
        "mode": "Reward",
        "endpoints": [ACTOR, ACTOR | {"name": "reference", "role": "Reference"}],
    },
}


def in_search(*endpoints: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"mode": "Search", "endpoints": list(endpoints), **more}


def make_volume(name: str, path: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "claimName": name, "mountPath": path, **more}


SAID: Mapping[str, Sequence[str]] = {
    "unknown field": ["unknown field", "spec.data.trainBatchsize"],
    "field of another block": ["unknown field", "spec.training.temperature"],
    "wrong type": ["spec.data.trainBatchSize", "must be of type integer"],
    "number out of range": ["spec.rollout.gpuMemoryUtilization", "less than or equal to 0.95"],
    "not a choice": ["spec.preset", '"Fastt"', 'supported values: "Fast"'],
    "wrong kind": ['no matches for kind "RayJob"', "raggrpo.io/v1alpha1"],
    "wrong apiVersion": ['no matches for kind "RagGrpoJob"', '"v1"'],
    "missing block": ["spec.model", "Required value"],
    "name too long": ["metadata.name: use lower-case letters", "at most 44"],
    "relative path": ["spec.data.trainFiles[0]", "should match '^/"],
    "checkpoint off the volumes": ["spec.checkpoint.path", "below the mountPath of a volume"],
    "n is not groupSize": ["spec.rollout.n", "algorithm.groupSize", "make them equal"],
    "group of one": ["spec.rollout.n", "2 or more"],
    "bad divisibility": ["spec.training.miniBatchPrompts", "must divide data.trainBatchSize"],
    "passages leave no room": ["spec.data.maxPromptLength", "leave no room", "raise"],
    "neither totalSteps nor epochs": ["spec.training", "give training.totalSteps or"],
    "keepLast 1": ["spec.checkpoint.keepLast", "2 or more"],
    "restarts without checkpoints": ["spec.checkpoint.everySteps", "recovery.maxRestarts 0"],
    "temperature 0": ["spec.rollout.temperature", "must be above 0"],
    "off-policy on one GPU": ["spec.training.offPolicySteps", "needs resources.placement"],
    "no GPU": ["spec.resources.gpusPerNode", "resources.device: CPU"],
    "secret in plain env": ["spec.env[0]", "looks like a secret", "secretKeyRef"],
    "secret in a header": ["endpoints[0].headers[0]", "looks like a secret", "secretKeyRef"],
    "URL with credentials": ["endpoints[0].url", "should match"],
    "URL without scheme": ["endpoints[0].url", "should match '^(https?"],
    "endpoint with neither url nor managed": ["endpoints[0]", "exactly one of url and managed"],
    "Prompt without a retriever": ["spec.retrieval.endpoints", "one endpoint with role Retriever"],
    "template without passages": ["spec.retrieval.promptTemplate", "write {passages}"],
    "RagScore without endpoints": ["spec.retrieval", "role Actor", "role Reference"],
    "RagScore without a field": ["spec.retrieval.actorOutput.fields", "needs user_profile"],
    "Python reward without function": ["spec.reward.functions[0]", "python: package.module"],
    "Http reward without url": ["spec.reward.functions[0]", "need url"],
    "validation without files": ["spec.data.validationFiles", "switch it off"],
}
"""Row of the command's table → what kubectl says on it."""

NEEDS_DEFAULTS = {"too long for the engine", "too long for a micro-batch"}
"""Rows that compare with a value the user did not give: only the operator can refuse them."""

MORE: Mapping[str, tuple[Mapping[str, Any], Sequence[str]]] = {
    "bare n": ({"spec.rollout": {"false": 4}},
        ["spec.rollout", 'write "n": 3', "algorithm.groupSize"]),
    "dots in the name": ({"metadata.name": "a.b"}, ["metadata.name", "lower-case letters"]),
    "both targets": ({"spec.training.epochs": 2}, ["spec.training.epochs", "not both"]),
    "group size one": ({"spec.algorithm.groupSize": 1}, ["spec.algorithm.groupSize", "2 or more"]),
    "clip range upside down": ({"spec.algorithm": {"clipRatioLow": 0.4, "clipRatioHigh": 0.2}},
        ["spec.algorithm.clipRatioHigh", "must not be below clipRatioLow"]),
    "clip range without width": ({"spec.algorithm": {"clipRatioLow": 0, "clipRatioHigh": 0}},
        ["spec.algorithm.clipRatioHigh", "above 0"]),
    "batch beyond the samples": ({"spec.data.trainBatchSize": 64, "spec.data.maxSamples": 32},
        ["spec.data.trainBatchSize", "data.maxSamples"]),
    "fewer prompts than ranks": (
        {"spec.data.trainBatchSize": 8, "spec.resources": {"gpusPerNode": 8, "nodes": 2}},
        ["spec.data.trainBatchSize", "fewer prompts per update than ranks"]),
    "too long for the engine, all given": (LONG | {"spec.rollout.maxNumBatchedTokens": 1024},
        ["spec.rollout.maxNumBatchedTokens", "maxPromptLength + maxResponseLength"]),
    "too long for a micro-batch, all given": (LONG | {"spec.training.tokensPerMicroBatch": 100},
        ["spec.training.tokensPerMicroBatch", "maxPromptLength + maxResponseLength"]),
    "searches leave no room": (
        {"spec.retrieval": in_search(AN_ENDPOINT | {"topK": 5}, maxTurns=4, maxPassageTokens=256),
         "spec.data.maxResponseLength": 512},
        ["spec.data.maxResponseLength", "leave no room to the answer"]),
    "no utilization": ({"spec.rollout.gpuMemoryUtilization": 0},
        ["spec.rollout.gpuMemoryUtilization", "at least 0.05"]),
    "utilization when colocated": ({"spec.rollout.gpuMemoryUtilization": 0.85},
        ["spec.rollout.gpuMemoryUtilization", "0.7 or less when Colocated"]),
    "tensor parallel and GPUs": (
        {"spec.rollout.tensorParallelSize": 3, "spec.resources.gpusPerNode": 8},
        ["spec.rollout.tensorParallelSize", "must divide resources.gpusPerNode"]),
    "tensor parallel and rollout GPUs": (
        {"spec.rollout.tensorParallelSize": 4, "spec.resources": APART | {"rolloutGpus": 2}},
        ["spec.rollout.tensorParallelSize", "must divide resources.rolloutGpus"]),
    "tensor parallel on CPU": ({"spec.rollout.tensorParallelSize": 2, "spec.resources": CPU},
        ["spec.rollout.tensorParallelSize", "must be 1"]),
    "rollout GPUs when colocated": ({"spec.resources.rolloutGpus": 2},
        ["spec.resources.rolloutGpus", "needs placement Disaggregated"]),
    "disaggregated without rollout GPUs": ({"spec.resources": APART},
        ["spec.resources.rolloutGpus", "1 or more"]),
    "shm above memory": ({"spec.resources.shmSize": "64Gi", "spec.resources.memory": "32Gi"},
        ["spec.resources.shmSize", "must be below resources.memory"]),
    "no quantity": ({"spec.resources.memory": "64 GB"}, ["spec.resources.memory", "should match"]),
    "FlashAttention on CPU": ({"spec.model.attention": "Flash", "spec.resources": CPU,
            "spec.training.rowLayout": "Padded"},
        ["spec.model.attention", "needs resources.device GPU"]),
    "FlashAttention with shared prefixes": ({"spec.model.attention": "Flash"},
        ["spec.model.attention", "rowLayout Padded"]),
    "checkpoint on a read-only volume": (
        {"spec.volumes": [make_volume("w", "/mnt/runs", readOnly=True)]},
        ["spec.checkpoint.path", "read-only volume"]),
    "one mountPath twice": (
        {"spec.volumes": [make_volume("a", "/mnt/runs"), make_volume("b", "/mnt/runs")]},
        ["spec.volumes", "mountPath is given twice"]),
    "volume on a folder of the pod": (
        {"spec.volumes": [make_volume("a", "/dev/shm/")]},
        ["spec.volumes[0].mountPath", "mount it elsewhere"]),
    "digit first": ({"metadata.name": "7b"}, ["metadata.name", "beginning with a letter"]),
    "one volume name twice": (
        {"spec.volumes": [make_volume("a", "/mnt/runs"), make_volume("a", "/mnt/data",
            claimName="b")]},
        ["spec.volumes[1]", "Duplicate value"]),
    "one variable twice": ({"spec.env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]},
        ["spec.env[1]", "Duplicate value"]),
    "reserved variable": ({"spec.env": [{"name": "RAY_ADDRESS", "value": "x"}]},
        ["spec.env[0].name", "set by the operator, remove it"]),
    "value and reference": (
        {"spec.env": [{"name": "A", "value": "1", "secretKeyRef": {"name": "s", "key": "k"}}]},
        ["spec.env[0]", "not both"]),
    "url and managed": (prompt_mode(managed={"corpus": "/mnt/runs/corpus.jsonl"}),
        ["endpoints[0]", "exactly one of url and managed"]),
    "dense without a model": (
        {"spec.retrieval": {"mode": "Prompt", "endpoints": [
            {"name": "kb", "managed": {"corpus": "/mnt/runs/c.jsonl", "index": "Dense"}}]}},
        ["endpoints[0].managed", "need embedding"]),
    "model of no use": (
        {"spec.retrieval": {"mode": "Prompt", "endpoints": [
            {"name": "kb", "managed": {"corpus": "/mnt/runs/c.jsonl",
                                       "embedding": {"path": "/mnt/runs/e5"}}}]}},
        ["endpoints[0].managed", "index BM25 uses neither"]),
    "protocol of another role": (prompt_mode(protocol="RagChat"),
        ["endpoints[0].protocol", "role Retriever speaks SearchR1"]),
    "two retrievers": (
        {"spec.retrieval": in_search(AN_ENDPOINT, AN_ENDPOINT | {"name": "other"})},
        ["spec.retrieval.endpoints", "exactly one endpoint with role Retriever"]),
    "secret in the query": (prompt_mode(url="http://kb:8000/retrieve?lang=en&api_key=abc"),
        ["endpoints[0].url", "query holds what looks like a secret"]),
    "secret in the judge's query": (
        rewards({"name": "Http", "url": "http://judge/score?token=abc"}),
        ["functions[0].url", "looks like a secret"]),
    "passage template without text": (
        {**prompt_mode(), "spec.retrieval.passageTemplate": "[{index}]"},
        ["spec.retrieval.passageTemplate", "write {text}"]),
    "one field twice": ({"spec.retrieval.actorOutput": {"fields": ["a", "a"]}},
        ["spec.retrieval.actorOutput.fields", "given twice"]),
    "RagScore in another mode": ({**RAG, "spec.retrieval.mode": "Prompt"},
        ["spec.retrieval", "set retrieval.mode Reward"]),
    "RagScore without context": ({**RAG, "spec.data.columns": {"context": ""}},
        ["spec.data.columns.context", "RagScore"]),
    "no answers": ({"spec.data.columns": {"answer": ""}}, ["spec.data.columns.answer", "name the"]),
    "no prompts": ({"spec.data.columns": {"prompt": ""}}, ["spec.data.columns.prompt", "name the"]),
    "rewards without weight": (
        rewards({"name": "F1", "weight": 0}, {"name": "Format", "weight": 0}),
        ["spec.reward.functions", "at least one function a weight"]),
    "backoff upside down": ({"spec.recovery": {"backoffSeconds": 60, "maxBackoffSeconds": 30}},
        ["spec.recovery.maxBackoffSeconds", "must not be below backoffSeconds"]),
    "too many endpoints": (
        {"spec.retrieval.endpoints": [AN_ENDPOINT | {"name": f"e{i}"} for i in range(9)]},
        ["spec.retrieval.endpoints", "must have at most 8 items"]),
    "path that leaves its folder": ({"spec.checkpoint.path": "/mnt/runs/../../etc"},
        ["spec.checkpoint.path", "should match"]),
    "path with two slashes": ({"spec.model.path": "//etc"}, ["spec.model.path", "should match"]),
    "path with a newline": ({"spec.data.trainFiles": ["/mnt/runs/a\nb"]},
        ["spec.data.trainFiles[0]", "should match"]),
    "path that is too long": ({"spec.checkpoint.path": "/mnt/runs/" + "a" * 480},
        ["spec.checkpoint.path", "480"]),
    "host that no program reads": (prompt_mode(url="http://[/"),
        ["endpoints[0].url", "should match"]),
    "host that is normalised": (prompt_mode(url="http://\u2100/"),
        ["endpoints[0].url", "should match"]),
    "header over two lines": (prompt_mode(headers=[{"name": "X-A", "value": "a\r\nX-B: b"}]),
        ["headers[0].value", "should match"]),
    "header of the connection": (prompt_mode(headers=[{"name": "Content-Length", "value": "5"}]),
        ["headers[0].name", "set by the HTTP client"]),
    "queue that is no label": ({"spec.scheduling": {"queueName": "a b"}},
        ["spec.scheduling.queueName", "should match"]),
    "node selector without a key": ({"spec.scheduling": {"nodeSelector": {"a b": "c"}}},
        ["spec.scheduling.nodeSelector", "keys of labels"]),
    "node selector without a value": ({"spec.scheduling": {"nodeSelector": {"zone": "-"}}},
        ["spec.scheduling.nodeSelector", "should match"]),
    "toleration without a key": ({"spec.scheduling": {"tolerations": [{"operator": "Equal"}]}},
        ["spec.scheduling.tolerations[0]", "Equal compares a key"]),
    "toleration with a value": ({"spec.scheduling": {"tolerations": [{"key": "a", "value": "b"}]}},
        ["spec.scheduling.tolerations[0]", "Exists takes no value"]),
    "class of the cluster": ({"spec.scheduling": {"priorityClassName": "system-node-critical"}},
        ["spec.scheduling.priorityClassName", "belongs to the cluster"]),
    "resource of Kubernetes": ({"spec.resources.gpuResourceName": "x.kubernetes.io/gpu"},
        ["spec.resources.gpuResourceName", "extended resource"]),
    "image that is none": ({"spec.image": "Registry/Trainer:1"}, ["spec.image", "should match"]),
    "digest without an image": ({"spec.image": "0" * 64}, ["spec.image", "digest alone"]),
    "one pull secret twice": ({"spec.imagePullSecrets": ["a", "a"]},
        ["spec.imagePullSecrets", "given twice"]),
    "claim that is no name": ({"spec.volumes": [make_volume("w", "/mnt/runs", claimName="A/b")]},
        ["spec.volumes[0].claimName", "should match"]),
    "key that is none": (
        {"spec.env": [{"name": "A", "secretKeyRef": {"name": "s", "key": "..a"}}]},
        ["spec.env[0].secretKeyRef.key", "should match"]),
    "no CPU": ({"spec.resources.cpu": "0"}, ["spec.resources.cpu", "not within 1m to 4096"]),
    "memory that no node has": ({"spec.resources.memory": "999999999999Ti"},
        ["spec.resources.memory", "not within 64Mi to 64Ti"]),
    "thousandths of a byte": ({"spec.resources.memory": "5m"},
        ["spec.resources.memory", "should match"]),
    "volume below a folder of the pod": (
        {"spec.volumes": [make_volume("a", "/mnt/runs"), make_volume("b", "/dev/shm/x")]},
        ["spec.volumes[1].mountPath", "mount it elsewhere"]),
    "volume above a folder of the pod": (
        {"spec.volumes": [make_volume("a", "/mnt/runs"), make_volume("b", "/home/")]},
        ["spec.volumes[1].mountPath", "mount it elsewhere"]),
    "one mountPath with a slash and without": (
        {"spec.volumes": [make_volume("a", "/mnt/runs"), make_volume("b", "/mnt/runs/")]},
        ["spec.volumes", "mountPath is given twice"]),
    "secret under another name": ({"spec.env": [{"name": "DB_PASS", "value": "x"}]},
        ["spec.env[0]", "looks like a secret"]),
    "secret by its value": (
        {"spec.env": [{"name": "DATABASE", "value": "postgres://me:word@db/x"}]},
        ["spec.env[0]", "looks like a secret"]),
    "signature in the query": (prompt_mode(url="http://kb/retrieve?X-Amz-Signature=abc"),
        ["endpoints[0].url", "looks like a secret"]),
    "webhook": (rewards({"name": "Http", "url": "https://hooks.slack.com/services/T/B/x"}),
        ["functions[0].url", "looks like a secret"]),
    "environment too large": (
        {"spec.env": [{"name": f"A{i}", "value": "\u4e2d" * 1024} for i in range(11)]},
        ["spec.env", "more than 32768 bytes"]),
    "texts too large": (
        {"spec.data.trainFiles": [f"/mnt/runs/{i}" + "\u4e2d" * 400 for i in range(56)]},
        ["spec", "more than 65536 bytes"]),
    "no files": ({"spec.data.trainFiles": []}, ["spec.data.trainFiles", "at least 1 items"]),
    "no spec": ({"spec": REMOVED}, ["spec", "Required value"]),
}  # fmt: skip
"""What only a cluster sees, and what the command's table leaves to the rules' own tests."""


def operator_objects(raw: Mapping[str, Any]) -> bool:
    """Return whether the operator would refuse the job, were the API server to let it pass."""
    job = parse_job(raw)
    if not isinstance(job, RagGrpoJob):
        return True
    return any(found.severity is Severity.ERROR for found in violations(job, resolve(job)))


def test_every_row_of_the_command_has_its_answer_here() -> None:
    assert set(WRONG) == set(SAID) | NEEDS_DEFAULTS


@pytest.mark.row("A1", "B2")
@pytest.mark.parametrize("row", SAID)
def test_a_wrong_job_is_refused_by_kubectl_with_field_and_remedy(
    row: str, api_server: ApiServer
) -> None:
    changes, _ = WRONG[row]
    raw = make_raw_job(changes)
    ended = api_server.kubectl(
        "apply", "--dry-run=server", "-f", "-", stdin=json.dumps(raw), check=False
    )

    assert ended.returncode == 1, ended.stdout
    assert [word for word in SAID[row] if word not in ended.stderr] == [], ended.stderr
    assert operator_objects(raw)


@pytest.mark.parametrize("row", MORE)
def test_a_wrong_job_is_refused_with_field_and_remedy(row: str, http: httpx.Client) -> None:
    changes, words = MORE[row]
    raw = make_raw_job(changes)
    said = refusal(http, "default", raw)

    assert [word for word in words if word not in said] == [], said
    assert operator_objects(raw)


def test_a_bare_n_in_yaml_is_explained(api_server: ApiServer) -> None:
    text = yaml.safe_dump(make_raw_job({"spec.rollout": {"n": 4}}))
    assert "\n    n: 4\n" in text
    refused = api_server.kubectl("apply", "--dry-run=server", "-f", "-", stdin=text, check=False)
    quoted = text.replace(" n: 4", ' "n": 4')
    taken = api_server.kubectl("apply", "--dry-run=server", "-f", "-", stdin=quoted, check=False)

    assert 'write "n": 3' in refused.stderr
    assert taken.stderr == ""


def test_all_problems_are_told_at_once(api_server: ApiServer) -> None:
    raw = make_raw_job({"spec.rollout.temperature": 0, "spec.checkpoint.keepLast": 1})
    ended = api_server.kubectl(
        "apply", "--dry-run=server", "-f", "-", stdin=json.dumps(raw), check=False
    )

    assert "spec.rollout.temperature" in ended.stderr
    assert "spec.checkpoint.keepLast" in ended.stderr


# --- server and operator agree

VALUES: Mapping[str, Sequence[Any]] = {
    "spec.preset": ["Fast", "Debug", "MemoryLimited", "MaxPerformance"],
    "spec.model.attention": ["Auto", "Sdpa", "Flash", "Eager"],
    "spec.data.trainBatchSize": [1, 4, 10, 128],
    "spec.data.maxSamples": [0, 4, 500],
    "spec.data.maxPromptLength": [8, 600, 4096],
    "spec.data.maxResponseLength": [1, 512, 4096],
    "spec.data.allowTruncation": [False, True],
    "spec.data.validationFiles": [[], ["/mnt/runs/held_out.jsonl"]],
    "spec.data.columns": [{}, {"answer": ""}, {"context": ""}, {"prompt": ""}],
    "spec.rollout.n": [1, 2, 3, 8],
    "spec.rollout.temperature": [0, 0.6, 5],
    "spec.rollout.gpuMemoryUtilization": [0.1, 0.6, 0.7, 0.8, 0.95],
    "spec.rollout.tensorParallelSize": [1, 2, 3, 8],
    "spec.rollout.maxNumBatchedTokens": [0, 1024, 16384],
    "spec.algorithm.groupSize": [1, 2, 3, 8],
    "spec.algorithm.clipRatioLow": [0, 0.2, 0.3],
    "spec.algorithm.clipRatioHigh": [0, 0.2, 0.28],
    "spec.training.totalSteps": [0, 10],
    "spec.training.epochs": [0, 1],
    "spec.training.miniBatchPrompts": [0, 1, 3, 64],
    "spec.training.tokensPerMicroBatch": [1, 2048, 16384],
    "spec.training.rowLayout": ["SharedPrefix", "Padded"],
    "spec.training.precision": ["BF16", "FP32", "Auto"],
    "spec.training.offPolicySteps": [0, 1],
    "spec.retrieval.mode": ["None", "Prompt", "Search", "Reward"],
    "spec.retrieval.maxPassageTokens": [1, 64, 256],
    "spec.retrieval.maxTurns": [1, 4],
    "spec.retrieval.promptTemplate": ["{passages}{prompt}", "{prompt}", "{passages} {prompt} {"],
    "spec.retrieval.passageTemplate": ["{text}", "{index}"],
    "spec.retrieval.actorOutput.fields": [["a"], ["a", "a"]],
    "spec.retrieval.endpoints": [
        [],
        [AN_ENDPOINT],
        [AN_ENDPOINT | {"topK": 10}],
        [AN_ENDPOINT | {"managed": {"corpus": "/mnt/runs/c.jsonl"}}],
        [{"name": "kb", "managed": {"corpus": "/mnt/runs/c.jsonl", "index": "Dense"}}],
        [AN_ENDPOINT | {"protocol": "RagChat"}],
        [AN_ENDPOINT | {"url": "http://kb/?token="}],
        [AN_ENDPOINT | {"url": "http://kb/?a=b&x_token=1"}],
        [AN_ENDPOINT | {"url": "http://kb/a&key=1"}],
        [AN_ENDPOINT | {"url": "http://kb/#?key=1"}],
        [AN_ENDPOINT | {"url": "http://kb/?max_tokens=1"}],
        [AN_ENDPOINT | {"extraBody": {"secret": "", "tenant": "acme"}}],
        [AN_ENDPOINT | {"headers": [{"name": "Cookie", "value": "a"}]}],
        [AN_ENDPOINT, ACTOR],
        [ACTOR, ACTOR | {"name": "reference", "role": "Reference"}],
    ],
    "spec.reward.functions": [
        [{"name": "F1"}],
        [{"name": "F1", "weight": 0}],
        [{"name": "F1", "weight": 0}, {"name": "Format"}],
        [{"name": "RagScore"}],
        [{"name": "Python"}],
        [{"name": "Http", "url": "http://judge/score"}],
    ],
    "spec.validation.everySteps": [0, 5],
    "spec.validation.beforeTraining": [False, True],
    "spec.checkpoint.path": ["/mnt/runs", "/mnt/runs/x", "/mnt/runsx", "/mnt/runs/ro/x"],
    "spec.checkpoint.everySteps": [0, 10],
    "spec.checkpoint.keepLast": [1, 2],
    "spec.volumes": [
        [],
        [{"name": "w", "claimName": "w", "mountPath": "/mnt/runs/"}],
        [{"name": "w", "claimName": "w", "mountPath": "/"}],
        [
            {"name": "w", "claimName": "w", "mountPath": "/mnt/runs"},
            {"name": "ro", "claimName": "r", "mountPath": "/mnt/runs/ro", "readOnly": True},
        ],
        [
            {"name": "w", "claimName": "w", "mountPath": "/mnt/runs", "readOnly": True},
            {"name": "rw", "claimName": "r", "mountPath": "/mnt/runs/ro"},
        ],
        [{"name": "w", "claimName": "w", "mountPath": "/mnt/runs"}] * 2,
    ],
    "spec.env": [
        [{"name": "A", "value": "1"}],
        [{"name": "HF_TOKEN", "value": ""}],
        [{"name": "HF_TOKEN", "value": "x"}],
        [{"name": "RAY_ADDRESS"}],
        [{"name": "A"}, {"name": "A"}],
    ],
    "spec.resources.device": ["GPU", "CPU"],
    "spec.resources.nodes": [1, 2],
    "spec.resources.gpusPerNode": [0, 1, 8],
    "spec.resources.ranks": [1, 4],
    "spec.resources.placement": ["Colocated", "Disaggregated"],
    "spec.resources.rolloutGpus": [0, 2],
    "spec.resources.memory": ["", "1k", "64Gi", "0.5Gi"],
    "spec.resources.shmSize": ["", "16Gi", "64Gi", "2"],
    "spec.recovery.maxRestarts": [0, 3],
    "spec.recovery.backoffSeconds": [0, 10, 600],
    "spec.recovery.maxBackoffSeconds": [0, 360],
}
"""Values on both sides of every rule."""


def changes_to(values: Mapping[str, Sequence[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(sorted(values)), st.integers(0, 99), max_size=8).map(
        lambda chosen: {place: values[place][i % len(values[place])] for place, i in chosen.items()}
    )


@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=changes_to(VALUES))
@example(changes={})
@example(changes={"spec.volumes": [make_volume("w", "/mnt/runs/")]})
def test_what_the_server_refuses_the_operator_refuses_too(
    changes: dict[str, Any], http: httpx.Client
) -> None:
    raw = make_raw_job(changes)
    refused = refusal(http, "default", raw)
    assert not refused or operator_objects(raw), refused


ODD: Sequence[Any] = (
    None, True, 0, 1, -1, 2.5, 10**12, "", "x", "a b", "/x", "1Gi", "Fast", "http://h/x", [],
    ["/x"], [1], {}, {"x": 1}, {"name": "a"}, [{"name": "a"}],
)  # fmt: skip


def places(value: Any, place: str) -> list[str]:
    """Return the places of all fields below a mapping; what lists hold is left out."""
    if not isinstance(value, Mapping):
        return [place]
    return [place, *(found for key in value for found in places(value[key], f"{place}.{key}"))]


FULL = yaml.safe_load(next(p for p in SAMPLES if p.stem == "full").read_text())


@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.sampled_from(places(FULL["spec"], "spec")), value=st.sampled_from(ODD))
@example(place="spec.rollout.gpuMemoryUtilization", value=0)
def test_wrong_forms_are_refused_by_both(place: str, value: Any, http: httpx.Client) -> None:
    raw = make_raw_job({place: value} if place != "spec" else {"spec": value})
    is_wrong = not isinstance(parse_job(raw), RagGrpoJob)
    refused = refusal(http, "default", raw)
    assert bool(refused) or not is_wrong, parse_job(raw)
    assert not refused or operator_objects(raw), refused
