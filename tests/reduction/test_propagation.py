"""GTP-ViT: against a loop written from its paper, by hand, and with the places of a real forward pass."""

from dataclasses import replace
from math import fsum, sqrt

import pytest
import torch
from torch import Tensor

from insides import make_inside
from loops import Expected, attention_of, image_of
from redi.backbone import Backbone
from redi.errors import InvalidInput
from redi.reduction import DROPPED, PROGRESSIVE, Inside, Reduction
from redi.reduction.propagation import gtp, neighbour_weights

GRID = (4, 7)


def placed(inside: Inside, seed: int = 0) -> Inside:
    """The tokens at different places of a grid of 28."""
    generator = torch.Generator().manual_seed(seed)
    batch, n = inside.sizes.shape
    return replace(
        inside, origins=torch.stack([torch.randperm(28, generator=generator)[:n] for _ in range(batch)]), grid=GRID
    )


def neighbours(i: int) -> list[int]:
    rows, columns = GRID
    around = [(i // columns + a, i % columns + b) for a in (-1, 0, 1) for b in (-1, 0, 1) if (a, b) != (0, 0)]
    return [row * columns + column for row, column in around if 0 <= row < rows and 0 <= column < columns]


def naive_scores(inside: Inside, image: int) -> list[float]:
    """max_h A[h, i, i] times max_h sum_q A[h, q, i]."""
    heads = attention_of(inside, image)
    return [
        max(head[i][i] for head in heads) * max(fsum(row[i] for row in head) for head in heads)
        for i in range(inside.prefix, len(heads[0]))
    ]


def naive_gtp(inside: Inside, image: int, origins: list[int], count: int) -> Expected:
    score, patches = naive_scores(inside, image), image_of(inside, image).patches
    order = sorted(range(len(score)), key=lambda i: -score[i])
    kept, gone = sorted(order[:count]), sorted(order[count:])
    tokens = [patches[i] for i in kept]
    source = [kept.index(i) if i in kept else DROPPED for i in range(len(score))]
    for p in gone:
        best = 0.0
        for place, k in enumerate(kept):
            if origins[k] in neighbours(origins[p]):
                weight = 1 / sqrt(len(neighbours(origins[k])) * len(neighbours(origins[p])))
                tokens[place] = [x + 0.1 * weight * y for x, y in zip(tokens[place], patches[p], strict=True)]
                if weight > best * (1 + 1e-6):
                    best, source[p] = weight, place
    return Expected(tokens, kept, source)


@pytest.mark.parametrize("prefix", [1, 5])
@pytest.mark.parametrize(("n", "count"), [(2, 1), (9, 8), (9, 3), (16, 11), (25, 13)])
def test_gtp_equals_the_papers_loop(n: int, count: int, prefix: int) -> None:
    inside = placed(make_inside(n, prefix))
    assert inside.origins is not None
    result = gtp(inside, count)
    for image in range(3):
        expected = naive_gtp(inside, image, inside.origins[image].tolist(), count)
        assert result.positions[image].tolist() == expected.positions
        assert result.source[image].tolist() == expected.source
        torch.testing.assert_close(result.tokens[image], torch.tensor(expected.tokens), atol=1e-5, rtol=1e-5)


def test_the_weights_of_a_corner_an_edge_and_the_middle() -> None:
    # Of a grid of 3 x 3: patches 0 (three neighbours), 1 (five), 4 (eight) and 8 (three).
    inside = replace(make_inside(4, 1, batch=1), origins=torch.tensor([[0, 1, 4, 8]]), grid=(3, 3))
    weights = neighbour_weights(inside)
    a, b, c = (3 * 5) ** -0.5, (3 * 8) ** -0.5, (5 * 8) ** -0.5
    torch.testing.assert_close(weights, torch.tensor([[[0, a, b, 0], [a, 0, c, 0], [b, c, 0, b], [0, 0, b, 0]]]))


def test_a_token_keeps_its_place_in_the_image_through_the_blocks(backbone: Backbone, pixels: Tensor) -> None:
    seen: list[Inside] = []
    done: list[Reduction] = []

    def step(inside: Inside, count: int) -> Reduction:
        seen.append(inside)
        done.append(gtp(inside, count))
        return done[-1]

    tokens = backbone.embed(pixels)
    backbone.encode_progressively(tokens, replace(PROGRESSIVE["gtp"], step=step), (30, 24, 13))
    assert all(inside.grid == tokens.grid == (6, 6) for inside in seen)
    for image in range(3):
        places = list(range(36))
        for inside, reduction in zip(seen, done, strict=True):
            assert inside.origins is not None
            assert inside.origins[image].tolist() == places
            places = [places[i] for i in reduction.positions[image].tolist()]


def test_half_precision_and_missing_places() -> None:
    inside = placed(make_inside(16, 1))
    rough = replace(inside, patches=inside.patches.bfloat16())
    expected = gtp(replace(rough, patches=rough.patches.float()), 9).tokens
    assert torch.equal(gtp(rough, 9).tokens, expected.bfloat16())
    with pytest.raises(InvalidInput, match="place"):
        gtp(replace(inside, grid=None), 9)
