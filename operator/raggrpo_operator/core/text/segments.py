"""Segments of a job and pending changes of values as text. Pure."""

from collections.abc import Iterator, Sequence

from raggrpo_api.trainer.progress import CheckpointRef, Segment
from raggrpo_api.trainer.resume import Change, without_derived


def segment_text(segment: Segment) -> str:
    """Return a line such as `from step 7: rollout.n: 5 → 3`."""
    source = f" of {segment.from_checkpoint}" if segment.from_checkpoint else ""
    return f"from step {segment.first_step}{source}: {changes_text(segment)}"


def changes_text(segment: Segment) -> str:
    """Return the changed values of a segment in one line."""
    return "; ".join(segment.changes) or "no changed values"


def segment_lines(
    segments: Sequence[Segment], newest: CheckpointRef | None, pending: Sequence[Change]
) -> Iterator[str]:
    """Yield one line per segment, and one with the changes that the next attempt applies.

    The next attempt continues after the checkpoint `newest`.
    """
    yield from map(segment_text, segments)
    if changed := without_derived(pending):
        step = newest.step if newest is not None else 0
        yield f"next attempt, from step {step + 1}: {'; '.join(map(str, changed))}"
