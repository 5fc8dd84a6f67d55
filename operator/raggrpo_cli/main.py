"""The `raggrpo` command with one function per subcommand."""

import sys
from pathlib import Path

import typer

from raggrpo_cli.commands.check import check
from raggrpo_cli.commands.compare import compare
from raggrpo_cli.commands.crd import crd
from raggrpo_cli.commands.diff import diff
from raggrpo_cli.commands.export import export
from raggrpo_cli.commands.import_verl import app as import_app
from raggrpo_cli.commands.logs import logs
from raggrpo_cli.commands.plan import plan
from raggrpo_cli.commands.rag_test import rag_test
from raggrpo_cli.commands.report import report
from raggrpo_cli.commands.run import run
from raggrpo_cli.commands.status import status
from raggrpo_cli.commands.validate import validate

PLUGIN = "kubectl-raggrpo"

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for _verb in (
    run,
    validate,
    plan,
    check,
    rag_test,
    status,
    logs,
    report,
    compare,
    export,
    diff,
    crd,
):
    app.command()(_verb)
app.add_typer(import_app, name="import")


@app.callback()
def _main() -> None:
    """Run and inspect retrieval-augmented GRPO jobs on this machine."""


def main() -> None:
    """Run `raggrpo` or `kubectl raggrpo`, depending on the name of the executable."""
    if not Path(sys.argv[0]).name.startswith(PLUGIN):
        app()
    try:
        from raggrpo_cli.kubectl.app import app as plugin
    except ModuleNotFoundError as missing:
        raise SystemExit(
            f"kubectl raggrpo needs {missing.name}: pip install 'raggrpo-operator[operator]'"
        ) from missing
    plugin(prog_name="kubectl raggrpo")


if __name__ == "__main__":
    main()
