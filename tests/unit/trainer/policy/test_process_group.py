from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess

import psutil
import pytest

from support.builders.trainer.policies import (
    exit_on_rank_1,
    fail_on_rank_1,
    one_rank,
    rank_processes,
)


def test_torch_store_listens_only_on_address_of_rank_0() -> None:
    with one_rank():
        sockets = psutil.Process().net_connections("tcp")

    listening = {s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}


@pytest.mark.parametrize(
    ("function", "error"), [(fail_on_rank_1, ValueError), (exit_on_rank_1, EOFError)]
)
def test_two_ranks_do_not_hang_when_one_fails(
    function: Callable[[int, int], None], error: type[Exception]
) -> None:
    with rank_processes(2) as ranks:
        with pytest.raises(error):
            ranks.run(function)
        assert not any(child.is_alive() for child in joined(ranks.children))


def joined(children: Sequence[BaseProcess]) -> Sequence[BaseProcess]:
    for child in children:
        child.join(30)
    return children
