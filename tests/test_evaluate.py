"""Accuracy against dense."""

import pytest
import torch

from redi.evaluate import accuracy, top5


def test_accuracy_by_hand() -> None:
    labels = torch.tensor([0, 1, 2, 3])
    dense = torch.tensor([[0, 1], [0, 1], [2, 0], [0, 1]])  # right: 0, 2; in Top-5: 0, 1, 2
    reduced = torch.tensor([[0, 1], [1, 0], [0, 1], [3, 1]])  # right: 0, 1, 3
    result = accuracy(reduced, dense, labels)
    assert (result.top1, result.top5, result.delta_dense) == (75.0, 75.0, 25.0)
    assert result.images == 4
    assert result.p_value == 1.0  # two gained, one lost: 2 x (1 + 3) / 8
    assert accuracy(dense, dense, labels).top5 == 75.0


def test_top5_is_ordered_and_shorter_where_there_are_fewer_classes() -> None:
    classes, logits = top5(torch.tensor([[0.1, 0.9, 0.5]]))
    assert classes.tolist() == [[1, 2, 0]]
    assert logits[0].tolist() == pytest.approx([0.9, 0.5, 0.1])
    assert top5(torch.rand(2, 9))[0].shape == (2, 5)
