"""The `raggrpo` command: registers one function per verb."""

import typer

from .commands.check import check
from .commands.compare import compare
from .commands.crd import crd
from .commands.logs import logs
from .commands.plan import plan
from .commands.report import report
from .commands.run import run
from .commands.status import status
from .commands.validate import validate

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for _verb in (run, validate, plan, check, status, logs, report, compare, crd):
    app.command()(_verb)


@app.callback()
def _main() -> None:
    """Run and inspect retrieval-augmented GRPO jobs: declarative, restarted, on any machine."""


def main() -> None:
    """Entry point."""
    app()


if __name__ == "__main__":
    main()
