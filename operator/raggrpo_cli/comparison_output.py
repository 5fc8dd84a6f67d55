"""Output of `compare`, shared by `raggrpo` and `kubectl raggrpo`."""

from collections.abc import Sequence

from raggrpo_operator.core.text.comparison import Run, comparison, last_segments

from .job_file import fail
from .terminal import show


def show_comparison(runs: Sequence[Run]) -> None:
    """Print the comparison of two runs, or of the last two segments of one run."""
    try:
        a, b = runs if len(runs) > 1 else last_segments(runs[0])
    except ValueError as error:
        fail(str(error))
    show("\n".join(comparison(a, b)))
