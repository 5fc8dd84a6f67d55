"""Weights & Biases in a separate process: `python -m ….progress.wandb_process FD OPTIONS`.

It reads metrics from a socket until the trainer closes its end, then has a few seconds to upload
the rest. In a separate process a hanging W&B server delays neither training nor its reports.
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

MAX_MESSAGE = 2**20
INIT_SECONDS = 60.0
UPLOAD_SECONDS = 5.0
"""Time for pending uploads once the trainer has closed; the rest stays in the log folder."""
END_SECONDS = 7
"""This process ends within this time after the trainer has closed, whatever it is doing."""

log = logging.getLogger("raggrpo_trainer.wandb")


def main() -> int:
    """Log metrics until the trainer closes; if W&B is unusable, log that once and return 1."""
    channel, options = socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2])
    configure_logs(LogLevel(options.pop("level")))
    threading.Thread(target=_end_in_time, args=(channel,), daemon=True).start()
    try:
        run = _run(**options)
    except _Unusable as reason:
        channel.shutdown(socket.SHUT_RDWR)  # from now on the trainer counts lost records
        log.error(
            "W&B project %s gets no metrics: %s; training goes on", options["project"], reason
        )
        return 1
    # Our own step axis: W&B's step cannot go back when training resumes from a checkpoint.
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    while message := channel.recv(MAX_MESSAGE):
        run.log(json.loads(message))
    run.finish()
    return 0


class _Unusable(Exception):
    """W&B cannot be used; the message says why and what to do."""


def _run(project: str, run_id: str, name: str, folder: str) -> Any:
    """Start or continue the job's run; its files are in `folder`/wandb."""
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
                # Metrics only: no output, code, packages, host, command line or system figures.
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


def _end_in_time(channel: socket.socket) -> None:
    """Wait until the trainer has closed its end, then set an alarm that ends this process."""
    closed = select.poll()
    closed.register(channel, 0)
    closed.poll()
    signal.alarm(END_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
