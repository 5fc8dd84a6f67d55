import pytest

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.spec.resources import Device
from raggrpo_operator.core.spec.parse import parse_job
from raggrpo_operator.core.spec.violation import Violation
from raggrpo_operator.local_runtime.overrides import InvalidOptions, apply_options
from support.builders.operator.jobs import make_raw_job

ENDPOINTS = [
    {"name": "actor-8b", "url": "http://rag:8000/chat"},
    {"name": "kb", "managed": {"corpus": "/mnt/runs/corpus.jsonl"}},
]


def job_with(*sets: str) -> RagGrpoJob:
    job = parse_job(apply_options(make_raw_job(), sets, []))
    assert isinstance(job, RagGrpoJob), job
    return job


def test_set_option_parses_values_as_yaml() -> None:
    spec = job_with(
        "resources.device=CPU",
        "spec.training.learningRate=1e-6",
        "training.compile=true",
        "data.trainFiles[0]=/data/other.parquet",
        "data.validationFiles=[/a.jsonl, /b.jsonl]",
    ).spec

    assert spec.resources.device is Device.CPU
    assert spec.training.learning_rate == 1e-6
    assert spec.training.compile is True
    assert spec.data.train_files == ["/data/other.parquet"]
    assert spec.data.validation_files == ["/a.jsonl", "/b.jsonl"]


def test_set_option_changes_job_name() -> None:
    assert job_with("metadata.name=other").metadata.name == "other"


def test_overrides_do_not_modify_input() -> None:
    raw = make_raw_job()
    apply_options(raw, ["resources.device=CPU"], [])
    assert raw == make_raw_job()


def test_unknown_path_in_set_option_suggests_nearest_field() -> None:
    violations = parse_job(apply_options(make_raw_job(), ["resources.devise=CPU"], []))
    assert isinstance(violations, tuple)
    assert [violation.line() for violation in violations if isinstance(violation, Violation)] == [
        "spec.resources.devise: unknown field → did you mean device?"
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("resources.device", "expected --set PATH=VALUE"),
        ("=CPU", "expected --set PATH=VALUE"),
        ("a..b=1", "expected --set PATH=VALUE"),
        ("training.totalSteps.x=1", "spec.training.totalSteps has no fields"),
        ("data.trainFiles[3]=/x", "spec.data.trainFiles has 1 items; indices start at 0"),
        ("model[0]=/x", "spec.model has 0 items; indices start at 0"),
        ("model.path=[", "quote the value"),
    ],
)
def test_invalid_set_options_are_reported(text: str, says: str) -> None:
    with pytest.raises(InvalidOptions) as caught:
        apply_options(make_raw_job(), [text], [])
    [problem] = caught.value.problems
    assert problem.startswith(f"--set {text}: ")
    assert says in problem


def test_endpoint_option_replaces_managed_retriever() -> None:
    raw = make_raw_job({"spec.retrieval": {"endpoints": ENDPOINTS}})
    result = apply_options(raw, [], ["kb=http://127.0.0.1:8000/retrieve"])

    assert result["spec"]["retrieval"]["endpoints"][1] == {
        "name": "kb",
        "url": "http://127.0.0.1:8000/retrieve",
    }


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("actor-8=http://x", "no endpoint actor-8; did you mean actor-8b?"),
        ("zzz=http://x", "no endpoint zzz; the job has actor-8b, kb"),
        ("kb", "expected --endpoint NAME=URL"),
    ],
)
def test_unknown_endpoint_in_endpoint_option_is_reported(option: str, says: str) -> None:
    raw = make_raw_job({"spec.retrieval": {"endpoints": ENDPOINTS}})
    with pytest.raises(InvalidOptions) as caught:
        apply_options(raw, [], [option])
    assert says in caught.value.problems[0]


def test_endpoint_option_is_rejected_for_job_without_endpoints() -> None:
    with pytest.raises(InvalidOptions, match="the job has no endpoints"):
        apply_options(make_raw_job(), [], ["kb=http://x"])


def test_invalid_options_are_all_reported() -> None:
    with pytest.raises(InvalidOptions) as caught:
        apply_options(make_raw_job(), ["x", "y"], ["z"])
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize("raw", [None, "text", [1], {"spec": "text"}, {"spec": None}, {}])
def test_overrides_do_not_raise_for_non_mapping_documents(raw: object) -> None:
    sets = [] if raw == {"spec": "text"} else ["preset=Fast"]
    result = apply_options(raw, sets, [])
    assert isinstance(parse_job(result), tuple)


def test_path_with_many_levels_is_rejected() -> None:
    with pytest.raises(InvalidOptions, match="more than 64 levels"):
        apply_options({"spec": {}}, [".".join(["a"] * 20_000) + "=1"], [])


@pytest.mark.parametrize("text", ["model.path=[{}", "{}", "model.{}[0]=x", "model.path.x={}"])
def test_secret_in_wrong_option_is_not_shown(text: str) -> None:
    secret = "hf_abcdefghijklmnopqrstuvwxyz012345"
    raw = {"spec": {"model": {"path": "a"}}}
    with pytest.raises(InvalidOptions) as raised:
        apply_options(raw, [text.format(secret)], [])
    assert secret not in str(raised.value)
