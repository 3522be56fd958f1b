"""mIoU, accuracy and their bootstrap, against counts made by hand and by loops."""

import numpy as np
import pytest
import torch

from redi.errors import InvalidInput
from redi.images.scenes import VOID
from redi.segmentation.measures import (
    class_counts,
    class_iou,
    confusion,
    mean_iou,
    paired_resamples,
    patch_cosine,
    pixel_accuracy,
)

LABELS = torch.tensor([[0, 0, 1], [1, VOID, 1]], dtype=torch.uint8)
DECIDED = torch.tensor([[0, 1, 1], [1, 0, 2]], dtype=torch.uint8)


def test_a_confusion_matrix_by_hand_leaves_void_out() -> None:
    expected = torch.tensor([[1, 1, 0], [0, 2, 1], [0, 0, 0]])
    assert torch.equal(confusion(DECIDED, LABELS, 3), expected)


def test_mean_iou_by_hand_is_over_the_classes_of_the_labels() -> None:
    counts = class_counts(confusion(DECIDED, LABELS, 3))
    # Class 0: 1 / (1 + 2 - 1); class 1: 2 / (3 + 3 - 2); class 2 is decided once, but no label has it.
    iou = class_iou(counts)
    assert iou[:2].tolist() == pytest.approx([50, 50])
    assert iou[2].isnan()
    assert mean_iou(counts).item() == pytest.approx(50)
    assert pixel_accuracy(counts).item() == pytest.approx(60)


def test_counts_of_images_add_up_to_those_of_all() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (5, 6, 7), generator=generator).to(torch.uint8)
    decided = torch.randint(0, 4, (5, 6, 7), generator=generator).to(torch.uint8)
    parts = torch.stack([class_counts(confusion(d, y, 4)) for d, y in zip(decided, labels, strict=True)])
    whole = class_counts(confusion(decided.flatten(0, 1), labels.flatten(0, 1), 4))
    assert torch.equal(parts.sum(dim=0), whole)
    for kind in range(4):
        both = ((labels == kind) & (decided == kind)).sum()
        either = ((labels == kind) | (decided == kind)).sum()
        assert class_iou(whole)[kind].item() == pytest.approx(100 * (both / either).item())


def test_maps_of_different_sizes_are_refused() -> None:
    with pytest.raises(InvalidInput, match="different sizes"):
        confusion(DECIDED, LABELS[:1], 3)


def test_a_cosine_is_one_for_parallel_tokens() -> None:
    tokens = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    assert patch_cosine(tokens, 2 * tokens).tolist() == pytest.approx([1, 1])
    assert patch_cosine(tokens, -tokens).tolist() == pytest.approx([-1, -1])
    assert patch_cosine(tokens.half(), tokens).tolist() == pytest.approx([1, 1], abs=1e-5)


def random_counts(images: int, noise: float, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    labels = torch.randint(0, 3, (images, 20, 20), generator=generator).to(torch.uint8)
    other = torch.Generator().manual_seed(seed)
    wrong = torch.rand(labels.shape, generator=other) < noise
    guesses = torch.randint(0, 3, labels.shape, generator=other).to(torch.uint8)
    decided = torch.where(wrong, guesses, labels)
    return torch.stack([class_counts(confusion(d, y, 3)) for d, y in zip(decided, labels, strict=True)])


def test_the_bootstrap_is_that_of_drawn_images() -> None:
    first, second = random_counts(12, 0.2, 1), random_counts(12, 0.3, 2)
    found = paired_resamples([first, second], resamples=4000, seed=3).miou_difference(0, 1)
    assert found.difference == pytest.approx((mean_iou(first.sum(0)) - mean_iou(second.sum(0))).item())
    generator = np.random.default_rng(0)
    drawn = []
    for _ in range(1500):
        indices = generator.integers(0, 12, 12)
        drawn.append((mean_iou(first[indices].sum(0)) - mean_iou(second[indices].sum(0))).item())
    assert found.interval == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=0.15)
    assert found.interval[0] < found.difference < found.interval[1]


def test_a_row_does_not_differ_from_itself_and_seeds_decide() -> None:
    rows = [random_counts(8, 0.2, 1), random_counts(8, 0.2, 1), random_counts(8, 0.4, 2)]
    bootstrap = paired_resamples(rows, resamples=600)
    assert bootstrap.miou_difference(0, 1).interval == (0, 0)
    assert bootstrap.accuracy_difference(0, 2).difference > 0
    again = paired_resamples(rows, resamples=600)
    assert bootstrap.miou_difference(0, 2) == again.miou_difference(0, 2)


def test_a_class_that_few_images_have_may_be_missing_from_a_resample() -> None:
    counts = torch.zeros(6, 3, 2, dtype=torch.int64)
    counts[:, :, 0] = 10
    counts[0, :, 1] = 5
    found = paired_resamples([counts, counts], resamples=500)
    assert np.isfinite(found.miou).all()
    assert found.miou.min() == pytest.approx(100)


def test_rows_of_different_images_are_refused() -> None:
    with pytest.raises(InvalidInput, match="same images"):
        paired_resamples([random_counts(4, 0.1, 1), random_counts(5, 0.1, 1)])
