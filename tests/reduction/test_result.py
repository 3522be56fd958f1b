"""The full grid after block-by-block reduction, and how a readout sees it."""

import torch
from torch import Tensor

from redi.reduction.result import dropped_last, read_counted


def test_dropped_patches_come_last_and_do_not_count() -> None:
    full = torch.tensor([[[9.0], [1.0], [2.0], [3.0]], [[8.0], [4.0], [5.0], [6.0]]])  # one prefix token, three patches
    whole, count = dropped_last(full, torch.tensor([[1, 0, 1], [0, 0, 1]]), prefix=1)
    assert torch.equal(whole, full)
    assert count is None
    partial, count = dropped_last(full, torch.tensor([[1, -1, 0], [-1, -1, 1]]), prefix=1)
    assert count is not None
    assert count.tolist() == [2, 1]
    assert partial[..., 0].tolist() == [[9, 1, 3, 2], [8, 6, 4, 5]]


def test_a_readout_sees_the_patches_that_count_and_the_images_keep_their_order() -> None:
    hidden = torch.arange(4 * 7, dtype=torch.float32).reshape(4, 7, 1)
    count = torch.tensor([4, 2, 5, 2])  # no image has all six patches
    seen: list[tuple[int, ...]] = []

    def patch_mean(tokens: Tensor) -> Tensor:
        seen.append(tuple(tokens.shape))
        return tokens[:, 1:].mean(dim=1)

    wanted = [hidden[image, 1 : 1 + length].mean(dim=0) for image, length in enumerate(count.tolist())]
    assert torch.equal(read_counted(patch_mean, hidden, 1, count), torch.stack(wanted))
    assert sorted(seen) == [(1, 5, 1), (1, 6, 1), (2, 3, 1)]
    assert torch.equal(read_counted(patch_mean, hidden, 1, None), hidden[:, 1:].mean(dim=1))
