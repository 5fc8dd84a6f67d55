"""Initialize torch's process group, and verify that its members are the ranks."""

import hmac
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.exchange.rendezvous import Rendezvous

TAG_TIMEOUT = timedelta(seconds=60)
"""How long a rank that has joined may take to send its tags."""


def init_process_group(rank: int, world_size: int, rendezvous: Rendezvous, device: str) -> None:
    """Join the process group; blocks until all ranks have joined.

    On GPUs the group also transfers CPU tensors, for checkpoints. Raises TrainerError
    TRAINER_RANK_LOST if another process has taken the place of a rank.
    """
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    store = _store(rank, world_size, rendezvous)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
    verify_members(rank, world_size, rendezvous.key)


def verify_members(rank: int, world_size: int, key: bytes) -> None:
    """Exchange a tag with every rank over the connections of later collectives (collective).

    Gloo assigns a rank's place to the first process that connects, and received objects are
    unpickled. Another process cannot compute the tag of the rank whose place it has taken.
    """
    sent = torch.stack([_tag(key, rank, other) for other in range(world_size)])
    received = torch.empty_like(sent)
    exchange = dist.all_to_all_single(received, sent, async_op=True)
    try:
        exchange.wait(TAG_TIMEOUT)
    except RuntimeError as error:
        problem = f"rank {rank} received no tag from another rank ({error})"
        raise TrainerError(ExitCode.TRAINER_RANK_LOST, problem) from error
    expected = torch.stack([_tag(key, other, rank) for other in range(world_size)])
    if foreign := (received != expected).any(dim=1).nonzero().flatten().tolist():
        raise TrainerError(
            ExitCode.TRAINER_RANK_LOST,
            f"another process has taken the place of ranks {foreign} toward rank {rank}; check who "
            "can connect to the ranks' ports",
        )


def _tag(key: bytes, sender: int, receiver: int) -> Tensor:
    digest = hmac.digest(key, f"{sender} to {receiver}".encode(), "sha256")
    return torch.tensor(list(digest), dtype=torch.uint8)


def _store(rank: int, world_size: int, rendezvous: Rendezvous) -> dist.Store:  # type: ignore[name-defined]  # the stores are public, but not re-exported
    if rendezvous.file:
        return dist.FileStore(rendezvous.file, world_size)  # type: ignore[attr-defined]
    host, port = rendezvous.host, rendezvous.port
    return dist.TCPStore(  # type: ignore[attr-defined]
        host,
        port,
        world_size,
        is_master=rank == 0,
        timeout=dist.default_pg_timeout,
        master_listen_fd=_listening_socket(host, port) if rank == 0 else None,
    )


def _listening_socket(address: str, port: int) -> int:
    """Return a listening socket's descriptor; the store's own socket listens on all interfaces."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family).detach()
