"""`python -m raggrpo_trainer.ray_start ray start ...`: `ray start` without Ray Client's server.

No part of a job uses Ray Client. Its server waits 30 s for the head's node and fails if a busy
machine takes longer; `ray start --block` then ends the whole head. Ray has no option against it,
and starts it wherever it finds what Ray Client needs.
"""

import sys

from ray.scripts import scripts


def main() -> None:
    """Run Ray's command line as if Ray Client were not installed."""
    scripts.get_ray_client_dependency_error = lambda: ImportError("no part of a job uses it")
    del sys.argv[0]
    scripts.main()


if __name__ == "__main__":
    main()
