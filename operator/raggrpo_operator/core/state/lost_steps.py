"""Steps that the newest attempt repeats. Pure."""

from raggrpo_api.status.job_status import JobStatus


def lost_remark(status: JobStatus) -> str:
    """Return a remark on the steps that the previous attempt lost, or "" if it lost none."""
    if len(status.attempts) < 2 or not (lost := status.attempts[1].lost_steps):
        return ""
    return f"; {lost} step{'' if lost == 1 else 's'} of attempt {status.attempts[1].number} lost"
