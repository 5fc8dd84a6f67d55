"""`raggrpo import verl`: writes a valid job and reports how each field was mapped."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_cli.main import app
from support.builders.data.verl_scripts import GSM8K, SEARCH
from support.builders.data.verl_tree import write_tree

CLI = CliRunner()


@pytest.mark.row("B30")
def test_import_writes_valid_job_file(tmp_path: Path) -> None:
    script, job = tmp_path / "run.sh", tmp_path / "job.yaml"
    script.write_text(GSM8K)

    done = CLI.invoke(app, ["import", "verl", str(script), "trainer.save_freq=20", "-o", str(job)])

    assert done.exit_code == 0, done.output
    for title in ("mapped (", "no counterpart (", "invalid in the original ("):
        assert title in done.output
    assert "save_freq: -1" not in done.output
    assert '"n": 5' in job.read_text()  # YAML 1.1 reads a bare n as false
    assert "everySteps: 20" in job.read_text()
    validated = CLI.invoke(app, ["validate", str(job)])
    assert validated.exit_code == 0, validated.output


def test_import_prints_job_when_output_file_is_omitted(tmp_path: Path) -> None:
    config = tmp_path / "search.yaml"
    config.write_text(SEARCH)
    done = CLI.invoke(app, ["import", "verl", str(config)])
    assert done.exit_code == 0, done.output
    assert "kind: RagGrpoJob" in done.output


@pytest.mark.row("D5")
def test_import_reads_config_defaults_and_tools_of_script(tmp_path: Path) -> None:
    script, job = write_tree(tmp_path), tmp_path / "job.yaml"

    done = CLI.invoke(app, ["import", "verl", str(script), "data.seed=5", "-o", str(job)])

    assert done.exit_code == 0, done.output
    assert "not available: specify overrides or --config-path (0):" in done.output
    spec = yaml.safe_load(job.read_text())["spec"]
    assert spec["data"]["trainBatchSize"] == 64  # from the config itself
    assert spec["data"]["maxPromptLength"] == 700  # from its defaults list
    assert spec["training"]["learningRate"] == 3e-6
    assert (spec["training"]["seed"], spec["rollout"]["n"]) == (5, 4)
    assert spec["retrieval"]["endpoints"][0]["url"] == "http://retriever.rag:9000/retrieve"
    assert CLI.invoke(app, ["validate", str(job)]).exit_code == 0


def test_import_reports_missing_files_and_reads_config_path(tmp_path: Path) -> None:
    script = write_tree(tmp_path / "verl")
    alone = tmp_path / "elsewhere" / "run.sh"
    alone.parent.mkdir()
    alone.write_text(script.read_text())

    done = CLI.invoke(app, ["import", "verl", str(alone)])
    assert done.exit_code == 0, done.output
    assert "not available: specify overrides or --config-path (2):" in done.output
    assert "lookup_grpo.yaml" in done.output

    result = CLI.invoke(
        app, ["import", "verl", str(alone), "--config-path", str(tmp_path / "verl")]
    )
    assert "not available: specify overrides or --config-path (0):" in result.output
    assert "trainBatchSize: 64" in result.output


def test_import_lists_unset_values_and_applies_overrides(tmp_path: Path) -> None:
    script, job = tmp_path / "run.sh", tmp_path / "job.yaml"
    script.write_text(GSM8K.replace("data.train_batch_size=1024", "data.train_batch_size=$BATCH"))

    done = CLI.invoke(app, ["import", "verl", str(script), "-o", str(job)])
    assert done.exit_code == 0, done.output
    assert "data.train_batch_size=$BATCH: $BATCH is not set in the script" in done.output
    assert "trainBatchSize" not in job.read_text()

    given = ["import", "verl", str(script), "data.train_batch_size=64", "-o", str(job)]
    assert "not available: specify overrides or --config-path (0):" in CLI.invoke(app, given).output
    assert "trainBatchSize: 64" in job.read_text()


def test_import_rejects_unreadable_file(tmp_path: Path) -> None:
    script = write_tree(tmp_path)
    (tmp_path / "examples/lookup/config/tools/lookup.yaml").write_bytes(b"\xff\xfe\xff")
    done = CLI.invoke(app, ["import", "verl", str(script)])
    assert done.exit_code == ExitCode.CONFIG_ERROR
    assert "lookup.yaml cannot be read" in done.output


@pytest.mark.parametrize(
    ("text", "overrides", "expected"),
    [
        ("- 1\n", [], "it is not a mapping: specify a Hydra YAML"),
        ("data: {}\n", ["oops"], "oops: write an override as name.of.field=value"),
        (
            "trainer: {save_freq: often}\n",
            [],
            "a value has an unexpected type: trainer.save_freq is",
        ),
    ],
)
def test_import_rejects_invalid_configuration(
    text: str, overrides: list[str], expected: str, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(text)
    done = CLI.invoke(app, ["import", "verl", str(config), *overrides])
    assert done.exit_code == ExitCode.CONFIG_ERROR
    assert expected in done.output
