"""`raggrpo import verl CONFIG [overrides…] -o job.yaml`: a foreign configuration as a job."""

from pathlib import Path
from typing import Annotated

import typer
import yaml

from raggrpo_cli.job_file import refuse
from raggrpo_cli.terminal import show
from raggrpo_operator.core.importing.overrides import (
    Unreadable,
    read_hydra,
    read_overrides,
    read_script,
)
from raggrpo_operator.core.importing.translation import CLAIM, Imported
from raggrpo_operator.core.importing.verl import import_verl
from raggrpo_operator.core.rules import violations
from raggrpo_operator.core.spec.parse import parse_job
from raggrpo_operator.core.spec.resolve import resolve

app = typer.Typer(no_args_is_help=True)


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
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the job there.")
    ] = None,
) -> None:
    """Write the job that a verl configuration amounts to; tell what became of every field."""
    try:
        text = config.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        refuse(f"{config} cannot be read: {error}")
    try:
        values = read_script(text) if config.suffix == ".sh" else read_hydra(text)
        values |= read_overrides(overrides or [])
    except Unreadable as error:
        refuse(f"{config}: {error}")
    try:
        imported = import_verl(values)
    except (TypeError, ValueError) as error:
        refuse(f"{config}: a value has another kind than verl's own: {error}")
    _write(imported, output)


def _write(imported: Imported, output: Path | None) -> None:
    job = yaml.dump(imported.job, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    if output is None:
        show(job)
    else:
        try:
            output.write_text(job, encoding="utf-8")
        except OSError as error:
            refuse(f"{output} cannot be written: {error}")
    for title, lines in (
        ("mapped", imported.mapped),
        ("no counterpart", imported.unmapped),
        ("wrong in the original", imported.wrong),
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
