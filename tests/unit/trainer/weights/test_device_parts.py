import torch

from raggrpo_trainer.weights.device_parts import PartSender


def test_parts_are_as_large_as_they_may_be_and_hold_every_tensor_once() -> None:
    sizes = [4, 4, 4, 20, 1, 2]
    weights = [(str(i), torch.arange(size, dtype=torch.float32)) for i, size in enumerate(sizes)]
    sender = PartSender(iter(weights), size=40)
    found = []
    while (part := sender.next(maps=False)) is not None:
        assert part.dtype_names == ["float32"] * len(part.names)
        found.append((part.names, part.shapes))

    assert found == [
        (["0", "1"], [[4], [4]]),
        (["2"], [[4]]),
        (["3"], [[20]]),  # larger than a part
        (["4", "5"], [[1], [2]]),
    ]
    assert sender.next(maps=False) is None


def test_rank_0_broadcasts_the_tensors_of_the_part_in_order() -> None:
    sent: list[tuple[list[float], int]] = []

    class Group:
        def broadcast(self, tensor: torch.Tensor, *, src: int) -> None:
            sent.append((tensor.flatten().tolist(), src))

    transposed = torch.arange(4.0).view(2, 2).T
    sender = PartSender([("a", transposed), ("b", torch.ones(1))], size=1000)
    sender.next(maps=False)
    sender.broadcast(Group())  # type: ignore[arg-type]

    assert sent == [([0.0, 2.0, 1.0, 3.0], 0), ([1.0], 0)]
