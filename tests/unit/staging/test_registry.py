import random
from pathlib import Path

import pytest

from raggrpo_api.trainer.staging import StagingReason
from support.servers.oci_registry import HTPASSWD, PASSWORD, OciRegistry, docker_config
from support.servers.private_authority import make_certificate
from support.servers.token_server import RegistryTokens
from support.staging import PART_BYTES, Stage, files_in, make_model_source, run_push

WEIGHTS = random.Random(2).randbytes(2 * PART_BYTES + 5)
MODEL = {"config.json": b"{}", "model.safetensors": WEIGHTS}
IMAGE = {f"models/{name}": content for name, content in MODEL.items()}


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path, {})


def test_image_is_staged_by_digest_and_reused(registry: OciRegistry, stage: Stage) -> None:
    base = {"bin/sh": b"#!", "./models/config.json": b"old", "models/train.py": b"unused"}
    digest = registry.add_image("team/model", [base, IMAGE])
    staged = stage.staged(make_model_source(f"oci://{registry.host}/team/model:v1"))

    assert staged.revision == digest
    assert files_in(Path(staged.path)) == MODEL
    pinned = make_model_source(f"oci://{registry.host}/team/model@{digest}")
    assert stage.staged(pinned).path == staged.path


def test_loopback_registry_with_tls_is_used(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    export = tmp_path / "export"
    export.mkdir()
    for name, content in MODEL.items():
        (export / name).write_bytes(content)
    trusting = Stage(tmp_path, {"RAGGRPO_CA_BUNDLE": str(certificate.authority)})
    (tmp_path / "2").mkdir()
    with OciRegistry(tmp_path, certificate=certificate) as registry:
        digest = registry.add_image("model", [IMAGE])
        source = make_model_source(f"oci://{registry.host}/model:v1")
        staged = trusting.staged(source)
        pushed = run_push(trusting, export, f"oci://{registry.host}/result:v1")
        failure = Stage(tmp_path / "2", {}).failure(source)

    assert staged.revision == digest
    assert files_in(Path(staged.path)) == MODEL
    assert pushed.returncode == 0, pushed.stderr
    assert failure.reason is StagingReason.TLS_FAILURE
    assert "specify its authority in spec.caBundle" in failure.message


def test_later_layer_removes_files(registry: OciRegistry, stage: Stage) -> None:
    layers = [
        {**IMAGE, "models/vocab.json": b"1", "models/1_Pooling/config.json": b"{}"},
        {"models/.wh.vocab.json": b"", "models/1_Pooling/.wh..wh..opq": b""},
    ]
    registry.add_image("removed", layers)
    staged = stage.staged(make_model_source(f"oci://{registry.host}/removed:v1"))
    assert files_in(Path(staged.path)) == MODEL


def test_image_of_platform_is_selected(registry: OciRegistry, stage: Stage) -> None:
    arm = registry.add_image("index", [{"models/config.json": b"arm"}], "arm")
    amd = registry.add_image("index", [IMAGE], "amd")
    index = registry.add_index("index", {"arm64": arm, "amd64": amd})
    staged = stage.staged(make_model_source(f"oci://{registry.host}/index:v1"))
    assert staged.revision == index
    assert files_in(Path(staged.path)) == MODEL


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({**IMAGE, "models/extra.json": b"-> /etc/passwd"}, "/models/extra.json is a link"),
        ({**IMAGE, "models/../../extra.json": b"{}"}, "is not the name of a file"),
        ({**IMAGE, "models/.staged.json": b"{}"}, "reserved name"),
        ({"other/config.json": b"{}"}, "has no files"),
        ({"models/pytorch_model.bin": b"1"}, "no weights in safetensors"),
    ],
)
def test_unsuitable_image_is_reported(
    registry: OciRegistry, stage: Stage, files: dict[str, bytes], words: str
) -> None:
    registry.add_image("unsuitable", [files])
    failure = stage.failure(make_model_source(f"oci://{registry.host}/unsuitable:v1"))
    assert words in failure.message
    assert not list(stage.base.rglob("passwd"))


def test_invalid_layer_is_reported(registry: OciRegistry, stage: Stage) -> None:
    layer = registry._blob("invalid", b"not an archive" * 100) | {"mediaType": "text/plain"}
    registry.add_manifest("invalid", [layer])
    failure = stage.failure(make_model_source(f"oci://{registry.host}/invalid:v1"))
    assert failure.reason is StagingReason.UNSUITABLE_CONTENT
    assert "a layer is not a tar or tar.gz archive" in failure.message


def test_files_of_an_artifact_are_staged(registry: OciRegistry, stage: Stage) -> None:
    title = "org.opencontainers.image.title"
    layers = [
        registry._blob("artifact", content)
        | {"mediaType": "application/octet-stream", "annotations": {title: name}}
        for name, content in {**MODEL, "README.txt": b"", "1.bin": b"unused"}.items()
    ]
    registry.add_manifest("artifact", layers)
    staged = stage.staged(make_model_source(f"oci://{registry.host}/artifact:v1"))
    assert files_in(Path(staged.path)) == {**MODEL, "README.txt": b""}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("team/model:v9", StagingReason.UNKNOWN_REVISION),
        (f"team/model@sha256:{'0' * 64}", StagingReason.UNKNOWN_REVISION),
    ],
)
def test_missing_image_is_reported(
    registry: OciRegistry, stage: Stage, name: str, reason: StagingReason
) -> None:
    registry.add_image("team/model", [IMAGE])
    assert stage.failure(make_model_source(f"oci://{registry.host}/{name}")).reason is reason


def test_registry_with_login_needs_credentials(tmp_path: Path) -> None:
    passwords = tmp_path / "htpasswd"
    passwords.write_text(HTPASSWD)
    with OciRegistry(tmp_path, passwords) as registry:
        source = make_model_source(f"oci://{registry.host}/model:v1")
        (tmp_path / "config.json").write_text(docker_config(registry.host, password="wrong"))

        missing = Stage(tmp_path, {}).failure(source)
        (tmp_path / "2").mkdir()
        denied = Stage(tmp_path / "2", {"DOCKER_CONFIG": str(tmp_path)}).failure(source)
        (tmp_path / "config.json").write_text(docker_config(registry.host))
        (tmp_path / "3").mkdir()
        unknown = Stage(tmp_path / "3", {"DOCKER_CONFIG": str(tmp_path)}).failure(source)

    assert missing.reason is StagingReason.TOKEN_MISSING
    assert "DOCKER_CONFIG" in missing.message
    assert denied.reason is StagingReason.ACCESS_DENIED
    assert unknown.reason is StagingReason.UNKNOWN_REVISION


def test_registry_with_bearer_tokens_needs_login(tmp_path: Path) -> None:
    folder = tmp_path / "export"
    folder.mkdir()
    for name, content in MODEL.items():
        (folder / name).write_bytes(content)
    with (
        RegistryTokens(tmp_path) as tokens,
        OciRegistry(tmp_path, token_auth=tokens.config()) as registry,
    ):
        source = make_model_source(f"oci://{registry.host}/team/result:v1")
        logins = {"": None, "wrong": "wrong", "right": PASSWORD}
        stages = {}
        for name, password in logins.items():
            base = tmp_path / f"login-{name}"
            base.mkdir()
            if password is not None:
                (base / "config.json").write_text(docker_config(registry.host, password=password))
            stages[name] = Stage(base, {"DOCKER_CONFIG": str(base)} if password else {})

        for name, reason in (
            ("", StagingReason.TOKEN_MISSING),
            ("wrong", StagingReason.ACCESS_DENIED),
        ):
            failure = stages[name].failure(source)
            assert failure.reason is reason
            assert "DOCKER_CONFIG" in failure.message
            pushed = run_push(stages[name], folder, source.url)
            assert (pushed.returncode, f"error: {reason}: " in pushed.stderr) == (3, True)
        pushed = run_push(stages["right"], folder, source.url)
        assert pushed.returncode == 0, pushed.stderr
        assert files_in(Path(stages["right"].staged(source).path)) == MODEL
    assert any("push" in each for each in tokens.scopes)
