"""`python -m raggrpo_trainer.preflight`: run the checks; exit with 0 if a result was written.

Reads the configuration from RAGGRPO_CONFIG. Writes the result to the file named by
RAGGRPO_PREFLIGHT_OUTPUT (in a pod, the termination message) or else to standard output.
"""

import asyncio
import os
import sys
from collections.abc import Mapping

from raggrpo_api import names
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.job_config import read_config

from .run import run_checks, to_bytes


def main(env: Mapping[str, str] = os.environ) -> int:
    """Run the checks, write the result and return the exit code."""
    try:
        config = read_config(env)
    except TrainerError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    result = to_bytes(asyncio.run(run_checks(config, env)))
    output = env.get(names.ENV_PREFLIGHT_OUTPUT, "")
    if output:
        # Written in place: the termination message of a pod is a mounted file.
        with open(output, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(result)
    else:
        sys.stdout.buffer.write(result + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
