"""The kubectl plugin with one function per subcommand."""

import typer

from .diff import diff
from .logs import logs
from .plan import plan
from .status import status

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for _verb in (status, logs, plan, diff):
    app.command()(_verb)


@app.callback()
def _main() -> None:
    """Inspect retrieval-augmented GRPO jobs in a cluster, with your permissions."""
