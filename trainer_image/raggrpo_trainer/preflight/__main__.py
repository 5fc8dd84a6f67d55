"""`python -m raggrpo_trainer.preflight`: exit code 0 when a result was written, whatever it says.

RAGGRPO_CONFIG holds the configuration; the result goes to the file that RAGGRPO_PREFLIGHT_OUTPUT
names, in a pod the termination message, or to standard output.
"""

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from raggrpo_api import names
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.job_config import read_config

from .run import run_checks, to_bytes


def main(env: Mapping[str, str] = os.environ) -> int:
    """Run the checks and write their result."""
    try:
        config = read_config(env)
    except TrainerError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    result = to_bytes(asyncio.run(run_checks(config, env)))
    output = env.get(names.ENV_PREFLIGHT_OUTPUT, "")
    if output:
        Path(output).write_bytes(result)  # in place: a pod's termination message is a mount
    else:
        sys.stdout.buffer.write(result + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
