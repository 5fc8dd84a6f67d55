import re

import pytest

from raggrpo_api.fields.addresses import (
    BACKUP_URL,
    HTTP_URL,
    has_other_path,
    url_problem,
)

GOOD = (
    "http://kb:8000/retrieve", "https://rag.example.com/v1/chat?tenant=acme&lang=en", "http://h",
    "http://127.0.0.1:65535/", "http://[::1]:8000/x", "http://a_b.ns.svc.cluster.local./x", "http://h?q",
    "http://h/a%20b/(c)[d]{e}",
)  # fmt: skip
BAD = (
    "http://[/", "http://]/", "http://\u2100/", "http://a\u3002b/", "http:///x", "http://h:0/",
    "http://me@h/", "http://me:word@h/", "http://h/a@b", "http://h/a b", "http://h/\n", "http://h/\u4e2d",
    "http://-h/", "http://a..b/", "http://h:/", "ftp://h/", "http:\\\\h", "http://" + "a" * 64,
)  # fmt: skip


def takes(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text) is not None


@pytest.mark.parametrize("url", GOOD)
def test_service_urls_are_accepted(url: str) -> None:
    assert takes(HTTP_URL, url)
    assert url_problem(url) == ""


@pytest.mark.parametrize("url", BAD)
def test_ambiguous_urls_are_rejected(url: str) -> None:
    assert not takes(HTTP_URL, url)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://[::::::::]/", "its host or port is not valid"),
        ("http://h:65536/", "its host or port is not valid"),
        ("http://" + "a." * 127 + "ab/", "more than 253"),
        ("s3://b/x::file:///etc", "two URLs"),
    ],
)
def test_encoded_secret_query_is_recognized(url: str, problem: str) -> None:
    assert takes(HTTP_URL, url) or takes(BACKUP_URL, url)
    assert problem in url_problem(url)
    assert url not in url_problem(url)


@pytest.mark.parametrize("end", ["/", "/b", "", "?q=1", "#f"])
@pytest.mark.parametrize(
    "segment",
    ["..", ".", "%2e%2e", "%2E.", ".%2e", "%2e", "%252e%252e", "%252E.", "%25%32%65.", "..;",
     "..;a=b", ".;", "..%3Ba", ".%3b", "...", "..%20", "%20..", "..%00", "..%5c", "..%2fb",
     "..%2Fb", "a%2f..%2fb",
     "a%5C..%5cb", "..\\", "a\\..\\b", "%c0%ae%c0%ae", "%e0%80%ae.", "%u002e%u002e", "%.", "..%09",
     "%0d%0a", "%7f"],
)  # fmt: skip
def test_paths_with_several_readings_are_recognized(segment: str, end: str) -> None:
    for start in ("https://rag.example.com/team-a/", "https://rag.example.com/", "s3://bucket/"):
        assert has_other_path(f"{start}{segment}{end}")


@pytest.mark.parametrize(
    "url",
    ["http://h/a..b", "http://h/..a/b.", "http://h/.well-known/x", "http://h/%20a/%C3%A9",
     "http://h/a?next=/../b&c=%2e%2e", "http://h/a#/../b", "https://[::1]:8/x", "http://h", "s3://b/x.y/",
     "http://h/{question}/x", "file:///mnt/..b", "http://h/a;v=1.0/b", ""],
)  # fmt: skip
def test_paths_with_one_reading_are_accepted(url: str) -> None:
    assert not has_other_path(url)


@pytest.mark.parametrize("url", ["s3://bucket", "gs://b/a/b", "file:///mnt/b", "file:///", ""])
def test_backup_urls_are_accepted(url: str) -> None:
    assert takes(BACKUP_URL, url)


@pytest.mark.parametrize(
    "url", ["s3://", "s3://b/?versionId=1", "file://h/x", "s3://b/\n", "s3://u@b/"]
)
def test_invalid_backup_urls_are_rejected(url: str) -> None:
    assert not takes(BACKUP_URL, url)
