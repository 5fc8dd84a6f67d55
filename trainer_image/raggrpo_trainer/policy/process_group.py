"""Initialize torch's process group."""

import socket

import torch.distributed as dist


def init_process_group(
    rank: int, world_size: int, master_addr: str, master_port: int, device: str
) -> None:
    """Join the process group; blocks until all ranks have joined.

    `master_addr` is the only address on which rank 0 listens. On GPUs the group also transfers CPU
    tensors, for checkpoints.
    """
    store = dist.TCPStore(  # type: ignore[attr-defined]  # public, but not re-exported
        master_addr,
        master_port,
        world_size,
        is_master=rank == 0,
        timeout=dist.default_pg_timeout,
        master_listen_fd=_listening_socket(master_addr, master_port) if rank == 0 else None,
    )
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)


def _listening_socket(address: str, port: int) -> int:
    """Return a listening socket's descriptor; the store's own socket listens on all interfaces."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family).detach()
