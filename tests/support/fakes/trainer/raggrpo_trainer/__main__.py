"""A driver that counts steps, saves the count, and fails as specified in FAKE_TRAINER.

FAKE_TRAINER is JSON: `steps_per_second`, `crash_at` {attempt: step}, `ignores_stop`.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.progress import CheckpointRef, Progress, Stage
from raggrpo_api.trainer.sealed_config import open_sealed

CONFIG = TrainerConfig.model_validate_json(open_sealed(os.environ))
ORDERS = json.loads(os.environ.get("FAKE_TRAINER", "{}"))
FOLDER = Path(CONFIG.checkpoint.path)
SAVED = FOLDER / "saved-step"
SAVE_EVERY = 5


def main() -> int:
    """Count from the saved step to the last step."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    step = start = int(SAVED.read_text()) if SAVED.exists() else 0
    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = not ORDERS.get("ignores_stop")

    signal.signal(signal.SIGTERM, stop)
    crash_at = ORDERS.get("crash_at", {}).get(str(CONFIG.attempt.number))
    print(f"attempt {CONFIG.attempt.number} starts after step {start}", flush=True)
    while step < CONFIG.training.total_steps:
        time.sleep(1 / ORDERS.get("steps_per_second", 5))
        step += 1
        if stopping or step % SAVE_EVERY == 0 or step == CONFIG.training.total_steps:
            SAVED.write_text(str(step))
        report(start, step, Stage.TRAINING)
        if step == crash_at:
            print("crashing on order", flush=True)
            return ExitCode.ROLLOUT_ENGINE_LOST
        if stopping:
            return ExitCode.PREEMPTED
    report(start, step, Stage.FINISHED)
    return ExitCode.DONE


def report(start: int, step: int, stage: Stage) -> None:
    saved = int(SAVED.read_text()) if SAVED.exists() else 0
    progress = Progress(
        attempt=CONFIG.attempt.number,
        stage=stage,
        step=step,
        total_steps=CONFIG.training.total_steps,
        started_from_step=start,
        checkpoint=CheckpointRef(step=saved, path=str(SAVED)) if saved else None,
    )
    served = Path(os.environ["TMPDIR"], "progress.json")
    draft = served.with_suffix(".tmp")
    draft.write_text(progress.model_dump_json(by_alias=True))
    draft.replace(served)


sys.exit(main())
