"""Pointing game and IoU of score maps with objects: by hand, against loops over pixels, and their invariances."""

from itertools import combinations

import pytest
import torch

from redi.errors import InvalidInput
from redi.localisation import (
    THRESHOLDS,
    best_threshold,
    ceiling_iou,
    held_out_iou,
    object_patches,
    pointing_game,
    rank_map,
    threshold_iou,
)


def test_a_patch_is_on_the_object_from_one_half_on_or_if_no_patch_has_more_of_a_small_object() -> None:
    share = torch.tensor([[0.5, 0.49, 1.0, 0.0], [0.1, 0.3, 0.3, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert object_patches(share).tolist() == [
        [True, False, True, False],
        [False, True, False, False],
        [False, False, False, False],
    ]


def test_pointing_by_hand() -> None:
    share = torch.tensor([[0.0, 1.0, 0.4], [0.0, 1.0, 0.4], [0.0, 1.0, 0.4]])
    scores = torch.tensor([[1.0, 2.0, 0.0], [1.0, 0.5, 2.0], [1.0, 1.0, 0.0]])
    assert pointing_game(scores, share).tolist() == [True, False, False], "raster order wins the tie of the last image"


def test_iou_by_hand() -> None:
    # At t = 0.5 patches 0 and 1 are covered: 1.25 of the object's 1.5 lie inside, and the union is 2 + 0.25.
    share = torch.tensor([[1.0, 0.25, 0.25, 0.0]])
    iou = threshold_iou(torch.tensor([[3.0, 2.0, 1.0, 1.0]]), share)
    assert iou[0, THRESHOLDS.index(0.5)].item() == pytest.approx(1.25 / 2.25)
    assert iou[0, 0].item() == pytest.approx(1.5 / 4), "the whole image"
    assert iou[0, -1].item() == pytest.approx(1 / 1.5), "the best patch"


def test_iou_is_that_of_the_pixels() -> None:
    generator = torch.Generator().manual_seed(3)
    pixels = torch.rand(12, 12, generator=generator) < 0.3  # 3 x 3 patches of 4 x 4 pixels
    share = pixels.view(3, 4, 3, 4).float().mean(dim=(1, 3)).view(1, 9)
    scores = torch.rand(1, 9, generator=generator)
    low, high = float(scores.min()), float(scores.max())
    for number in (0, 20, 50, 90, 100):
        inside = union = 0
        for row in range(12):
            for column in range(12):
                value = (float(scores[0, row // 4 * 3 + column // 4]) - low) / (high - low)
                covered, wanted = value >= THRESHOLDS[number] - 1e-7, bool(pixels[row, column])
                inside += covered and wanted
                union += covered or wanted
        assert threshold_iou(scores, share)[0, number].item() == pytest.approx(inside / union)


def test_iou_ignores_scale_and_a_constant_map_is_the_whole_image_or_nothing() -> None:
    share = torch.rand(4, 9)
    scores = torch.rand(4, 9)
    torch.testing.assert_close(threshold_iou(8 * scores, share), threshold_iou(scores, share))
    constant = threshold_iou(torch.full((1, 9), 0.3), share[:1])
    assert constant[0, 0].item() == pytest.approx(share[0].mean().item())
    assert not constant[0, 1:].any()
    with pytest.raises(InvalidInput, match="without an object"):
        threshold_iou(scores[:1], torch.zeros(1, 9))


def test_ranks_ignore_how_scores_are_spread() -> None:
    scores = torch.tensor([[0.1, 0.9, 0.5, 0.5]])
    assert rank_map(scores).tolist() == [[0.25, 1.0, 0.75, 0.5]]
    assert torch.equal(rank_map((9 * scores).exp()), rank_map(scores))


def test_the_ceiling_is_the_best_of_all_sets_of_patches() -> None:
    share = torch.rand(5, 6) * (torch.rand(5, 6) < 0.7)
    share[:, 0] = 0.2
    for image, best in zip(share, ceiling_iou(share), strict=True):
        sets = [list(some) for count in range(1, 7) for some in combinations(range(6), count)]
        inside = [image[some].sum() for some in sets]
        ious = [float(i / (len(some) + image.sum() - i)) for i, some in zip(inside, sets, strict=True)]
        assert best.item() == pytest.approx(max(ious))


def test_no_map_is_above_the_ceiling() -> None:
    share, scores = torch.rand(6, 9), torch.rand(6, 9)
    assert (threshold_iou(scores, share).amax(dim=1) <= ceiling_iou(share) + 1e-6).all()


def test_a_threshold_is_chosen_on_the_other_half() -> None:
    # The first half is best at the first threshold, the second half at the last one.
    iou = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.7, 0.1], [0.2, 0.6]])
    half = torch.tensor([0, 1, 0, 1])
    values, chosen = held_out_iou(iou, half)
    assert chosen == (1, 0)
    torch.testing.assert_close(values, torch.tensor([0.1, 0.2, 0.1, 0.2]))
    assert best_threshold(iou) == 0
    with pytest.raises(InvalidInput, match="two images or more"):
        held_out_iou(iou, torch.zeros(4, dtype=torch.int64))


def test_the_value_of_an_image_does_not_depend_on_the_choice_on_its_own_half() -> None:
    iou = torch.rand(8, 5)
    half = torch.arange(8) % 2
    changed = iou.clone()
    changed[0, 2] = 1.0  # image 0 is of the first half
    before, after = held_out_iou(iou, half), held_out_iou(changed, half)
    assert before[1][0] == after[1][0], "the threshold of the first half comes from the second"
