"""The linear head: it learns what is separable, ignores void, and is the same for the same seed."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from redi.errors import CorpusError
from redi.grid import Grid
from redi.images.scenes import VOID
from redi.segmentation.head import CELLS, LinearHead, Recipe, fit_head, majority, pace, token_statistics, upsampled

QUICK = Recipe(steps=150, batch=4, learning_rate=0.02)


@dataclass
class Toy:
    """Patches of two classes on two grid sizes, which differ in the sign of one direction."""

    stored: list[Tensor]
    labels: list[Tensor]
    grids: Sequence[Grid]

    def tokens(self, index: int) -> Tensor:
        return self.stored[index]

    def cells(self, index: int) -> Tensor:
        return self.labels[index]


def toy(void: bool = False) -> Toy:
    generator = torch.Generator().manual_seed(0)
    grids = [(4, 6) if index % 2 else (5, 5) for index in range(12)]
    stored, labels = [], []
    for rows, columns in grids:
        kinds = (torch.arange(columns) >= columns // 2).long().expand(rows, -1)
        tokens = 3 + 0.3 * torch.randn(rows * columns, 8, generator=generator)
        tokens[:, 2] += 4 * (2 * kinds.flatten() - 1)
        cells = kinds.repeat_interleave(CELLS, 0).repeat_interleave(CELLS, 1).to(torch.uint8)
        if void:
            cells[0] = VOID
        stored.append(tokens)
        labels.append(cells)
    return Toy(stored, labels, grids)


def test_it_learns_a_separable_toy_on_grids_of_two_sizes() -> None:
    source = toy(void=True)
    head, loss = fit_head(source, 2, QUICK)
    assert loss < 0.3  # the logits between two patches of different classes are a mixture
    for index, grid in enumerate(source.grids):
        best = head.logits(source.tokens(index)[None], grid)[0].argmax(dim=0)
        assert torch.equal(best, (torch.arange(grid[1]) >= grid[1] // 2).long().expand(grid[0], -1))


def test_the_same_seed_gives_the_same_head() -> None:
    first, second = (fit_head(toy(), 2, QUICK)[0] for _ in range(2))
    assert torch.equal(first.weight, second.weight)
    assert not torch.equal(first.weight, fit_head(toy(), 2, Recipe(150, 4, 0.02, seed=1))[0].weight)


def test_labels_that_are_all_void_are_one_line() -> None:
    source = toy()
    source.labels = [torch.full_like(cells, VOID) for cells in source.labels]
    with pytest.raises(CorpusError, match="all of them are void"):
        fit_head(source, 2, QUICK)
    source.labels[3] = toy().labels[3]
    fit_head(source, 2, Recipe(steps=2))


def test_the_statistics_are_those_of_batch_norm() -> None:
    source = toy()
    mean, scale = token_statistics(source)
    everything = torch.cat(source.stored)
    norm = torch.nn.BatchNorm1d(8, affine=False, momentum=None)
    torch.testing.assert_close((everything - mean) * scale, norm(everything), rtol=1e-4, atol=1e-5)


def test_logits_are_a_linear_layer_on_the_grid() -> None:
    head = LinearHead(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 1.0]), torch.eye(2), torch.tensor([0.0, 5.0]))
    logits = head.logits(torch.tensor([[[1.0, 0.0], [2.0, 3.0]]]), (1, 2))
    assert logits[0, :, 0].tolist() == [[0.0, 2.0], [5.0, 8.0]]
    assert head.decide(torch.tensor([[3.0, -9.0], [0.0, 0.0]]), (1, 2), (2, 4)).tolist() == [[0, 0, 1, 1]] * 2


def test_a_cell_has_the_label_of_most_of_its_pixels() -> None:
    labels = torch.tensor([[0, 1, 2, 2], [1, 1, VOID, VOID], [0, 2, VOID, 1]], dtype=torch.uint8)
    # Rows 0 and 1 of the pixels are row 0 of the cells. Equal counts give the lowest label, void last.
    assert majority(labels, (2, 2), 3).tolist() == [[1, 2], [0, 1]]
    assert torch.equal(majority(labels, (99, 99), 3), labels)


def test_upsampling_a_constant_is_constant() -> None:
    torch.testing.assert_close(upsampled(torch.full((1, 2, 3, 4), 2.5), (10, 9)), torch.full((1, 2, 10, 9), 2.5))


def test_the_learning_rate_rises_and_falls_to_zero() -> None:
    paces = [pace(step, 100) for step in range(100)]
    assert paces[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert paces[5:] == sorted(paces[5:], reverse=True)
    assert paces[-1] < 0.001
    assert 0 <= pace(0, 1) <= 1
