import pytest

from raggrpo_api.fields.source import (
    BucketSource,
    HttpsSource,
    HubSource,
    ImageSource,
    InvalidSource,
    Scheme,
    Source,
    parse_push_target,
    parse_source,
    without_revision,
)

SHA = "0123456789abcdef" * 4
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("url", "source"),
    [
        ("hf://org/name", HubSource("org/name")),
        ("hf://org/name/", HubSource("org/name")),
        ("hf://Qwen/Qwen2.5-0.5B@v1.0", HubSource("Qwen/Qwen2.5-0.5B", revision="v1.0")),
        (f"hf://org/name@{COMMIT}/a/b", HubSource("org/name", revision=COMMIT, path="a/b")),
        ("hf://org/name@refs/pr/3/a", HubSource("org/name", revision="refs/pr/3", path="a")),
        ("hf://datasets/org/name", HubSource("org/name", is_dataset=True)),
        (
            "hf://datasets/org/name@refs/convert/parquet/main/train",
            HubSource("org/name", True, "refs/convert/parquet", "main/train"),
        ),
        (
            "hf://datasets/openai/gsm8k@main#config=main&split=train",
            HubSource("openai/gsm8k", True, "main", config="main", split="train"),
        ),
        ("hf://datasets/a/b#split=test", HubSource("a/b", is_dataset=True, split="test")),
        ("s3://models/a/b.parquet", BucketSource(Scheme.S3, "models", "a/b.parquet")),
        ("gs://my-bucket/folder@2/", BucketSource(Scheme.GS, "my-bucket", "folder@2")),
        ("https://host.example/a/b.parquet", HttpsSource("host.example", "a/b.parquet")),
        (f"https://[::1]:8443/a#sha256={SHA}", HttpsSource("[::1]:8443", "a", SHA)),
        ("https://host/a%20b@2.jsonl", HttpsSource("host", "a%20b@2.jsonl")),
        (
            "https://huggingface.co/datasets/org/name/resolve/main/a.jsonl",
            HttpsSource("huggingface.co", "datasets/org/name/resolve/main/a.jsonl"),
        ),
        (
            f"oci://registry.example.com/team/model@sha256:{SHA}",
            ImageSource("registry.example.com", "team/model", digest=f"sha256:{SHA}"),
        ),
        ("oci://localhost:5000/model:v1", ImageSource("localhost:5000", "model", "v1")),
        ("oci://registry:5000/model", ImageSource("registry:5000", "model")),
        ("oci://[::1]:5000/model", ImageSource("[::1]:5000", "model")),
    ],
)
def test_source_is_parsed(url: str, source: Source) -> None:
    assert parse_source(url) == source
    assert parse_source(str(source)) == source


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "known scheme; write hf://org/name@revision"),
        ("org/name", "known scheme"),
        ("/models/a", "known scheme"),
        ("http://host/file", "known scheme"),
        ("HF://org/name", "known scheme"),
        ("ftp://host/file", "known scheme"),
        ("hf:/org/name", "known scheme"),
        ("hf://name", "missing or invalid; write hf://org/name"),
        ("hf://datasets/name", "organization is missing"),
        ("hf://datasets/name#split=train", "organization is missing"),
        ("hf://datasets/org/name#train", "#config=NAME&split=NAME"),
        ("https://huggingface.co/org/name", "web page of the hub, not a file; write hf://"),
        ("https://huggingface.co/datasets/org/name/blob/main/a.jsonl", "web page of the hub"),
        ("hf://datasets", "missing or invalid"),
        ("hf://org/name@", "missing or invalid"),
        ("hf://org/name@v1@v2", "missing or invalid"),
        ("hf://org/name@feature%2Fa", "missing or invalid"),
        ("hf://org/name#split=train", "only a data set has splits"),
        ("hf://datasets/org/name#config=main", "missing or invalid"),
        ("hf://datasets/org/name/a#split=train", "missing or invalid"),
        ("hf://datasets/org/name#split=train&config=main", "missing or invalid"),
        ("hf://user:hf_secret@org/name", "credentials; pass them in a Secret"),
        ("s3://key:secret@bucket/a", "credentials"),
        ("https://user:secret@host/a", "credentials"),
        ("https://token@host/a", "credentials"),
        ("oci://user:secret@registry.example.com/a", "credentials"),
        ("https://host/a?X-Amz-Signature=abc", "query, which may contain credentials"),
        ("s3://bucket/a?versionId=1", "query"),
        ("hf://org/name/../other", "part such as . or .."),
        ("hf://org/name/a/./b", "part such as"),
        ("hf://org/..", "part such as"),
        ("s3://bucket/a//b", "empty part"),
        ("s3:///key", "empty part"),
        ("s3://", "empty part"),
        ("https://host/a/../b", "part such as"),
        ("https://host/%2e%2e/b", "missing or invalid"),
        ("https://host/a%2Fb", "missing or invalid"),
        ("https://host\\@other/b", "credentials"),
        ("https://host/a\\b", "missing or invalid"),
        ("s3://bucket/a\\..\\b", "missing or invalid"),
        ("s3://bucket", "missing or invalid; write s3://bucket/key"),
        ("s3://bucket/", "missing or invalid"),
        ("s3://Bucket/key", "missing or invalid"),
        ("s3://bucket/a#b", "missing or invalid"),
        ("s3://bucket/a b", "missing or invalid"),
        ("s3://bucket/a\n", "missing or invalid"),
        ("s3://bucket/ä", "missing or invalid"),
        ("gs://bucket", "write gs://bucket/key"),
        ("https://host", "write https://host/file"),
        ("https://host/a#sha256=123", "missing or invalid"),
        ("https://host/a#md5=123", "missing or invalid"),
        ("https://host:0/a", "its port is not within"),
        ("https://host:x/a", "its host or port is not valid"),
        ("oci://name", "write oci://registry/name"),
        ("oci://org/name", "missing or invalid"),
        ("oci://registry.example.com/Name", "missing or invalid"),
        ("oci://registry.example.com/name@sha256:12", "missing or invalid"),
        (f"s3://bucket/{'a' * 256}", "longer than"),
        (f"s3://bucket/{'a/' * 512}b", "longer than"),
    ],
)
def test_invalid_source_names_problem_and_remedy(url: str, problem: str) -> None:
    with pytest.raises(InvalidSource, match=problem.replace(".", r"\.")) as refused:
        parse_source(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("https://host/a", "cannot be pushed to https"),
        ("hf://datasets/org/name", "not a data set"),
        (f"oci://registry.example.com/name@sha256:{SHA}", "digest"),
        ("s3://bucket", "missing"),
    ],
)
def test_invalid_push_target_names_problem(url: str, problem: str) -> None:
    with pytest.raises(InvalidSource, match=problem):
        parse_push_target(url)


@pytest.mark.parametrize(
    "url", ["hf://org/name@main/a", "s3://bucket/a", "gs://bucket/a", "oci://localhost:5000/a:v1"]
)
def test_push_target_is_parsed(url: str) -> None:
    assert str(parse_push_target(url)) == url


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("hf://org/name@v1/a", "hf://org/name/a"),
        ("https://host/a", f"https://host/a#sha256={SHA}"),
        ("oci://localhost/a:v1", f"oci://localhost/a@sha256:{SHA}"),
    ],
)
def test_revisions_of_a_source_have_one_name(one: str, other: str) -> None:
    assert without_revision(parse_source(one)) == without_revision(parse_source(other))
