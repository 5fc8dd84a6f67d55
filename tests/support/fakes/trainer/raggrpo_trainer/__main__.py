"""A driver that counts steps, saves the count, and misbehaves as FAKE_TRAINER says.

FAKE_TRAINER is JSON: `steps_per_second`, `crash_at` {attempt: step}, `ignores_stop`.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from raggrpo_api import names
from raggrpo_api.exit_codes import ExitCode
from raggrpo_api.progress import CheckpointRef, Progress, Stage
from raggrpo_api.sealed_config import open_sealed
from raggrpo_api.trainer_config import TrainerConfig
from raggrpo_trainer import progress_server

CONFIG = TrainerConfig.model_validate_json(open_sealed(os.environ))
ORDERS = json.loads(os.environ.get("FAKE_TRAINER", "{}"))
FOLDER = Path(CONFIG.checkpoint.path)
SAVED = FOLDER / "saved-step"
SAVE_EVERY = 5


def main() -> int:
    """Count from the saved step to the target."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    start_progress_server()
    step = begin = int(SAVED.read_text()) if SAVED.exists() else 0
    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = not ORDERS.get("ignores_stop")

    signal.signal(signal.SIGTERM, stop)
    crash_at = ORDERS.get("crash_at", {}).get(str(CONFIG.attempt.number))
    print(f"attempt {CONFIG.attempt.number} begins after step {begin}", flush=True)
    while step < CONFIG.training.total_steps:
        time.sleep(1 / ORDERS.get("steps_per_second", 5))
        step += 1
        if stopping or step % SAVE_EVERY == 0 or step == CONFIG.training.total_steps:
            SAVED.write_text(str(step))
        report(begin, step, Stage.TRAINING)
        if step == crash_at:
            print("crashing on order", flush=True)
            return ExitCode.ROLLOUT_ENGINE_LOST
        if stopping:
            return ExitCode.PREEMPTED
    report(begin, step, Stage.FINISHED)
    return ExitCode.DONE


def report(begin: int, step: int, stage: Stage) -> None:
    saved = int(SAVED.read_text()) if SAVED.exists() else 0
    progress = Progress(
        attempt=CONFIG.attempt.number,
        stage=stage,
        step=step,
        total_steps=CONFIG.training.total_steps,
        started_from_step=begin,
        checkpoint=CheckpointRef(step=saved, path=str(SAVED)) if saved else None,
    )
    draft = FOLDER / "progress.tmp"
    draft.write_text(progress.model_dump_json(by_alias=True))
    draft.replace(FOLDER / "progress.json")


def start_progress_server() -> None:
    """Start the server that outlives the driver, as the real one does: it is no child of it."""
    port = os.environ[names.ENV_PROGRESS_PORT]
    served = str(FOLDER / "progress.json")
    words = [sys.executable, progress_server.__file__, port, served]
    subprocess.run(f"setsid {shlex.join(words)} >/dev/null 2>&1 &", shell=True, check=True)


sys.exit(main())
