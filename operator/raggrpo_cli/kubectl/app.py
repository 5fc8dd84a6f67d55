"""The kubectl plugin with one function per subcommand."""

import typer

from .diff import diff
from .edit import resume, retry, suspend
from .history import compare, report
from .logs import logs
from .plan import plan
from .status import status
from .top import top
from .trainer_commands import check, export, rag_test

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for _verb in (status, top, logs, plan, diff, report, compare, check, rag_test, export):
    app.command()(_verb)
for _edit in (suspend, resume, retry):
    app.command()(_edit)


@app.callback()
def _main() -> None:
    """Inspect and control retrieval-augmented GRPO jobs in a cluster, with your permissions."""
