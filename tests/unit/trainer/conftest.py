"""Process groups of tests with a policy. Imports torch late, as most tests do not need it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.builders.trainer.policies import Ranks


@pytest.fixture(scope="module")
def process_group() -> Iterator[None]:
    """Run the tests of a module as the only rank of a process group, on one thread."""
    import torch

    from support.builders.trainer.policies import one_rank

    torch.set_num_threads(1)
    with one_rank():
        yield


@pytest.fixture(scope="module")
def two_ranks() -> "Iterator[Ranks]":
    """Return two rank processes that the tests of a module share."""
    from support.builders.trainer.policies import rank_processes

    with rank_processes(2) as ranks:
        yield ranks
