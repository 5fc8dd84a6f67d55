"""The job's Weights & Biases run, used by the reporting thread. Must not import wandb."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping

from raggrpo_api.trainer.config import TrainerConfig

from .wandb_process import END_SECONDS


class WandbRun:
    """One run for all attempts of the job, fed through a child process that ends with this one."""

    def __init__(self, config: TrainerConfig, env: Mapping[str, str] = os.environ) -> None:
        monitoring, attempt = config.monitoring, config.attempt
        self.place = f"W&B project {monitoring.wandb.project}"
        options = {
            "project": monitoring.wandb.project,
            "run_id": attempt.job_uid,
            "name": attempt.job_name,
            "folder": monitoring.log_dir,
            "level": monitoring.log_level,
        }
        # SEQPACKET keeps messages whole and shows the child that this process has ended.
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)
        with theirs:
            number = theirs.fileno()
            program = (sys.executable, "-m", "raggrpo_trainer.progress.wandb_process")
            self._process = subprocess.Popen(
                [*program, str(number), json.dumps(options)],
                pass_fds=[number],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the driver only
                env={"WANDB_ERROR_REPORTING": "false"} | _folders(monitoring.log_dir) | {**env},
            )

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Send a step's scalars to the child. Raises OSError if it cannot take them."""
        try:
            self._channel.send(json.dumps({"step": step, **scalars}).encode())
        except BlockingIOError as full:
            raise OSError("older points are still waiting for the W&B server") from full
        except ConnectionError as ended:
            raise OSError("its process has ended; the reason stands above") from ended

    def close(self) -> None:
        """Let the child upload the rest and wait for it; it should end within `END_SECONDS`."""
        self._channel.close()
        try:
            self._process.wait(END_SECONDS + 1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _folders(log_dir: str) -> dict[str, str]:
    """Return the environment variables that keep W&B's files out of the home folder."""
    names = ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR")
    return dict.fromkeys(names, f"{log_dir}/wandb")
