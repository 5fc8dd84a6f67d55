"""`python -m raggrpo_trainer.pre_stop`: have the driver save before this pod ends, and wait for it.

The preStop hook of head and workers. Light on purpose, and it never fails: without a driver there
is nothing to save. Then nothing here is worth keeping, and Ray, which takes half a minute to end
when it is told to, is killed: its pods hold GPUs and quota until they are gone.

A worker whose RayCluster was deleted may find no way to the head any more, though the driver is
saving: its ranks, which Ray ends with the driver, show that.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, Request, build_opener

from raggrpo_api import names

PAUSE_SECONDS = 0.5
CALL_SECONDS = 5.0
SILENCE_SECONDS = 30.0
"""How long ranks are taken for a driver that saves when nothing is heard of it: a head that died
leaves them behind for longer."""
RANK = "ray::RankActor"
"""How Ray titles the process of a rank, followed by what it does."""
END_SECONDS = 5.0
"""In which `ray start` ends the container, and this hook with it."""
RAYLET = "/raylet/raylet"
"""How the program of every Ray node ends; `ray start --block` ends with it."""


def main(
    arguments: Sequence[str] | None = None,
    env: Mapping[str, str] = os.environ,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    processes: Path = Path("/proc"),
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
    heard = clock()
    while clock() < end:
        is_running = _is_running(url, env.get("RAY_AUTH_TOKEN", ""))
        if is_running is not None:
            heard = clock()
        elif clock() < heard + SILENCE_SECONDS:
            is_running = any(program.startswith(RANK) for _, program in programs(processes))
        if not is_running:
            break
        sleep(PAUSE_SECONDS)
    if options.end_ray:
        kill_raylet(processes)
        # `ray start` looks every second and takes everything with it. After the hook comes SIGTERM,
        # on which it would rather ask one process after the other.
        sleep(END_SECONDS)
    return 0


def kill_raylet(processes: Path) -> None:
    """Kill every raylet among these processes."""
    for process, program in programs(processes):
        if program.endswith(RAYLET):
            with suppress(OSError):  # it has ended meanwhile, or is not ours: a hook never fails
                os.kill(process, signal.SIGKILL)


def programs(processes: Path) -> Iterator[tuple[int, str]]:
    """Yield every process with its program, or the title that it gave itself."""
    for each in processes.iterdir():
        if each.name.isdigit():
            with suppress(OSError):  # it has ended meanwhile
                yield int(each.name), (each / "cmdline").read_text().partition("\0")[0]


def _is_running(url: str, token: str) -> bool | None:
    """Ask the driver to end; return whether it still runs, None when nobody answers."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = Request(url, data=b"", headers=headers, method="POST")
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=CALL_SECONDS) as answer:
            return bool(json.load(answer)["running"])
    except (URLError, OSError) as error:  # nobody listens, or not to us
        sys.stderr.write(f"{url}: {error}\n")
        return None


if __name__ == "__main__":
    sys.exit(main())
