"""The Weights & Biases run of a job, used by the reporting thread. Must not import wandb."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping

from raggrpo_api.trainer.config import TrainerConfig

from .wandb_process import EXIT_SECONDS


class WandbRun:
    """One run for all attempts of a job, in a child process that exits with this process."""

    def __init__(self, config: TrainerConfig, env: Mapping[str, str] = os.environ) -> None:
        monitoring = config.monitoring
        attempt = config.attempt
        self.target = f"W&B project {monitoring.wandb.project}"
        options = {
            "project": monitoring.wandb.project,
            "run_id": attempt.job_uid,
            "name": attempt.job_name,
            "folder": monitoring.log_dir,
            "level": monitoring.log_level,
        }
        # SEQPACKET preserves message boundaries and signals the exit of this process to the child.
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)
        with theirs:
            descriptor = theirs.fileno()
            program = (sys.executable, "-m", "raggrpo_trainer.progress.wandb_process")
            self._process = subprocess.Popen(
                [*program, str(descriptor), json.dumps(options)],
                pass_fds=[descriptor],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C must only interrupt the driver
                env={"WANDB_ERROR_REPORTING": "false"} | _folders(monitoring.log_dir) | {**env},
            )

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Send the scalars of a step to the child. Raises OSError if it cannot receive them."""
        try:
            self._channel.send(json.dumps({"step": step, **scalars}).encode())
        except BlockingIOError as full:
            raise OSError("earlier metrics are still waiting for the W&B server") from full
        except ConnectionError as ended:
            raise OSError("the W&B process has exited; see its error above") from ended

    def close(self) -> None:
        """Let the child upload pending metrics; kill the child if it does not exit in time."""
        self._channel.close()
        try:
            self._process.wait(EXIT_SECONDS + 1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _folders(log_dir: str) -> dict[str, str]:
    """Return the environment variables that place the files of W&B in the log folder."""
    names = ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR")
    return dict.fromkeys(names, f"{log_dir}/wandb")
