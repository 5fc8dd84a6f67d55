"""`python -m raggrpo_trainer.pre_stop`: make the driver save before this pod ends, and wait for it.

The preStop hook of head and workers. Must stay light and must never fail: without a driver there is
nothing to save. Once the driver has ended, nothing in the pod is worth keeping, so Ray is ended: a
regular shutdown takes half a minute, during which the pods still hold GPUs and quota.

If the RayCluster was deleted, a worker may be unable to reach the head although the driver is still
saving. A driver ends its ranks before itself, or has them marked as left: living ones without that
waiting_marker mean a driver that lives, or was killed.
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
from raggrpo_trainer.ranks.waiting_marker import waiting_marker

PAUSE_SECONDS = 0.2
CALL_SECONDS = 5.0
SILENCE_SECONDS = 30.0
"""How long living ranks count as a living driver that cannot be reached: if the head died, its
ranks linger for longer than this."""
RANK = "ray::RankActor"
"""Prefix of a rank's process title; Ray appends what it is doing."""
END_SECONDS = 5.0
"""Time for `ray start` to end the container, and this hook with it."""
RAYLET, LOG_MONITOR = "/raylet/raylet", "/log_monitor.py"
"""Suffixes of paths of what every Ray node runs; `ray start --block` ends once one is killed."""
LEAVE_SECONDS = 1.0
"""Longest wait for a raylet to tell the head that its node is gone, and to end."""
LOOK_SECONDS = 0.1


def main(
    arguments: Sequence[str] | None = None,
    env: Mapping[str, str] = os.environ,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    processes: Path = Path("/proc"),
) -> int:
    """Poll until the driver has ended or time is up; always return 0."""
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
            is_running = any(
                command[0].startswith(RANK) and not waiting_marker(process).exists()
                for process, command in commands(processes)
            )
        if not is_running:
            break
        sleep(PAUSE_SECONDS)
    if options.end_ray:
        end_ray(processes, sleep)
        # `ray start` checks every second and then ends the container. If the hook returned first,
        # SIGTERM would follow and make `ray start` shut down its processes one by one instead.
        sleep(END_SECONDS)
    return 0


def end_ray(processes: Path, sleep: Callable[[float], None]) -> None:
    """End the Ray node whose processes these are.

    A raylet that is killed is missed only after several health checks: until then the next attempt
    would be given its node. One that is told to end says so to the head, but `ray start` lives on.
    """
    _send(signal.SIGTERM, _running(processes, RAYLET))
    for _ in range(round(LEAVE_SECONDS / LOOK_SECONDS)):
        if not _running(processes, RAYLET):
            break
        sleep(LOOK_SECONDS)
    _send(signal.SIGKILL, _running(processes, RAYLET, LOG_MONITOR))


def _send(number: signal.Signals, to: Sequence[int]) -> None:
    for process in to:
        with suppress(OSError):  # it has ended by now, or is not ours; never fail
            os.kill(process, number)


def _running(processes: Path, *programs: str) -> Sequence[int]:
    return [
        process
        for process, command in commands(processes)
        if any(part.endswith(programs) for part in command)
    ]


def commands(processes: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield every process with its command, or its self-assigned title."""
    for each in processes.iterdir():
        if each.name.isdigit():
            with suppress(OSError):  # it has ended by now
                yield int(each.name), (each / "cmdline").read_text().split("\0")


def _is_running(url: str, token: str) -> bool | None:
    """Ask the driver to end; return whether it still runs, None if there is no answer."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = Request(url, data=b"", headers=headers, method="POST")
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=CALL_SECONDS) as answer:
            return bool(json.load(answer)["running"])
    except (URLError, OSError) as error:  # not listening, or not reachable from here
        sys.stderr.write(f"{url}: {error}\n")
        return None


if __name__ == "__main__":
    sys.exit(main())
