"""`raggrpo import verl CONFIG [overrides…] -o job.yaml`: convert a verl configuration to a job."""

import os
from pathlib import Path
from typing import Annotated

import typer
import yaml

from raggrpo_cli.job_file import fail
from raggrpo_cli.terminal import show
from raggrpo_cli.text_file import read_text_file
from raggrpo_operator.core.importing.composition import Composition, Read, compose
from raggrpo_operator.core.importing.overrides import HOME, Unreadable, read_overrides
from raggrpo_operator.core.importing.script import read_script
from raggrpo_operator.core.importing.translation import CLAIM, Imported
from raggrpo_operator.core.importing.verl import import_verl
from raggrpo_operator.core.rules import violations
from raggrpo_operator.core.spec.parse import parse_job
from raggrpo_operator.core.spec.resolve import resolve

app = typer.Typer(no_args_is_help=True)

MAIN = "verl/trainer"
"""Folder in the verl repository that contains verl's programs."""


class _Dumper(yaml.SafeDumper):
    """YAML dumper that quotes y and n, which kubectl reads as booleans and PyYAML as strings."""


def _quoted(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if text.lower() in ("n", "y") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _quoted)


@app.callback()
def _import() -> None:
    """Convert the configuration of another trainer to a job."""


@app.command()
def verl(
    config: Annotated[Path, typer.Argument(help="Hydra YAML or .sh script of verl.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Overrides of fields, as name.of.field=value.")
    ] = None,
    config_path: Annotated[
        Path | None,
        typer.Option(help="Folder of the verl repository, if CONFIG is outside it."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write the job to.")
    ] = None,
) -> None:
    """Convert a verl configuration to a job and report how each field was mapped."""
    read = _reader(config, config_path)
    try:
        text = read_text_file(config)
        composition = _compose(config, text, read)
        composition.override(read_overrides(overrides or []))
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{config} cannot be read: {error}")
    except Unreadable as error:
        fail(f"{config}: {error}")
    try:
        imported = import_verl(
            composition.values, composition.inherited, composition.missing, read, config.stem
        )
    except Unreadable as error:
        fail(f"{config}: {error}")
    except (TypeError, ValueError, ArithmeticError) as error:
        fail(f"{config}: a value has an unexpected type: {error}")
    _write(imported, output)


def _compose(config: Path, text: str, read: Read) -> Composition:
    """Return the values of a configuration, or of a script and the configuration that it names."""
    if config.suffix != ".sh":
        return compose(config.stem, [str(config.parent.absolute())], read, text=text)
    script = read_script(text)
    composition = Composition()
    if name := script.options.get("--config-name"):
        options = (script.options.get(each) for each in ("--config-path", "--config-dir"))
        folders = [folder for folder in options if folder]
        # Hydra resolves a relative --config-path against verl's program.
        folders += [f"{MAIN}/{each}" for each in folders or ["config"]]
        composition = compose(name, folders, read, script.choices)
    composition.override({**script.choices, **script.overrides})
    composition.missing += script.missing
    return composition


def _reader(config: Path, repository: Path | None) -> Read:
    """Return a function that reads a file below the first folder that contains it.

    The folders are the repository, the folder of the configuration, its parents that contain verl,
    and the working directory. A configuration cannot refer to files elsewhere.
    """
    parent = config.absolute().parent
    parents = [each for each in parent.parents if (each / "verl").is_dir()]
    folders = [*([repository] if repository else []), parent, *parents, Path.cwd()]

    def read(name: str) -> str | None:
        try:
            path = Path(name.replace(HOME, "~", 1)).expanduser()
            files = ((folder, folder / path) for folder in folders)
            below = (file for folder, file in files if _is_below(file, folder))
            file = next((each for each in below if each.is_file()), None)
            return None if file is None else read_text_file(file)
        except (OSError, ValueError, RuntimeError) as error:  # no such home; a loop of links
            raise Unreadable(f"{name} cannot be read: {error}") from error

    return read


def _is_below(file: Path, folder: Path) -> bool:
    return file.resolve().is_relative_to(folder.resolve())


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file. Raises OSError for a pipe that no process reads."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    os.set_blocking(descriptor, True)
    return descriptor


def _write(imported: Imported, output: Path | None) -> None:
    job = yaml.dump(imported.job, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    if output is None:
        show(job)
    else:
        try:
            with open(output, "w", encoding="utf-8", opener=_open_without_waiting) as file:
                file.write(job)
        except OSError as error:
            fail(f"{output} cannot be written: {error}")
    for title, lines in (
        ("mapped", imported.mapped),
        ("no counterpart", imported.unmapped),
        ("invalid in the original", imported.wrong),
        ("not available: specify overrides or --config-path", imported.missing),
    ):
        show("\n".join([f"{title} ({len(lines)}):", *(f"  {line}" for line in lines)]), err=True)
    if output is not None:
        next_steps = f"raggrpo validate {output}, raggrpo run {output} --mount {CLAIM}=DIR"
        show(f"the job was written to {output}; next commands: {next_steps}")
    parsed = parse_job(imported.job)
    problems = parsed if isinstance(parsed, tuple) else violations(parsed, resolve(parsed))
    if problems:
        show("\n".join(["problems in the job:", *(f"  {v.line()}" for v in problems)]), err=True)
