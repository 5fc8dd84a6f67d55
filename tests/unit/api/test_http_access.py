import pytest

from raggrpo_api.fields.http_access import bearer, is_authorized, is_loopback_host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:20474", "localhost:1", "[::1]:8000"])
def test_loopback_host_is_recognized(host: str) -> None:
    assert is_loopback_host(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "rebound.example",
        "rebound.example:20474",
        "127.0.0.1.rebound.example",
        "localhost.rebound.example:80",
        "127.0.0.1@rebound.example",
        "127.0.0.1:80:80",
        "127.0.0.1\n",
        "10.0.0.7:20474",
        "[::1",
        "[2001:db8::1]:80",
    ],
)
def test_other_host_is_not_loopback(host: str) -> None:
    assert not is_loopback_host(host)


def test_token_is_required_as_bearer() -> None:
    assert is_authorized(bearer("secret"), "secret")
    for other in ("", "secret", "Bearer", "Bearer ", "Bearer secre", "Bearer secret ", "Bearer é"):
        assert not is_authorized(other, "secret"), other
