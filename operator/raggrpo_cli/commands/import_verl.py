"""`raggrpo import verl CONFIG [overrides…] -o job.yaml`: a foreign configuration as a job."""

from pathlib import Path
from typing import Annotated

import typer
import yaml

from raggrpo_cli.job_file import fail
from raggrpo_cli.terminal import show
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
"""Where verl's programs lie in its repository."""


class _Dumper(yaml.SafeDumper):
    """Quotes what kubectl, which reads YAML 1.1, takes for a boolean and PyYAML does not."""


def _quoted(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if text.lower() in ("n", "y") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _quoted)


@app.callback()
def _import() -> None:
    """Turn another trainer's configuration into a job."""


@app.command()
def verl(
    config: Annotated[Path, typer.Argument(help="verl's Hydra YAML, or its .sh script.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="name.of.field=value")] = None,
    config_path: Annotated[
        Path | None,
        typer.Option(help="Folder of verl's repository, if the file does not lie in it."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the job there.")
    ] = None,
) -> None:
    """Write the job that a verl configuration amounts to; tell what became of every field."""
    read = _reader(config, config_path)
    try:
        text = config.read_text(encoding="utf-8")
        found = _composed(config, text, read)
        found.override(read_overrides(overrides or []))
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{config} cannot be read: {error}")
    except Unreadable as error:
        fail(f"{config}: {error}")
    try:
        imported = import_verl(found.values, found.inherited, found.missing, read)
    except Unreadable as error:
        fail(f"{config}: {error}")
    except (TypeError, ValueError) as error:
        fail(f"{config}: a value has another kind than verl's own: {error}")
    _write(imported, output)


def _composed(config: Path, text: str, read: Read) -> Composition:
    """Return the values of a configuration, or of a script with the configuration it names."""
    if config.suffix != ".sh":
        return compose(config.stem, [str(config.parent.absolute())], read, text=text)
    script = read_script(text)
    found = Composition()
    if name := script.options.get("--config-name"):
        given = (script.options.get(each) for each in ("--config-path", "--config-dir"))
        folders = [each for each in given if each]
        # A relative one is looked for beside verl's own program.
        folders += [f"{MAIN}/{each}" for each in folders or ["config"]]
        found = compose(name, folders, read, script.choices)
    found.override({**script.choices, **script.overrides})
    found.missing += script.missing
    return found


def _reader(config: Path, repository: Path | None) -> Read:
    """Return what reads a file named by a configuration: below any folder that this one is in."""
    at = config.absolute().parent
    folders = [*([repository] if repository else []), at, *at.parents, Path.cwd()]

    def read(name: str) -> str | None:
        path = Path(name.replace(HOME, "~", 1)).expanduser()
        try:
            files = (folder / path for folder in folders)
            file = next((each for each in files if each.is_file()), None)
            return None if file is None else file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise Unreadable(f"{name} cannot be read: {error}") from error

    return read


def _write(imported: Imported, output: Path | None) -> None:
    job = yaml.dump(imported.job, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    if output is None:
        show(job)
    else:
        try:
            output.write_text(job, encoding="utf-8")
        except OSError as error:
            fail(f"{output} cannot be written: {error}")
    for title, lines in (
        ("mapped", imported.mapped),
        ("no counterpart", imported.unmapped),
        ("wrong in the original", imported.wrong),
        ("not at hand, give overrides or --config-path", imported.missing),
    ):
        show("\n".join([f"{title} ({len(lines)}):", *(f"  {line}" for line in lines)]), err=True)
    if output is not None:
        show(f"{output}: raggrpo validate {output}; raggrpo run {output} --mount {CLAIM}=DIR")
    parsed = parse_job(imported.job)
    found = parsed if isinstance(parsed, tuple) else violations(parsed, resolve(parsed))
    if found:
        show(
            "\n".join(["what the rules say of the job:", *(f"  {v.line()}" for v in found)]),
            err=True,
        )
