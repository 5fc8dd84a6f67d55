from functools import partial
from pathlib import Path

import pytest

from raggrpo_operator.errors import KeyMissing, KeyNotMounted
from raggrpo_operator.kubernetes_runtime.process.installation_keys import (
    InstallationKeys,
    key_id,
    read_keys,
)
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


def make_keys(folder: Path) -> InstallationKeys:
    return InstallationKeys(partial(read_keys, folder), "ops/key")


@pytest.mark.parametrize("content", [None, b"", b"short"])
def test_missing_or_short_installation_key_is_reported_until_restored(
    tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "current").write_bytes(content)
    keys = make_keys(tmp_path)

    assert not keys.has_current
    with pytest.raises(KeyMissing, match="Secret ops/key is missing, or has no 'current' of at"):
        keys.current()

    (tmp_path / "current").write_bytes(b"the first key, long enough")
    assert keys.has_current
    assert keys.current() == (key_id(b"the first key, long enough"), b"the first key, long enough")


def test_previous_installation_key_derives_same_token(tmp_path: Path) -> None:
    old, new = b"the first key, long enough", b"the second key, long enough"
    (tmp_path / "current").write_bytes(old)
    token = make_keys(tmp_path).token(key_id(old), "uid")
    (tmp_path / "previous").write_bytes(old)
    (tmp_path / "current").write_bytes(new)
    after = make_keys(tmp_path)

    assert after.current()[0] == key_id(new)
    assert after.token(key_id(old), "uid") == token
    assert after.token(key_id(new), "uid") != token


def test_replaced_installation_key_is_retained_until_restart(tmp_path: Path) -> None:
    old, new = b"the first key, long enough", b"the second key, long enough"
    (tmp_path / "current").write_bytes(old)
    keys = make_keys(tmp_path)
    token = keys.token(key_id(old), "uid")
    keys.check_mounted(key_id(old))

    (tmp_path / "current").write_bytes(new)

    assert keys.token(key_id(old), "uid") == token
    with pytest.raises(KeyNotMounted, match="removed from Secret ops/key"):
        keys.check_mounted(key_id(old))
    restarted = make_keys(tmp_path)
    with pytest.raises(KeyMissing, match="not in Secret ops/key: add the old key as 'previous'"):
        restarted.token(key_id(old), "uid")
    (tmp_path / "previous").write_bytes(old)
    assert restarted.token(key_id(old), "uid") == token
    keys.check_mounted(key_id(old))


def test_installation_keys_are_not_in_repr(tmp_path: Path) -> None:
    (tmp_path / "current").write_bytes(b"the first key, long enough")
    assert "first" not in repr(read_keys(tmp_path))
