from pathlib import Path

import pytest
import yaml

from raggrpo_operator.kube.client import connect

PROXY = "http://proxy.example.com:3128"


@pytest.mark.parametrize(("no_proxy", "proxy"), [("", PROXY), ("10.0.0.1", None)])
async def test_proxy_settings_are_read_once_at_connect(
    no_proxy: str, proxy: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "kubeconfig"
    named = {
        "clusters": [{"name": "a", "cluster": {"server": "https://10.0.0.1"}}],
        "users": [{"name": "a", "user": {"token": "t"}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
    }
    file.write_text(yaml.safe_dump({"current-context": "a", **named}))
    for name, value in (("KUBECONFIG", file), ("HTTPS_PROXY", PROXY), ("NO_PROXY", no_proxy)):
        monkeypatch.setenv(name, str(value))
        monkeypatch.delenv(name.lower(), raising=False)

    server = await connect()
    configuration = server._api.configuration
    await server.close()

    assert configuration.proxy == proxy
    assert configuration.client_session_kwargs == {"trust_env": False}
