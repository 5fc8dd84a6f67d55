"""Limits of a process whose hard limits are lower."""

import subprocess
import sys

CODE = """
import resource
from raggrpo_api.resource_limits import limit_resources

resource.setrlimit(resource.RLIMIT_DATA, (1 << 29, 1 << 29))
resource.setrlimit(resource.RLIMIT_CPU, (50, 50))
limit_resources(cpu_seconds={seconds}, memory={memory})
print(resource.getrlimit(resource.RLIMIT_DATA)[0], resource.getrlimit(resource.RLIMIT_CPU))
"""


def limits(seconds: int, memory: int) -> list[str]:
    code = CODE.format(seconds=seconds, memory=memory)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip().split(" ", 1)


def test_lower_hard_limits_remain() -> None:
    assert limits(seconds=100, memory=1 << 40) == [str(1 << 29), "(50, 50)"]


def test_limits_below_the_hard_limits_apply() -> None:
    memory, seconds = limits(seconds=10, memory=1 << 20)
    assert int(memory) < 1 << 29
    assert seconds == "(10, 11)"
