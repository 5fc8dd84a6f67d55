"""Run functions as another user of the machine."""

import encodings.idna  # noqa: F401  # OTHER_UID may be unable to import it for its first connection
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import ParamSpec, TypeVar

import pytest

OTHER_UID = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

P = ParamSpec("P")
T = TypeVar("T")


def as_other_user(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of a function that runs in a process of the user OTHER_UID.

    The process is forked, since other users may be unable to execute this Python.
    """
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, mp_context=fork, initializer=_become_other_user) as pool:
        return pool.submit(function, *args, **kwargs).result()


def _become_other_user() -> None:
    os.setgroups([])
    os.setgid(OTHER_UID)
    os.setuid(OTHER_UID)
