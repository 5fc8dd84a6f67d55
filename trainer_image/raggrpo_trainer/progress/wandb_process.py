"""Weights & Biases in a separate process: `python -m ….progress.wandb_process FD OPTIONS`.

Reads metrics from a socket until the trainer closes it, then has a few seconds to upload the rest.
Because of the separate process, a hung W&B server delays neither training nor its reports.
"""

import json
import logging
import os
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from raggrpo_api.spec.monitoring import LogLevel
from raggrpo_trainer.host.logs import configure_logs

MAX_MESSAGE_BYTES = 2**20
INIT_SECONDS = 60.0
UPLOAD_SECONDS = 5.0
"""Seconds for pending uploads after the socket is closed; the rest stays in the log folder."""
EXIT_SECONDS = 7
"""Seconds after the socket is closed until SIGALRM kills this process."""

log = logging.getLogger("raggrpo_trainer.wandb")


def main() -> int:
    """Upload metrics until the socket is closed; return 1 if W&B cannot be used."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    options = json.loads(sys.argv[2])
    configure_logs(LogLevel(options.pop("level")))
    threading.Thread(target=_exit_after_close, args=(channel,), daemon=True).start()
    try:
        run = _run(**options)
    except _Unusable as reason:
        channel.shutdown(socket.SHUT_RDWR)  # from now on the trainer counts lost records
        log.error(
            "W&B project %s gets no metrics: %s; training continues", options["project"], reason
        )
        return 1
    # A separate step axis: W&B's step cannot decrease when training resumes from a checkpoint.
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    while message := channel.recv(MAX_MESSAGE_BYTES):
        run.log(json.loads(message))
    run.finish()
    return 0


class _Unusable(Exception):
    """W&B cannot be used; the message has the reason and the remedy."""


def _run(project: str, run_id: str, name: str, folder: str) -> Any:
    """Start or resume the W&B run of the job; its files are in `folder`/wandb."""
    try:
        import wandb
    except ImportError as missing:
        raise _Unusable(
            f"{missing}; install raggrpo-operator[trainer] into the image, or remove"
            " spec.monitoring.wandb.project"
        ) from missing
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        return wandb.init(
            project=project,
            id=run_id,
            name=name,
            dir=folder,
            resume="allow",
            settings=wandb.Settings(
                # Metrics only: no output, code, packages, host, command line or system metrics.
                console="off",
                disable_code=True,
                disable_git=True,
                x_save_requirements=False,
                x_disable_meta=True,
                x_disable_stats=True,
                x_disable_machine_info=True,
                silent=True,
                init_timeout=INIT_SECONDS,
                finish_timeout=UPLOAD_SECONDS,
            ),
        )
    except (wandb.Error, OSError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        server = os.environ.get("WANDB_BASE_URL", "the W&B server")
        raise _Unusable(
            f"{reason}; check WANDB_API_KEY in spec.env and that {server} can be reached from the"
            " job's pods, or set WANDB_MODE to offline in spec.env and upload later with"
            f" `wandb sync {folder}/wandb/offline-run-*`"
        ) from error


def _exit_after_close(channel: socket.socket) -> None:
    """Wait until the trainer closes the socket, then set an alarm that kills this process."""
    closed = select.poll()
    closed.register(channel, 0)
    closed.poll()
    signal.alarm(EXIT_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
