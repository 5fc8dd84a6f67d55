"""`python -m raggrpo_trainer`: run one attempt and inject the faults in RAGGRPO_FAULT, if set."""

import os
import sys
from pathlib import Path

from raggrpo_trainer.host.large_import import large_import

with large_import():
    from raggrpo_api.names import ENV_FAULT
    from raggrpo_api.trainer.config import TrainerConfig
    from raggrpo_trainer.driver.attempt import main
    from raggrpo_trainer.driver.hooks import Hooks


def _hooks(config: TrainerConfig) -> Hooks:
    if not os.environ.get(ENV_FAULT):
        return Hooks()
    from raggrpo_trainer.drills.drill import Drill
    from raggrpo_trainer.drills.faults import Faults

    faults = Faults.from_env(os.environ, config.attempt.number)
    return Drill(faults, Path(config.checkpoint.path))


if __name__ == "__main__":
    sys.exit(main(make_hooks=_hooks))
