"""The API server's CEL and the operator's predicates report the same violations of a spec."""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.trainer.preflight import Facts
from raggrpo_operator.core.rules import RULES, RuleInput, SpecRule
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.parse import parse_job
from raggrpo_operator.core.spec.resolve import resolve
from support.builders.operator.jobs import REMOVED, make_raw_job
from support.builders.operator.wrong_jobs import ACTOR, AN_ENDPOINT, make_volume

SPECS = 2400
SPEC_RULES = [rule for rule in RULES if isinstance(rule, SpecRule)]
PATH = "/apis/raggrpo.io/v1alpha1/namespaces/default/raggrpojobs"
REFERENCE = ACTOR | {"name": "reference", "role": "Reference"}
REF = {"name": "s", "key": "k"}
CORPUS = {"corpus": "/mnt/runs/c.jsonl"}
JUDGE = {"model": "j", "prompt": "Grade {completion}."}
JUDGED = {"name": "Judge", "url": "http://judge/v1/chat/completions"}


def managed(**values: Any) -> dict[str, Any]:
    return {"name": "kb", "managed": CORPUS | values}


def with_header(**values: Any) -> dict[str, Any]:
    return AN_ENDPOINT | {"headers": [values]}


def forward(url: str, *models: str) -> dict[str, Any]:
    return {"url": url, "models": list(models)}


def with_url(url: str) -> dict[str, Any]:
    return AN_ENDPOINT | {"url": url}


VALUES: Mapping[str, Sequence[Any]] = {
    "preset": ["Fast", "Debug", "MemoryLimited", "MaxPerformance"],
    "image": ["0" * 63, "0" * 64, "a:0"],
    "imagePullSecrets": [[], ["a"], ["a", "b"], ["a", "b", "a"]],
    "model.attention": ["Auto", "Sdpa", "Flash", "Eager"],
    "model.source": [REMOVED, "hf://org/name"],
    "output.push": [REMOVED, "hf://org/name", "hf://org/name@v1/sub", "s3://bucket/key"],
    "data.sources": [[], ["hf://org/name"]],
    "data.validationSources": [[], ["hf://org/name"]],
    "data.trainFiles": [[], ["/mnt/runs/t"], [f"/mnt/runs/{i}" + "中" * 400 for i in range(56)]],
    "data.trainBatchSize": [1, 4, 10, 128],
    "data.maxSamples": [0, 3, 4, 500],
    "data.maxPromptLength": [8, 600, 768, 769, 4096],
    "data.maxResponseLength": [1, 512, 513, 4096],
    "data.allowTruncation": [False, True],
    "data.validationFiles": [[], ["/mnt/runs/held_out.jsonl"]],
    "data.columns": [{}, {"answer": ""}, {"context": ""}, {"prompt": ""}, {"prompt": "q"}],
    "rollout.n": [1, 2, 3, 8],
    "rollout.temperature": [0, 0.0, 0.009, 0.01, 0.6, 2, 2.1, 5],
    "rollout.gpuMemoryUtilization": [0.1, 0.7, 0.71, 0.9, 0.91],
    "rollout.tensorParallelSize": [1, 2, 3, 8],
    "rollout.maxNumBatchedTokens": [0, 1023, 1024, 1112, 8192],
    "rollout.agent": [
        {}, {"type": "Python"}, {"python": "a:b"}, {"url": "http://a"}, {"type": "Http"},
        {"python": "a:b", "identify": "Slot"}, {"python": "a:b", "identify": "Trace"},
        {"python": "a:b", "url": "http://a"}, {"python": "", "url": ""},
        {"python": "a:b", "interpreter": "/venv/bin/python"},
        *({"type": "Http", "url": "http://a/x", **more} for more in (
            {}, {"identify": "Slot"}, {"identify": "Trace"}, {"python": "a:b"},
            {"identify": "Request", "request": {"key": "{apiKey}"}},
            {"interpreter": "/venv/bin/python"},
            {"identify": "Trace", "allowFrom": {"namespace": "apps", "podSelector": "app=a"}},
            {"identify": "Trace", "processes": 1},
        )),
        {"python": "a:b", "allowFrom": {"namespace": "apps", "podSelector": "app=a"}},
        {"python": "a:b", "processes": 2, "processMemory": "64Mi"},
        {"python": "a:b", "processMemory": "63Mi"},
        {"python": "a:b", "container": {"image": "app:1"}},
        {"type": "Container", "identify": "Trace"}, {"type": "Container", "processes": 1},
        *({"type": "Container", "identify": "Trace", "container": {"image": "app:1"} | more}
          for more in (
            {}, {"image": "0" * 64}, {"cpu": "0"}, {"cpu": "500m"}, {"memory": "63Mi"},
            {"memory": "1Gi"}, {"egress": ["http://a/.."]}, {"egress": ["http://a"]},
            {"env": [{"name": "OPENAI_API_KEY"}]}, {"env": [{"name": "RAY_ADDRESS"}]},
            {"env": [{"name": "A", "value": "1", "secretKeyRef": REF}]},
            {"env": [{"name": "API_KEY", "value": "x"}]},
            {"env": [{"name": "API_KEY", "value": "x", "notSecret": True}]},
            {"env": [{"name": "A", "value": "hf_" + "a" * 20}]},
            {"env": [{"name": f"A{i}", "value": "中" * 1024} for i in range(11)]},
        )),
        *({"python": "a:b", "forward": entries} for entries in (
            [], [forward("http://j/v1", "a")], [forward("http://j/v1", "*")],
            [forward("http://j/v1/chat/completions", "a", "b", "a")],
            [forward("http://j/v1?token=abc", "a"), forward("http://j/embeddings", "b")],
            [forward("http://j", "a"), forward("http://j", "a*", "a")],
        )),
        {"python": "a:b", "policyModels": ["p"], "forward": [forward("http://j", "p")]},
        {"python": "a:b", "policyModels": ["p"], "forward": [forward("http://j", "*", "q")]},
        {"type": "Http", "url": "http://a/x?token=abc", "identify": "Trace"},
    ],
    "algorithm.groupSize": [1, 2, 3, 8],
    "algorithm.clipRatioLow": [0, 0.2, 0.28, 0.3],
    "algorithm.clipRatioHigh": [0, 0.0, 0.2, 0.28],
    "training.totalSteps": [0, 10],
    "training.epochs": [0, 1],
    "training.miniBatchPrompts": [0, 1, 3, 64],
    "training.tokensPerMicroBatch": [1, 1111, 1112, 8192],
    "training.lora": [
        {}, {"rank": 8}, *({"targets": targets} for targets in (
            [], ["AllLinear"], ["AllLinear", "q_proj"], ["q_proj"], ["q_proj", "q_proj"],
            ["mlp.up_proj", "up_proj"], ["lm_head"], ["a.embed_tokens"], ["lm_head.a"], ["wte"],
        )),
    ],
    "training.rowLayout": ["SharedPrefix", "Padded"],
    "training.precision": ["BF16", "FP16", "FP32", "Auto"],
    "training.offPolicySteps": [0, 1],
    "retrieval.mode": ["None", "Prompt", "Search", "Reward"],
    "retrieval.maxPassageTokens": [1, 64, 85, 86, 256],
    "retrieval.maxTurns": [1, 2, 4],
    "retrieval.promptTemplate": ["{passages}{prompt}", "{prompt}", "{passages} {prompt} {"],
    "retrieval.passageTemplate": ["{text}", "{index}", "{{text}}"],
    "retrieval.actorOutput.fields": [
        ["user_profile", "rewritten_query", "history_summary"], ["a"], ["a", "b", "a"],
    ],
    "retrieval.endpoints": [
        [], [AN_ENDPOINT], [AN_ENDPOINT | {"topK": 3}], [AN_ENDPOINT | {"topK": 10}],
        [AN_ENDPOINT | managed()], [{"name": "kb"}], [managed()], [managed(index="Dense")],
        [managed(index="Hybrid", embedding={"path": "/e5"})], [managed(vectors="/v.npy")],
        [managed(embedding={"path": "/e5"})], [managed(indexPath="/mnt/runs/i")],
        [managed(memory="63Mi")], [managed(memory="64Mi")], [managed(memory="65Ti")],
        [AN_ENDPOINT | {"protocol": "RagChat"}], [AN_ENDPOINT | {"protocol": "Http"}],
        [managed() | {"protocol": "Http"}], [AN_ENDPOINT | {"role": "Actor"}],
        [AN_ENDPOINT | {"extraBody": {"secret": "", "tenant": "acme"}}],
        [with_header(name="Cookie", value="a")], [with_header(name="TE", value="a")],
        [with_header(name="X-A")], [with_header(name="X-A", value="a", secretKeyRef=REF)],
        [with_header(name="X-A", secretKeyRef=REF)],
        [with_header(name="X-A", value="hf_" + "a" * 20)],
        [with_header(name="X-A", value="hf_" + "a" * 19)],
        [with_header(name="Bearer", value="a")], [with_header(name="X-Session-Id", value="a")],
        [with_header(name="X-Session-Id", value="a", notSecret=True)],
        [with_url("http://kb/?token=1") | {"notSecret": True}],
        [AN_ENDPOINT, ACTOR], [AN_ENDPOINT, AN_ENDPOINT | {"name": "other"}], [ACTOR, REFERENCE],
        [ACTOR | {"protocol": "Http"}, REFERENCE], [ACTOR, ACTOR | {"name": "b"}, REFERENCE],
        *([with_url(f"http://kb/{end}")] for end in (
            "?token=", "?a=b&x_token=1", "a&key=1", "#?key=1", "?max_tokens=1", "?%74oken=a",
            "hooks/" + "a" * 20, "?code=1", "a/../b", "%2E./b", "a%5cb", "..;a", "?a=/../b", "..b",
        )),
    ],
    "reward.functions": [
        [{"name": "F1"}], [{"name": "F1", "weight": 0}], [{"name": "F1", "weight": 0.0}],
        [{"name": "F1", "weight": 0}, {"name": "Format"}], [{"name": "RagScore"}],
        [{"name": "Format"}], [{"name": "Python"}], [{"name": "Python", "python": "a.b:c"}],
        [{"name": "Http"}], [{"name": "Http", "url": "http://judge/score"}],
        [{"name": "Http", "url": "http://judge/score?key=1"}],
        [{"name": "Http", "url": "http://judge/a/%252e%252e/score"}],
        [{"name": "Http", "url": "http://judge/score?key=1", "notSecret": True}],
        [{"name": "Http", "url": "https://hooks.slack.com/services/T/B/x"}],
        [JUDGED], [JUDGED | {"judge": JUDGE}], [JUDGED | {"url": "", "judge": JUDGE}],
        [JUDGED | {"judge": JUDGE | {"lowest": 10}}], [JUDGED | {"judge": JUDGE | {"highest": 0}}],
        [JUDGED | {"judge": JUDGE | {"lowest": -1, "highest": -0.5}}],
        [JUDGED | {"judge": JUDGE | {"headers": [{"name": "Authorization", "value": "Bearer"}]}}],
        [JUDGED | {"judge": JUDGE | {"headers": [{"name": "Expect", "secretKeyRef": REF}]}}],
    ],
    "validation.everySteps": [0, 5],
    "validation.beforeTraining": [False, True],
    "validation.afterTraining": [False, True],
    "checkpoint": [{}, {"everySteps": 10}],
    "checkpoint.path": ["/mnt/runs", "/mnt/runs/x", "/mnt/runsx", "/mnt/runs/ro/x"],
    "training.startFrom": [
        {"checkpoint": source}
        for source in (
            {}, {"path": ""}, {"path": "/mnt/runs/checkpoints"}, {"path": "/mnt/runs/x"},
            {"jobRef": "x"}, {"path": "/mnt/runs/x", "jobRef": "x"}, {"path": "", "jobRef": "x"},
        )
    ],
    "checkpoint.backup": [{"url": f"s3://b/{end}"} for end in ("", "a/..", "a/..b", "%2e/")],
    "egress": [[], ["http://p:1"], ["http://p:1/", "http://p:1/.."], ["http://p/%7f", "http://p"]],
    "checkpoint.everySteps": [0, 10],
    "checkpoint.keepLast": [1, 2],
    "volumes": [
        [{"name": "w", "mountPath": "/mnt/runs"}],
        *(
            [{"name": "w", "mountPath": "/mnt/runs", "claimTemplate": {"size": size}}]
            for size in ("1Gi", "0", "63Mi", "1025Ti")
        ),
        [make_volume("w", "/mnt/runs", claimTemplate={"size": "1Gi"})],
        [], [make_volume("w", "/mnt/runs/")], [make_volume("w", "/mnt/runs")],
        [make_volume("w", "/mnt/runs"), make_volume("ro", "/mnt/runs/ro", readOnly=True)],
        [make_volume("w", "/mnt/runs", readOnly=True), make_volume("rw", "/mnt/runs/ro")],
        [make_volume("w", "/mnt/runs"), make_volume("v", "/mnt/runs")],
        [make_volume("w", "/mnt/runs"), make_volume("v", "/mnt/runs/")],
        *([make_volume("w", "/mnt/runs"), make_volume("v", path)] for path in (
            "/", "/home", "/home/", "/homes", "/opt", "/opt/raggrpo", "/opt/raggrpo2", "/dev/shm",
            "/var/run", "/var/runs", "/tmp/x", "/mnt/a:b", "/lib", "/lib6", "/data",
        )),
    ],
    "env": [
        [], [{"name": "A", "value": "1"}], [{"name": "HF_TOKEN", "value": ""}],
        [{"name": "HF_TOKEN", "value": "x"}], [{"name": "RAY_ADDRESS"}],
        [{"name": "RAGGRPO_SECRET_A"}], [{"name": "DB_PASS", "value": "x"}],
        [{"name": "A", "value": "1", "secretKeyRef": REF}], [{"name": "A", "secretKeyRef": REF}],
        [{"name": "A", "value": "postgres://me:word@db/x"}],
        [{"name": "A", "value": "http://h/?token=1"}],
        [{"name": "A", "value": "hf_" + "a" * 20}], [{"name": "TOKENIZERS_MODE", "value": "1"}],
        [{"name": f"A{i}", "value": "中" * 1024} for i in range(11)],
        *([{"name": name, "value": "x"}] for name in (
            "DATABASE_URL", "BEARER", "OPENAIKEY", "KUBECONFIG_DATA", "SESSION_ID", "MONKEY",
        )),
        [{"name": "HF_TOKEN", "value": "x", "notSecret": True}],
        [{"name": "HF_TOKEN", "value": "x", "notSecret": False}],
        [{"name": "A", "value": "gsk_" + "a" * 20}], [{"name": "A", "value": "task-" + "a" * 20}],
        [{"name": "A", "value": "hf_" + "a" * 20, "notSecret": True}],
    ],
    "caBundle": [
        {}, {"secret": ""}, {"secret": "a"}, {"secret": "", "configMap": "a", "key": "k"},
        {"secret": "a", "configMap": "a"},
    ],
    "scheduling.priorityClassName": ["", "jobs", "system-node-critical", "systems"],
    "scheduling.tolerations": [
        [{"operator": "Equal"}], [{"operator": "Equal", "key": "k", "value": "v"}],
        [{"operator": "Exists", "value": "v"}], [{"key": "k"}], [{"operator": "Exists"}],
    ],
    "resources.device": ["GPU", "CPU"],
    "resources.nodes": [1, 2],
    "resources.gpusPerNode": [0, 1, 6, 8],
    "resources.ranks": [1, 4],
    "resources.placement": ["Colocated", "Disaggregated"],
    "resources.rolloutGpus": [0, 2, 3],
    "resources.gpuResourceName": ["nvidia.com/gpu", "x.kubernetes.io/gpu", "requests.a/b"],
    "resources.cpu": ["", "0", "0m", "1m", "4096", "4097"],
    "resources.memory": ["", "1k", "64Gi", "0.5Gi", "64Ti", "64.001Ti"],
    "resources.shmSize": ["", "16Gi", "64Gi", "2", "80Mi", "79Mi"],
    "recovery.maxRestarts": [0, 3],
    "recovery.backoffSeconds": [0, 10, 600],
    "recovery.maxBackoffSeconds": [0, 9, 10, 360],
}  # fmt: skip
"""Valid and invalid values near the boundaries of each rule; the schema accepts all."""

LENGTHS = {"data.maxPromptLength": 600, "data.maxResponseLength": 512}
CONTEXTS: Sequence[Mapping[str, Any]] = (
    {},
    LENGTHS | {"rollout.maxNumBatchedTokens": 1112, "training.tokensPerMicroBatch": 1112},
    LENGTHS
    | {
        "retrieval.mode": "Prompt",
        "retrieval.endpoints": [AN_ENDPOINT | {"topK": 3}],
        "retrieval.maxPassageTokens": 200,
    },
    LENGTHS
    | {
        "retrieval.mode": "Search",
        "retrieval.endpoints": [AN_ENDPOINT | {"topK": 3}],
        "retrieval.maxPassageTokens": 86,
        "retrieval.maxTurns": 2,
    },
    {
        "retrieval.mode": "Reward",
        "retrieval.endpoints": [ACTOR, REFERENCE],
        "reward.functions": [{"name": "RagScore"}],
    },
    {
        "resources.placement": "Disaggregated",
        "resources.rolloutGpus": 2,
        "resources.gpusPerNode": 8,
    },
    {"resources.device": "CPU", "resources.ranks": 4, "rollout.tensorParallelSize": 1},
    {"data.trainBatchSize": 4, "data.maxSamples": 4, "training.miniBatchPrompts": 1},
    {
        "rollout.n": 3,
        "algorithm.groupSize": 3,
        "algorithm.clipRatioLow": 0.2,
        "algorithm.clipRatioHigh": 0.28,
        "recovery.backoffSeconds": 10,
        "recovery.maxBackoffSeconds": 10,
    },
    {"resources.memory": "64Gi", "resources.shmSize": "16Gi"},
    {"model.attention": "Flash", "training.rowLayout": "Padded", "training.precision": "BF16"},
)
"""Valid values of several fields, one of which is then changed."""


@dataclass(frozen=True)
class Exemption:
    """Specs on which API server and operator may differ about a rule."""

    reason: str
    is_exempt: Callable[[Mapping[str, Any]], bool]
    """Predicate of the raw spec."""


def endpoints_of(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list(spec.get("retrieval", {}).get("endpoints", []))


BODIES = Exemption(
    "CEL cannot read free-form JSON, whose texts the operator counts",
    lambda spec: any("extraBody" in each for each in endpoints_of(spec)),
)
TOP_K = Exemption(
    "the API server does not know the default of topK",
    lambda spec: any("topK" not in each for each in endpoints_of(spec)),
)
EXEMPTIONS: Mapping[str, Exemption] = {
    "ranks_get_prompts": Exemption(
        "the API server does not know the batch size of a preset",
        lambda spec: (
            "trainBatchSize" not in spec["data"]
            and not spec.get("training", {}).get("miniBatchPrompts")
        ),
    ),
    "checkpoint_is_on_a_volume": Exemption(
        "the API server accepts a job without volumes, which can run on one machine",
        lambda spec: not spec.get("volumes"),
    ),
    "passages_leave_room": TOP_K,
    "searches_leave_room": TOP_K,
    "values_contain_no_secret": Exemption(
        "only the operator decodes the query of a URL within a value",
        lambda spec: any("://" in each.get("value", "") for each in spec.get("env", [])),
    ),
    "urls_contain_no_secret": Exemption(
        "only the operator decodes percent-encoding",
        lambda spec: any("%" in each.get("url", "") for each in endpoints_of(spec)),
    ),
    "texts_are_small": BODIES,
}
"""Exemptions by rule name; `if_specified` exempts specs without a value that the rule compares."""

Report = tuple[str, str, str]
"""(name of the rule, field, message with remedy)."""
BY_TEXT: Mapping[str, list[SpecRule]] = {
    text: [rule for rule in SPEC_RULES if f"{rule.message} → {rule.remedy}" == text]
    for text in {f"{rule.message} → {rule.remedy}" for rule in SPEC_RULES}
}


def random_specs(number: int) -> Iterator[dict[str, Any]]:
    """Yield jobs in which up to seven fields of a context are changed; reproducible."""
    source = random.Random(1)
    single = [(path, value) for path, values in VALUES.items() for value in values]
    for index in range(number):
        changes = dict(source.choice(CONTEXTS))
        for path in source.sample(sorted(VALUES), source.choice((0, 1, 2, 6))):
            changes[path] = source.choice(VALUES[path])
        changes |= dict(single[index % len(single) :][:1])
        if source.random() < 0.2:
            changes.setdefault("training.totalSteps", REMOVED)
        yield make_raw_job({f"spec.{path}": value for path, value in changes.items()})


def is_specified(rule: SpecRule, spec: Mapping[str, Any], field: str) -> bool:
    """Return whether all values that a rule compares are specified at the reported field."""
    place = field.removesuffix(f".{rule.field}") if rule.field else field
    value: Any = {"spec": spec}
    for name in re.findall(r"[A-Za-z]+|[0-9]+", place):
        value = value[int(name)] if name.isdigit() else value.get(name, {})
    for path in rule.if_specified:
        below = value
        for name in path.split("."):
            below = below.get(name) if isinstance(below, Mapping) else None
        if below is None:
            return False
    return True


def is_comparable(rule: SpecRule, spec: Mapping[str, Any], field: str) -> bool:
    exemption = EXEMPTIONS.get(rule.name)
    is_exempt = exemption is not None and exemption.is_exempt(spec)
    return not is_exempt and is_specified(rule, spec, field)


def server_reports(http: httpx.Client, raw: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return (field, message with remedy) of each violation of a CEL rule."""
    response = http.post(PATH, params={"dryRun": "All"}, json=raw)
    if response.is_success:
        return set()
    assert response.status_code == 422, response.text
    reports = set()
    for cause in response.json()["details"]["causes"]:
        assert cause["reason"] == "FieldValueInvalid", cause
        [text] = [text for text in BY_TEXT if cause["message"].endswith(f": {text}")]
        reports.add((cause["field"], text))
    return reports


def operator_reports(job: RagGrpoJob) -> set[Report]:
    """Return the operator's reports of the rules that the API server evaluates, too."""
    resolved = resolve(job)
    sizing = size(resolved.spec)
    inputs = RuleInput(job, resolved.spec, resolved.origins, Facts(), sizing)
    reports = set()
    for rule in SPEC_RULES:
        for violation in rule(inputs):
            assert violation.message.startswith(rule.message)
            text = f"{rule.message} → {violation.remedy}"
            reports.add((rule.name, violation.path, text))
    return reports


@pytest.mark.row("B2")
def test_api_server_and_operator_report_same_violations(http: httpx.Client) -> None:
    violated: Counter[str] = Counter()
    differences = []
    for raw in random_specs(SPECS):
        job = parse_job(raw)
        assert isinstance(job, RagGrpoJob), job
        by_server = server_reports(http, raw)
        by_operator = operator_reports(job)
        for name, field, text in by_operator:
            rule = next(rule for rule in SPEC_RULES if rule.name == name)
            if is_comparable(rule, raw["spec"], field):
                violated[name] += (field, text) in by_server
                if (field, text) not in by_server:
                    differences.append(f"only the operator: {name}: {field}: {raw['spec']}")
        known = {(field, text) for _, field, text in by_operator}
        for field, text in by_server - known:
            differences.append(f"only the API server: {field}: {text}: {raw['spec']}")
    assert not differences, "\n".join(differences[:20])
    assert {rule.name for rule in SPEC_RULES} - violated.keys() == set()


def test_rule_exemptions_refer_to_existing_rules() -> None:
    assert EXEMPTIONS.keys() <= {rule.name for rule in SPEC_RULES}
