"""`python -m raggrpo_trainer.pre_stop`: make the driver save and exit before this pod terminates.

This is the preStop hook of the Ray head and of the workers. It must import only the standard
library and must not fail: without a driver there is nothing to save. After the driver has exited,
the hook can kill Ray, because nothing in the pod is worth saving then. A regular shutdown takes
half a minute, during which the pods still use GPUs and quota.

If the RayCluster was deleted, a worker may be unable to reach the Ray head although the driver is
still saving. Before a driver exits, it kills its ranks or marks them as waiting. So live ranks
without that marker mean that the driver is alive or was killed.
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
from raggrpo_api.fields.url_host import url_host
from raggrpo_trainer.ranks.waiting_marker import waiting_marker

POLL_SECONDS = 0.2
CALL_SECONDS = 5.0
UNREACHABLE_SECONDS = 30.0
"""How long live ranks without a marker count as evidence of a live but unreachable driver. Ranks
outlive a lost Ray head for longer than this."""
RANK_TITLE = "ray::RankActor"
"""Prefix of a rank's process title; Ray appends the running method."""
RAY_EXIT_SECONDS = 5.0
"""Time for `ray start` to exit; the container then terminates and stops this hook."""
RAYLET, LOG_MONITOR = "/raylet/raylet", "/log_monitor.py"
"""Path suffixes of two processes of a Ray node; `ray start --block` exits if one is killed."""
RAYLET_EXIT_SECONDS = 1.0
"""How long a raylet may take to unregister its node from the Ray head and exit."""
RAYLET_POLL_SECONDS = 0.1


def main(
    arguments: Sequence[str] | None = None,
    env: Mapping[str, str] = os.environ,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    processes: Path = Path("/proc"),
) -> int:
    """Poll until the driver has exited or the timeout has passed; always return 0."""
    parser = argparse.ArgumentParser(prog="raggrpo_trainer.pre_stop", description=__doc__)
    parser.add_argument("--head", required=True, help="host of the progress server")
    parser.add_argument("--seconds", type=float, required=True, help="timeout in seconds")
    parser.add_argument(
        "--end-ray", action="store_true", help="kill this pod's Ray node before exiting"
    )
    options = parser.parse_args(arguments)
    port = env.get(names.ENV_PROGRESS_PORT, names.PROGRESS_PORT)
    url = f"http://{url_host(options.head)}:{port}/stop"
    deadline = clock() + options.seconds
    last_response = clock()
    while clock() < deadline:
        is_running = _is_running(url, env.get("RAY_AUTH_TOKEN", ""))
        if is_running is not None:
            last_response = clock()
        elif clock() < last_response + UNREACHABLE_SECONDS:
            is_running = any(
                command[0].startswith(RANK_TITLE) and not waiting_marker(process).exists()
                for process, command in commands(processes)
            )
        if not is_running:
            break
        sleep(POLL_SECONDS)
    if options.end_ray:
        end_ray(processes, sleep)
        # `ray start` polls every second and then terminates the container. If the hook returned
        # first, `ray start` would get SIGTERM and shut down its processes one by one.
        sleep(RAY_EXIT_SECONDS)
    return 0


def end_ray(processes: Path, sleep: Callable[[float], None]) -> None:
    """Terminate the Ray node of this pod; `processes` is the pod's /proc.

    The Ray head detects that a raylet was killed only after several health checks. Until then, it
    would schedule the next attempt on the killed raylet's node. On SIGTERM a raylet unregisters its
    node, but `ray start` does not exit. So SIGTERM comes first, then SIGKILL.
    """
    _send(signal.SIGTERM, _running(processes, RAYLET))
    for _ in range(round(RAYLET_EXIT_SECONDS / RAYLET_POLL_SECONDS)):
        if not _running(processes, RAYLET):
            break
        sleep(RAYLET_POLL_SECONDS)
    _send(signal.SIGKILL, _running(processes, RAYLET, LOG_MONITOR))


def _send(number: signal.Signals, to: Sequence[int]) -> None:
    for process in to:
        with suppress(OSError):  # the process has exited, or belongs to another user
            os.kill(process, number)


def _running(processes: Path, *programs: str) -> Sequence[int]:
    return [
        process
        for process, command in commands(processes)
        if any(part.endswith(programs) for part in command)
    ]


def commands(processes: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the PID and the command, or the process title, of every process."""
    for each in processes.iterdir():
        if each.name.isdigit():
            with suppress(OSError):  # the process has exited
                yield int(each.name), (each / "cmdline").read_text().split("\0")


def _is_running(url: str, token: str) -> bool | None:
    """Request a stop of the driver; return whether it is running, or None without a response."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = Request(url, data=b"", headers=headers, method="POST")
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=CALL_SECONDS) as response:
            return bool(json.load(response)["running"])
    except (URLError, OSError) as error:  # not listening or unreachable
        sys.stderr.write(f"cannot request a stop at {url}: {error}\n")
        return None


if __name__ == "__main__":
    sys.exit(main())
