"""What defines a class and what may be a shortcut: by hand, against loops, in any order, and with a known answer."""

from math import asin, pi, sqrt

import pytest
import torch
from torch import Tensor

from redi.shortcuts import (
    FLAG,
    OUTLIER,
    Suspects,
    WordUse,
    attention_lift,
    attention_rank,
    border_share,
    defining_words,
    excess,
    flag_limit,
    is_fixed,
    is_unattended,
    mass_share,
    overlaps,
    place_name,
    places_of,
    presence_z,
    shares,
    usual_place,
)

GRID = (8, 8)
PATCHES, WORDS, CLASSES, IMAGES = 64, 70, 6, 40


def drawn(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """(words, ranks, labels) of images without any shortcut: every word lies anywhere but the object's own."""
    generator = torch.Generator().manual_seed(seed)
    n = CLASSES * IMAGES
    labels = torch.arange(n) % CLASSES
    words = torch.randint(CLASSES, WORDS, (n, PATCHES), generator=generator)
    ranks = attention_rank([torch.rand(n, PATCHES, generator=generator)])
    for image in range(n):  # the object of a class is its own word, on the most attended patches
        words[image, ranks[image] > 230] = labels[image]
    return words, ranks, labels


def counted(words: Tensor, ranks: Tensor, labels: Tensor) -> WordUse:
    return WordUse(CLASSES, WORDS).update(words, ranks, torch.ones(words.shape), labels)


def suspicion(words: Tensor, ranks: Tensor, labels: Tensor) -> Tensor:
    suspects = Suspects(counted(words, ranks, labels), words, ranks, labels, GRID)
    return torch.stack([suspects.evidence(label)[0].sum() for label in range(CLASSES)])


def test_presence_by_hand() -> None:
    """Word 0 is in 3 of the 4 images of class 0 and in 1 of the 8 others."""
    images, class_images = torch.tensor([[3, 0], [1, 0]]), torch.tensor([4, 8])
    inside, outside = shares(images, class_images)
    assert inside[0].tolist() == [0.75, 0.0]
    assert outside[0].tolist() == [0.125, 0.0]
    expected = 2 * (asin(sqrt(0.75)) - asin(sqrt(0.125))) / sqrt(1 / 4 + 1 / 8)
    assert presence_z(images, class_images)[0, 0].item() == pytest.approx(expected)
    assert presence_z(images, class_images)[:, 1].tolist() == [0, 0]
    always = presence_z(torch.tensor([[4], [0]]), class_images)[0, 0].item()
    assert always == pytest.approx(pi / sqrt(3 / 8)), "the largest z of these images"
    assert excess(torch.tensor([2.0, 3.5])).tolist() == [0, 0.5]


def test_a_class_without_images_is_no_suspect() -> None:
    z = presence_z(torch.tensor([[2], [0], [0]]), torch.tensor([2, 4, 0]))
    assert z[2, 0] == 0
    assert z.isfinite().all()


def test_ranks_are_of_the_image_and_a_mean_over_the_maps() -> None:
    first, second = torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([[0.2, 0.1, 0.7]])
    assert attention_rank([first]).tolist() == [[0, 255, 128]]
    assert attention_rank([first, second]).tolist() == [[64, 128, 191]]
    assert is_unattended(torch.tensor([127, 128])).tolist() == [True, False]
    assert attention_lift([torch.tensor([[1.0, 3.0]]), torch.tensor([[2.0, 2.0]])]).tolist() == [[0.75, 1.25]]


def test_word_use_is_that_of_a_loop_and_merges_in_any_order() -> None:
    words, ranks, labels = drawn()
    lift = torch.rand(words.shape, generator=torch.Generator().manual_seed(1))
    use = WordUse(CLASSES, WORDS).update(words, ranks, lift, labels)
    for label, word in ((0, 0), (2, 9), (5, 69)):
        own = words[labels == label] == word
        below = own & is_unattended(ranks[labels == label])
        assert use.images[label, word] == sum(bool(image.any()) for image in own)
        assert use.unattended[label, word] == sum(int(image.sum()) >= 2 for image in below)
        mean = lift[labels == label][own].mean().item() if own.any() else 0
        assert use.mean_lift()[label, word].item() == pytest.approx(mean, abs=1e-4)
    parts = [
        WordUse(CLASSES, WORDS).update(words[at], ranks[at], lift[at], labels[at])
        for at in (slice(0, 100), slice(100, 103), slice(103, None))
    ]
    merged = WordUse(CLASSES, WORDS)
    for part in reversed(parts):
        merged.merge_state(part.state())
    assert all(torch.equal(merged.state()[name], tensor) for name, tensor in use.state().items())


def test_coincidence_is_that_of_a_loop() -> None:
    generator = torch.Generator().manual_seed(3)
    words = torch.randint(0, 3, (4, 12), generator=generator)
    grid = (3, 4)
    places = places_of(words, torch.zeros_like(words), [0, 2], grid)

    def near(first: int, second: int) -> bool:
        return max(abs(first // 4 - second // 4), abs(first % 4 - second % 4)) <= 1

    chance = sum(near(i, j) for i in range(12) for j in range(12)) / 144
    for k, word in enumerate((0, 2)):
        at = [(d, i) for d in range(4) for i in range(12) if words[d, i] == word]
        pairs = [near(i, j) for d, i in at for e, j in at if d != e]
        share = sum(pairs) / len(pairs)
        assert places.coincidence[k].item() == pytest.approx((share - chance) / (1 - chance))
        assert places.counts[k].sum() == len(at)


@pytest.mark.parametrize("side", [4, 7, 14, 37])
def test_a_corner_is_fixed_on_every_grid_and_places_drawn_at_random_on_none(side: int) -> None:
    drawn = torch.randint(0, side**2, (60,), generator=torch.Generator().manual_seed(0))
    words = torch.zeros(60, side**2, dtype=torch.int64)
    words.scatter_(1, drawn[:, None], 1)
    words[:, 0] = 2
    places = places_of(words, torch.zeros_like(words), [1, 2], (side, side))
    assert places.coincidence[1].item() == pytest.approx(1)
    assert abs(places.coincidence[0].item()) < 0.1
    assert is_fixed(places, (side, side)).tolist() == [False, True]


def test_a_corner_is_fixed_and_the_middle_is_not() -> None:
    words = torch.zeros(6, PATCHES, dtype=torch.int64)
    words[:, 0], words[:, 36] = 1, 2
    places = places_of(words, torch.full_like(words, 255), [0, 1, 2], GRID)
    assert is_fixed(places, GRID).tolist() == [False, True, False]
    assert places.rank.tolist() == [1, 1, 1]
    assert border_share(places.counts, GRID).tolist() == [pytest.approx(27 / 62), 1, 0]
    assert usual_place(places.counts[2], GRID).view(GRID).nonzero().tolist() == [
        [row, column] for row in (2, 3, 4) for column in (2, 3, 4)
    ]
    assert [place_name(counts, GRID) for counts in places.counts[1:]] == ["top left", "middle"]


def test_mass_and_defining_words_by_hand() -> None:
    use = WordUse(2, 3)
    words = torch.tensor([[0, 0, 1, 2], [0, 0, 1, 1], [2, 2, 1, 1], [2, 2, 2, 1]])
    use.update(words, torch.zeros(4, 4, dtype=torch.uint8), torch.ones(4, 4), torch.tensor([0, 0, 1, 1]))
    table = torch.tensor([[2.0, 1.0, 0.5], [0.0, 0.0, 1.0]])
    mass = mass_share(use.corpus, table)
    assert mass[0].tolist() == pytest.approx([8 / 11.5, 3 / 11.5, 0.5 / 11.5])
    assert mass[1].tolist() == [0, 0, 1]
    # Word 2 is in one image of class 0 alone, and words without TF-IDF define nothing.
    assert defining_words(table, use.images, use.corpus.class_images, 3) == [[0, 1], [2]]
    overlap, terms = overlaps(mass, 0)
    assert overlap[0] == 0
    assert overlap[1].item() == pytest.approx(0.5 / 11.5)
    assert terms[1].argmax() == 2


def test_the_limit_keeps_chance_out_and_rises_where_every_class_has_some() -> None:
    assert flag_limit(torch.tensor([0.0, 0.1, 0.2] * 4)) == FLAG
    busy = torch.tensor([20.0, 21.0, 22.0, 23.0, 90.0] * 3, dtype=torch.float64)
    assert flag_limit(busy) == pytest.approx(22 + OUTLIER * 1.4826)


@pytest.mark.parametrize("classes", [[30.0, 30.0], [0.0, 30.0, 40.0]])
def test_of_a_few_classes_all_that_have_a_shortcut_are_flagged(classes: list[float]) -> None:
    suspicion = torch.tensor(classes)
    assert (suspicion > flag_limit(suspicion)).tolist() == [value > 0 for value in classes]


def test_nothing_planted_nothing_flagged() -> None:
    assert (suspicion(*drawn()) < FLAG).all()


def test_a_planted_ground_is_found_and_the_object_is_not_blamed() -> None:
    words, ranks, labels = drawn()
    for image in (labels == 2).nonzero().flatten().tolist()[4:]:  # 36 of 40 images
        words[image, is_unattended(ranks[image])] = 20
    found = suspicion(words, ranks, labels)
    assert found.argmax() == 2
    assert (found > FLAG).nonzero().flatten().tolist() == [2]
    evidence, fixed = Suspects(counted(words, ranks, labels), words, ranks, labels, GRID).evidence(2)
    assert evidence.argmax() == 20
    assert not fixed[20]
    assert evidence[2] == 0, "the object's own word lies where the model attends to"


@pytest.mark.parametrize("attended", [True, False])
def test_a_planted_mark_is_found_whether_it_gets_attention_or_not(attended: bool) -> None:
    words, ranks, labels = drawn()
    own = (labels == 4).nonzero().flatten()[4:]
    words[words == 21] = 22  # the mark is nowhere else
    words[own, 7] = words[own, 15] = 21
    ranks[own, 7] = ranks[own, 15] = 255 if attended else 0
    found = suspicion(words, ranks, labels)
    assert (found > FLAG).nonzero().flatten().tolist() == [4]
    assert Suspects(counted(words, ranks, labels), words, ranks, labels, GRID).evidence(4)[0].argmax() == 21
