"""`kubectl raggrpo logs NAME`: print an attempt's driver log from the head or the volume."""

from typing import Annotated

import typer

from raggrpo_api import names
from raggrpo_api.fields.base import AttemptNumber
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status.conditions import ConditionType
from raggrpo_cli.job_file import FAILED, fail
from raggrpo_cli.terminal import ALL_LINES, Follow, Tail, log_printer
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.state.conditions import get_condition
from raggrpo_operator.kube.user_client import ExecResult, UserClient

from .cluster_job import Context, Image, Kubeconfig, Namespace, get_job, run_in_cluster
from .job_pods import run_with_volumes

WAITING = (ConditionType.FAILED, ConditionType.ACCEPTED, ConditionType.READY)
"""Conditions that explain why no attempt has started, in order of preference."""
NO_LOG = 3
# $1: Ray's log file on the head, $2: folder with copies on the volume, $3: attempt number,
# $4: "follow" or "", $5: lines for `tail -n`.
# tail exits when the driver, which is the only writer, has exited.
READ = f"""
for log in "$1" "$2/$3/{names.DRIVER_LOG}"; do
    [ -r "$log" ] || continue
    driver=$(test "$4" = follow && pgrep -n -f "^{names.DRIVER_COMMAND}") ||
        exec tail -n "$5" "$log"
    exec tail -n "$5" -f --pid="$driver" "$log"
done
ls "$2" >&2
exit {NO_LOG}
"""


def logs(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the job.")],
    attempt: Annotated[
        int, typer.Option("--attempt", help="Attempt number; 0 for the newest.")
    ] = 0,
    follow: Follow = False,
    tail: Tail = ALL_LINES,
    image: Image = "",
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Print the driver log of an attempt."""

    async def show(client: UserClient) -> None:
        job = await get_job(client, namespace, name)
        number = _number(job, attempt)
        command = _command(job, number, tail, follow=follow)
        result = await run_with_volumes(client, job, command, image, log_printer())
        if result.exit_code == NO_LOG:
            fail(f"attempt {number} has no log{_other_logs(result)}", FAILED)
        if result.exit_code:
            fail(f"the log cannot be read: {result.errors.strip()}", FAILED)

    run_in_cluster(kubeconfig, context, show)


def _number(job: RagGrpoJob, requested: int) -> AttemptNumber:
    """Return the attempt to show, or exit if it has not started."""
    newest = job.status.attempt
    name = job.metadata.name
    if not 0 <= requested <= max(1, newest):
        fail(f"--attempt {requested}: job {name} has attempts 1 to {newest}")
    pending = {record.number for record in job.status.attempts if not record.started}
    number = AttemptNumber(requested or newest)
    if not newest or number in pending:
        messages = (get_condition(job.status, kind).message for kind in WAITING)
        reason = next(filter(None, messages), "")
        fail(
            f"attempt {number or 1} of job {name} has not started, the job is {job.status.phase}"
            f"{f': {reason}' if reason else ''}",
            FAILED,
        )
    return number


def _command(job: RagGrpoJob, number: AttemptNumber, tail: int, *, follow: bool) -> list[str]:
    submission = names.submission_id(job.metadata.name, number)
    log_dir = resolve(job, job.status.preflight.known_facts).spec.monitoring.log_dir
    live = f"/tmp/ray/{names.ray_driver_log(submission)}"
    copies = f"{log_dir}/{names.ATTEMPTS_DIR}"
    is_newest = number == job.status.attempt  # only the newest driver can be running
    mode = "follow" if follow and is_newest else ""
    lines = "+1" if tail == ALL_LINES else str(tail)
    return ["sh", "-c", READ, "logs", live, copies, str(number), mode, lines]


def _other_logs(result: ExecResult) -> str:
    """Return the end of an error message: the attempts that have logs, or why `ls` failed."""
    lines = result.errors.split("\n")
    if lines[0].startswith("ls:"):
        return f": {lines[0].removeprefix('ls: ')}"
    return f" on the volume; attempts with logs: {', '.join(filter(None, lines))}"
