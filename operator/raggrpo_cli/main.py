"""The `raggrpo` command: registers one function per verb."""

import typer

from .commands.run import run

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command()(run)


@app.callback()
def _main() -> None:
    """Declarative GRPO post-training with retrieval."""


def main() -> None:
    """Entry point."""
    app()


if __name__ == "__main__":
    main()
