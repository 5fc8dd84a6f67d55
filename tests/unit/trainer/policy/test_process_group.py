import os
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess

import psutil
import pytest
import torch.distributed as dist

from support.builders.trainer.policies import one_rank, rank_processes


def test_torch_store_listens_only_on_address_of_rank_0() -> None:
    with one_rank():
        sockets = psutil.Process().net_connections("tcp")

    listening = {s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}


def fail_on_rank_1(rank: int, _world_size: int) -> None:
    if rank == 1:
        raise ValueError("rank 1 failed")
    dist.barrier()


def exit_on_rank_1(rank: int, _world_size: int) -> None:
    if rank == 1:
        os._exit(1)
    dist.barrier()


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
