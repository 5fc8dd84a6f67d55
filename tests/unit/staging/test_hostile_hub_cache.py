"""A hub whose headers and listings name files outside its cache, or whose files do not end."""

import hashlib
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants

from raggrpo_api.fields.source import HubSource
from raggrpo_api.trainer.staging import SourceRole, StagingReason
from raggrpo_staging import retries
from raggrpo_staging.failures import StagingFailed
from raggrpo_staging.hub_cache import stage_in_cache
from raggrpo_staging.progress import ProgressCounter
from support.servers.hub_server import HubHandler, HubServer

MODEL = {"config.json": b"{}", "model.safetensors": b"weights"}
SOURCE = HubSource("org/name")


@pytest.fixture(autouse=True)
def _endpoint(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(retries, "TRIES", 1)
    monkeypatch.setenv("NO_PROXY", "*")
    hub.add("org/name", MODEL)
    close_session()


def stage(folder: Path) -> Path:
    arguments = (SOURCE, SourceRole.MODEL, "", folder / "sources")
    path, _ = stage_in_cache(*arguments, ProgressCounter(None), threading.Event())
    return path


def outside(folder: Path) -> list[str]:
    names = sorted(each.name for each in folder.iterdir())
    return [each for each in names if each not in ("cache", "sources")]


def with_headers(status: int, headers: Mapping[str, str]) -> Callable[[HubHandler], bool]:
    """Return a fault that sends headers with the content of each file."""

    def answer(handler: HubHandler) -> bool:
        if "/resolve/" not in handler.path:
            return False
        commit = next(iter(handler.hub.repositories["org/name"].commits))
        content = MODEL[handler.path.rpartition("/")[2]]
        handler.answer(status, None, {"X-Repo-Commit": commit, "ETag": '"a"', **headers}, content)
        return True

    return answer


@pytest.mark.parametrize("name", ["ETag", "X-Linked-ETag", "X-Repo-Commit"])
@pytest.mark.parametrize("path", ["{folder}/x", "../../../x", "../../../../x"])
@pytest.mark.parametrize("status", [200, 404])
def test_headers_do_not_lead_out_of_the_cache(
    hub: HubServer, tmp_path: Path, name: str, path: str, status: int
) -> None:
    value = path.format(folder=tmp_path)
    headers = {name: f'"{value}"' if name.endswith("ETag") else value}
    hub.faults.append(with_headers(status, headers | {"X-Error-Code": "EntryNotFound"}))
    if status == 200:
        staged = stage(tmp_path)
        assert {each.name: each.read_bytes() for each in staged.iterdir()} == MODEL
    else:
        with pytest.raises(StagingFailed):
            stage(tmp_path)
    assert outside(tmp_path) == []


def test_header_does_not_select_a_file_of_the_user(hub: HubServer, tmp_path: Path) -> None:
    secret = tmp_path / "cache" / "secret"
    secret.parent.mkdir()
    secret.write_text("secret")
    hub.faults.append(with_headers(200, {"ETag": f'"{secret}"'}))
    assert (stage(tmp_path) / "config.json").read_bytes() == b"{}"


def test_content_differs_from_listing(hub: HubServer, tmp_path: Path) -> None:
    hub.damaged["config.json"] = b"[]"
    with pytest.raises(StagingFailed) as raised:
        stage(tmp_path)
    assert raised.value.reason is StagingReason.CHECKSUM_MISMATCH


def test_endless_file_is_limited(hub: HubServer, tmp_path: Path) -> None:
    def answer(handler: HubHandler) -> bool:
        if "/resolve/" not in handler.path:
            return False
        handler.answer_endlessly(200)
        return True

    hub.faults.append(answer)
    with pytest.raises(StagingFailed, match="has more than its"):
        stage(tmp_path)


def test_content_store_of_the_hub_is_not_used(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    headers = {"X-Xet-Hash": "a" * 64, "X-Xet-Refresh-Route": f"{hub.url}/xet"}
    hub.faults.append(with_headers(200, headers))
    stage(tmp_path)
    assert not any("xet" in each for each in hub.requests)


def test_file_that_another_program_stored_is_reused(hub: HubServer, tmp_path: Path) -> None:
    digest = hashlib.sha256(MODEL["model.safetensors"]).hexdigest()
    blob = tmp_path / "cache" / "models--org--name" / "blobs" / digest
    blob.parent.mkdir(parents=True)
    blob.write_bytes(MODEL["model.safetensors"])
    staged = stage(tmp_path) / "model.safetensors"
    assert staged.resolve() == blob
    assert hub.sent["model.safetensors"] == 0


def test_link_in_the_cache_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "models--org--name"
    folder.mkdir(parents=True)
    (folder / "snapshots").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StagingFailed, match="is a link; remove it"):
        stage(tmp_path)
