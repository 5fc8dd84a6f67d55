"""`python -m raggrpo_trainer.pre_stop`: have the driver save before this pod ends, and wait for it.

The preStop hook of head and workers. Light on purpose, and it never fails: without a driver there
is nothing to save. Then nothing here is worth keeping, and Ray, which takes half a minute to end
when it is told to, is killed: its pods hold GPUs and quota until they are gone.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, Request, build_opener

from raggrpo_api import names

PAUSE_SECONDS = 0.5
CALL_SECONDS = 5.0
END_SECONDS = 5.0
"""In which `ray start` ends the container, and this hook with it."""
RAYLET = "/raylet/raylet"
"""How the program of every Ray node ends; `ray start --block` ends with it."""


def main(
    arguments: Sequence[str] | None = None,
    env: Mapping[str, str] = os.environ,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Ask until the driver has ended or the time is up; always 0."""
    parser = argparse.ArgumentParser(prog="raggrpo_trainer.pre_stop", description=__doc__)
    parser.add_argument("--head", required=True, help="host of the progress server")
    parser.add_argument("--seconds", type=float, required=True, help="longest wait")
    parser.add_argument("--end-ray", action="store_true", help="then kill the Ray of this pod")
    options = parser.parse_args(arguments)
    port = env.get(names.ENV_PROGRESS_PORT, names.PROGRESS_PORT)
    url = f"http://{options.head}:{port}/stop"
    end = clock() + options.seconds
    while _is_running(url, env.get("RAY_AUTH_TOKEN", "")) and clock() < end:
        sleep(PAUSE_SECONDS)
    if options.end_ray:
        kill_raylet(Path("/proc"))
        # `ray start` looks every second and takes everything with it. After the hook comes SIGTERM,
        # on which it would rather ask one process after the other.
        sleep(END_SECONDS)
    return 0


def kill_raylet(processes: Path) -> None:
    """Kill every raylet among these processes."""
    for each in processes.iterdir():
        if not each.name.isdigit():
            continue
        try:
            program = (each / "cmdline").read_text().partition("\0")[0]
            if program.endswith(RAYLET):
                os.kill(int(each.name), signal.SIGKILL)
        except OSError:  # it has ended meanwhile
            continue


def _is_running(url: str, token: str) -> bool:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = Request(url, data=b"", headers=headers, method="POST")
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=CALL_SECONDS) as answer:
            return bool(json.load(answer)["running"])
    except (URLError, OSError) as error:  # nobody listens, or not to us: nothing to wait for
        sys.stderr.write(f"{url}: {error}\n")
        return False


if __name__ == "__main__":
    sys.exit(main())
