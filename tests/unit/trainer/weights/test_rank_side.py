import weakref
from collections.abc import Iterator

import torch

from raggrpo_trainer.weights.rank_side import ChunkSender, NcclChunkSender


def test_weight_chunks_fill_target_size_and_contain_each_tensor_once() -> None:
    lengths = [4, 4, 4, 20, 1, 2]
    weights = [(str(i), torch.arange(n, dtype=torch.float32)) for i, n in enumerate(lengths)]
    sender = ChunkSender(iter(weights), size=40)
    chunks = []
    while (chunk := sender.next()) is not None:
        assert chunk["dtype_names"] == ["float32"] * len(chunk["names"])
        chunks.append((chunk["names"], chunk["shapes"]))

    assert chunks == [
        (["0", "1"], [[4], [4]]),
        (["2"], [[4]]),
        (["3"], [[20]]),  # larger than a chunk
        (["4", "5"], [[1], [2]]),
    ]
    assert sender.next() is None


def test_broadcast_sends_chunk_tensors_in_order() -> None:
    broadcasts: list[tuple[list[float], int]] = []

    class Group:
        def broadcast(self, tensor: torch.Tensor, *, src: int) -> None:
            broadcasts.append((tensor.flatten().tolist(), src))

    transposed = torch.arange(4.0).view(2, 2).T
    sender = NcclChunkSender([("a", transposed), ("b", torch.ones(1))], size=1000)
    sender.next()
    sender.broadcast(Group())  # type: ignore[arg-type]

    assert broadcasts == [([0.0, 2.0, 1.0, 3.0], 0), ([1.0], 0)]


def test_weight_chunk_is_freed_before_next_is_gathered() -> None:
    references: list[weakref.ref[torch.Tensor]] = []

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        for number in range(6):
            num_alive = sum(each() is not None for each in references)
            assert num_alive <= 2, "a chunk of one tensor, and the first tensor of the next"
            tensor = torch.ones(10)
            references.append(weakref.ref(tensor))
            yield str(number), tensor
            del tensor

    sender = ChunkSender(weights(), size=40)
    while sender.next() is not None:
        pass
    assert len(references) == 6
