"""`raggrpo import verl`: writes a job that validates, and tells what became of every field."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from raggrpo_api.exit_codes import ExitCode
from raggrpo_cli.main import app
from support.builders.verl_scripts import GSM8K, SEARCH

CLI = CliRunner()


def test_an_imported_script_is_a_job_that_validates(tmp_path: Path) -> None:
    script, job = tmp_path / "run.sh", tmp_path / "job.yaml"
    script.write_text(GSM8K)

    done = CLI.invoke(app, ["import", "verl", str(script), "trainer.save_freq=20", "-o", str(job)])

    assert done.exit_code == 0, done.output
    for title in ("mapped (", "no counterpart (", "wrong in the original ("):
        assert title in done.output
    assert "save_freq: -1" not in done.output
    assert '"n": 5' in job.read_text()  # kubectl takes a bare n for false
    assert "everySteps: 20" in job.read_text()
    validated = CLI.invoke(app, ["validate", str(job)])
    assert validated.exit_code == 0, validated.output


def test_a_hydra_configuration_is_printed_when_no_file_is_named(tmp_path: Path) -> None:
    config = tmp_path / "search.yaml"
    config.write_text(SEARCH)
    done = CLI.invoke(app, ["import", "verl", str(config)])
    assert done.exit_code == 0, done.output
    assert "kind: RagGrpoJob" in done.output


@pytest.mark.parametrize(
    ("text", "overrides", "expected"),
    [
        ("- 1\n", [], "it is no mapping: give verl's Hydra YAML"),
        ("data: {}\n", ["oops"], "oops: write an override as name.of.field=value"),
        ("trainer: {save_freq: often}\n", [], "a value has another kind than verl's own"),
    ],
)
def test_what_cannot_be_imported_is_refused_without_a_traceback(
    text: str, overrides: list[str], expected: str, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(text)
    done = CLI.invoke(app, ["import", "verl", str(config), *overrides])
    assert done.exit_code == ExitCode.CONFIG_ERROR
    assert expected in done.output
