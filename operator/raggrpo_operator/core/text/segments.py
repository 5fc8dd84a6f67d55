"""Segments of a job and pending changes of values as text. Pure."""

from collections.abc import Iterator, Sequence

from raggrpo_api.fields.change_class import OPTIMIZATION
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.trainer.progress import Segment
from raggrpo_api.trainer.resume import Change, without_derived


def segment_text(segment: Segment) -> str:
    """Return a line such as `from step 7: rollout.n: 5 → 3`."""
    return f"from step {segment.first_step}: {'; '.join(segment.changes)}"


def segment_lines(status: JobStatus, pending: Sequence[Change] = ()) -> Iterator[str]:
    """Yield one line per segment; the last one has the changes that the next attempt applies.

    Changes of other classes than Optimization do not start a segment and are omitted.
    """
    yield from map(segment_text, status.segments)
    changed = [str(c) for c in without_derived(pending) if c.change_class is OPTIMIZATION]
    if changed:
        step = status.checkpoint.step if status.checkpoint else 0
        yield f"next attempt, from step {step + 1}: {'; '.join(changed)}"
