from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from raggrpo_cli.kubectl.app import app
from support.builders.operator.jobs import make_raw_job
from support.kubernetes.kubectl_plugin import kubectl_raggrpo


def plugin(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_plugin_executable_runs_kubectl_commands() -> None:
    shown = kubectl_raggrpo("--help")
    assert shown.returncode == 0, shown.stderr
    assert "Usage: kubectl raggrpo" in shown.stdout
    assert all(f" {verb} " in shown.stdout for verb in ("status", "logs", "plan", "diff"))
    assert " run " not in shown.stdout


@pytest.mark.parametrize("verb", [["status"], ["logs", "small"], ["plan", "small"], ["diff", "a"]])
def test_missing_kubeconfig_is_reported_with_options(
    verb: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    result = plugin(*verb)
    assert result.exit_code == 2
    assert (
        f"no kubeconfig at {tmp_path / 'nowhere'}: specify one with --kubeconfig" in result.output
    )


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("", id="empty"),
        pytest.param("a: [", id="no YAML"),
        pytest.param("- one", id="a list"),
        pytest.param("apiVersion: v1\nkind: Config\n", id="no context"),
        pytest.param(
            yaml.safe_dump(
                {
                    "current-context": "a",
                    "contexts": [{"name": "a", "context": {"cluster": "gone", "user": "u"}}],
                    "clusters": [],
                    "users": [],
                }
            ),
            id="a context without its cluster",
        ),
    ],
)
def test_invalid_kubeconfig_is_reported(content: str, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(content)
    result = plugin("status", "--kubeconfig", file)

    assert result.exit_code == 2, repr(result.exception)
    assert f"{file} cannot be used" in result.output
    assert file.read_text() == content


def test_unknown_context_is_reported_with_remedy(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(
        yaml.safe_dump(
            {
                "current-context": "a",
                "contexts": [{"name": "a", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:9"}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
            }
        )
    )

    result = plugin("status", "--kubeconfig", file, "--context", "prod")

    assert result.exit_code == 2
    assert "context prod of" in result.output
    assert "`kubectl config get-contexts`" in result.output


def test_plan_requires_exactly_one_job(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(make_raw_job()))
    for arguments in ((), ("small", "-f", file)):
        result = plugin("plan", *arguments)

        assert result.exit_code == 2
        assert "NAME in the cluster, or -f JOB.yaml" in result.output


def test_plan_rejects_invalid_file_before_connecting(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(make_raw_job({"spec.rollout": {"n": "eight"}})))
    result = plugin("plan", "-f", file, "--kubeconfig", tmp_path / "nowhere")
    assert result.exit_code == 2
    assert "spec.rollout.n" in result.output
