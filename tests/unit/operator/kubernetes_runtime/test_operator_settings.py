from pathlib import Path

import pytest

from raggrpo_operator.errors import OperatorError
from raggrpo_operator.kubernetes_runtime.process.installation_keys import key_id, read_keys
from raggrpo_operator.kubernetes_runtime.process.settings import (
    Settings,
    SettingsError,
    read_settings,
)


def test_settings_use_defaults_without_environment_variables() -> None:
    assert read_settings({}) == Settings()


def test_settings_are_read_from_environment_variables() -> None:
    settings = read_settings(
        {
            "RAGGRPO_WATCH_NAMESPACES": "a, b,a",
            "RAGGRPO_LEADER_ELECTION": "true",
            "RAGGRPO_RESYNC_SECONDS": "60",
            "RAGGRPO_LOG_LEVEL": "debug",
            "RAGGRPO_TRAINER_IMAGE_PULL_POLICY": "never",
            "RAGGRPO_RESTRICT_EGRESS": "false",
            "RAGGRPO_API_SERVER": "10.0.0.5, 10.1.0.7/24,fd00::1",
            "RAGGRPO_EGRESS": '[{"ports": [{"port": 9000}]}]',
            "KUBERNETES_SERVICE_HOST": "10.96.0.1",
        }
    )
    assert settings.namespaces == ("a", "b")
    assert settings.leader_election
    assert settings.resync_seconds == 60
    assert settings.log_level == "DEBUG"
    assert settings.trainer_image_pull_policy == "Never"
    assert not settings.restrict_egress
    assert settings.api_server == ("10.0.0.5/32", "10.1.0.0/24", "fd00::1/128")
    assert settings.api_server_networks[3:] == ("10.96.0.1/32",)
    assert settings.egress == ({"ports": [{"port": 9000}]},)


def test_api_server_host_name_is_not_used_as_network() -> None:
    assert read_settings({"KUBERNETES_SERVICE_HOST": "api.example.com"}).api_server_networks == ()


def test_invalid_environment_variables_are_all_reported() -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings(
            {
                "RAGGRPO_WATCH_NAMESPACES": "team-*",
                "RAGGRPO_RESYNC_SECONDS": "often",
                "RAGGRPO_HTTP_PORT": "99999",
                "RAGGRPO_LEADER_ELECTION": "perhaps",
                "RAGGRPO_LOG_LEVEL": "LOUD",
                "RAGGRPO_API_SERVER": "0.0.0.0/0",
                "RAGGRPO_EGRESS": '{"ports": []}',
            }
        )
    assert str(caught.value).splitlines() == [
        "RAGGRPO_WATCH_NAMESPACES='team-*' is invalid: it must be comma-separated namespaces",
        "RAGGRPO_LEADER_ELECTION='perhaps' is invalid: it must be true or false",
        "RAGGRPO_RESYNC_SECONDS='often' is invalid: it must be a number from 1 to 86400",
        "RAGGRPO_HTTP_PORT='99999' is invalid: it must be a number from 0 to 65535",
        "RAGGRPO_API_SERVER='0.0.0.0/0' is invalid: it must be comma-separated CIDRs",
        "RAGGRPO_EGRESS='{\"ports\": []}' is invalid: "
        "it must be a JSON list of NetworkPolicyEgressRules",
        "RAGGRPO_LOG_LEVEL='LOUD' is invalid: it must be one of DEBUG, INFO, WARNING, ERROR",
    ]


@pytest.mark.parametrize("content", [None, b"", b"short"])
def test_missing_or_short_installation_key_is_rejected(
    tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "current").write_bytes(content)
    with pytest.raises(SettingsError, match="at least 16 bytes"):
        read_keys(tmp_path)


def test_previous_installation_key_derives_same_token(tmp_path: Path) -> None:
    old, new = b"the first key, long enough", b"the second key, long enough"
    (tmp_path / "current").write_bytes(old)
    before = read_keys(tmp_path)
    (tmp_path / "previous").write_bytes(old)
    (tmp_path / "current").write_bytes(new)
    after = read_keys(tmp_path)

    assert after.current_id == key_id(new) != before.current_id
    assert after.token(before.current_id, "uid") == before.token(before.current_id, "uid")
    assert after.token(after.current_id, "uid") != before.token(before.current_id, "uid")
    with pytest.raises(OperatorError, match="not mounted: keep the old key"):
        before.token(after.current_id, "uid")


def test_installation_keys_are_not_in_repr(tmp_path: Path) -> None:
    (tmp_path / "current").write_bytes(b"the first key, long enough")
    assert "first" not in repr(read_keys(tmp_path))
