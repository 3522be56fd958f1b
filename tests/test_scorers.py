"""Scores without a corpus: each against a loop from its definition, and its invariances."""

from collections.abc import Callable
from dataclasses import fields, replace
from math import dist, exp, fsum, hypot, log, sqrt

import pytest
import torch
from torch import Tensor

from redi.score import minmax
from redi.scorers import SCORERS, Dense, Scorer, column_norm, random_scores

Vector = list[float]

prefixes = pytest.mark.parametrize("prefix", [1, 5])
scorers = pytest.mark.parametrize("scorer", SCORERS.values(), ids=SCORERS)


def make_dense(prefix: int = 1, grid: tuple[int, int] = (3, 5), batch: int = 3, seed: int = 0) -> Dense:
    generator = torch.Generator().manual_seed(seed)
    n = grid[0] * grid[1]
    query, key, value = torch.randn(3, batch, 4, prefix + n, 6, generator=generator)
    return Dense(
        query=query,
        key=key,
        value=value,
        scale=6**-0.5,
        patches=torch.randn(batch, n, 7, generator=generator) + 0.5,
        prefix=prefix,
        grid=grid,
        indices=[11, 4, 90, 7, 23][:batch],
        seed=3,
    )


def images_of(dense: Dense, chosen: list[int]) -> Dense:
    """The same pass over some of its images, in another order."""
    tensors = {
        field.name: getattr(dense, field.name)[chosen]
        for field in fields(dense)
        if isinstance(getattr(dense, field.name), Tensor)
    }
    return replace(dense, **tensors, indices=[dense.indices[image] for image in chosen])


class OneImage:
    """One image of a dense pass as Python lists."""

    def __init__(self, dense: Dense, image: int) -> None:
        self.query: list[list[Vector]] = dense.query[image].double().tolist()
        self.key: list[list[Vector]] = dense.key[image].double().tolist()
        self.features: list[Vector] = dense.patches[image].double().tolist()
        self.prefix, self.grid = dense.prefix, dense.grid
        self.heads, self.patches = range(len(self.query)), range(len(self.features))
        self.tokens = range(self.prefix + len(self.features))

    def attention(self, head: int, row: int) -> Vector:
        """Softmax of one query's products with all keys, over sqrt(d)."""
        query = self.query[head][row]
        weights = [exp(dot(query, key) / sqrt(len(query))) for key in self.key[head]]
        return [weight / fsum(weights) for weight in weights]

    def received(self, head: int, patch: int) -> Vector:
        """What all tokens, prefix included, give to a patch."""
        return [self.attention(head, row)[self.prefix + patch] for row in self.tokens]

    def given(self, head: int, patch: int) -> Vector:
        """What a patch gives to all tokens, prefix included."""
        return self.attention(head, self.prefix + patch)


def dot(a: Vector, b: Vector) -> float:
    return fsum(x * y for x, y in zip(a, b, strict=True))


def mean(values: Vector) -> float:
    return fsum(values) / len(values)


def unit_range(values: Vector) -> Vector:
    low, high = min(values), max(values)
    return [(value - low) / (high - low + 1e-8) for value in values]


def naive_mass(image: OneImage) -> Vector:
    count = len(image.heads) * len(image.tokens)
    return unit_range([fsum(fsum(image.received(h, p)) for h in image.heads) / count for p in image.patches])


def from_cls(image: OneImage, patch: int) -> Vector:
    return [image.attention(head, 0)[image.prefix + patch] for head in image.heads]


def naive_column_norm(image: OneImage, order: int) -> Vector:
    def norm(values: Vector) -> float:
        return float(fsum(value**order for value in values) ** (1 / order))

    return [mean([norm(image.received(h, p)) for h in image.heads]) for p in image.patches]


def naive_shannon(image: OneImage) -> Vector:
    def information(row: Vector) -> float:
        return fsum(a * log(a) for a in row)

    return [mean([information(image.given(h, p)) for h in image.heads]) for p in image.patches]


def naive_renyi(image: OneImage) -> Vector:
    def information(row: Vector) -> float:
        return log(fsum(a**2 for a in row))

    return [mean([information(image.given(h, p)) for h in image.heads]) for p in image.patches]


def naive_key_norm(image: OneImage) -> Vector:
    return [
        mean([sqrt(dot(image.key[h][t], image.key[h][t])) for h in image.heads])
        for t in image.tokens
        if t >= image.prefix
    ]


def naive_mean_distance(image: OneImage) -> Vector:
    centre = [mean(list(axis)) for axis in zip(*image.features, strict=True)]
    return [1 - dot(x, centre) / sqrt(dot(x, x) * dot(centre, centre)) for x in image.features]


def naive_centre(image: OneImage) -> Vector:
    rows, columns = image.grid
    middle = (rows - 1) / 2, (columns - 1) / 2
    return [-dist((row, column), middle) for row in range(rows) for column in range(columns)]


NAIVE: dict[str, Callable[[OneImage], Vector]] = {
    "mass": naive_mass,
    "cls_max": lambda image: unit_range([max(from_cls(image, p)) for p in image.patches]),
    "cls_mean": lambda image: unit_range([mean(from_cls(image, p)) for p in image.patches]),
    "col_l2": lambda image: naive_column_norm(image, 2),
    "col_l4": lambda image: naive_column_norm(image, 4),
    "shannon": naive_shannon,
    "renyi": naive_renyi,
    "key_norm": naive_key_norm,
    "feature_norm": lambda image: [hypot(*feature) for feature in image.features],
    "mean_distance": naive_mean_distance,
    "centre": naive_centre,
}


def test_every_scorer_but_noise_has_a_loop_to_compare_with() -> None:
    assert {*NAIVE, "random"} == set(SCORERS)


@prefixes
@pytest.mark.parametrize("name", NAIVE)
def test_equals_the_naive_loop(name: str, prefix: int) -> None:
    dense = make_dense(prefix)
    scores = SCORERS[name](dense)
    expected = torch.tensor([NAIVE[name](OneImage(dense, image)) for image in range(3)])
    assert scores.shape == (3, 15)
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-5)


@prefixes
def test_the_l1_column_norm_ranks_as_incoming_mass_does(prefix: int) -> None:
    dense = make_dense(prefix)
    norm, mass = column_norm(1)(dense), SCORERS["mass"](dense)
    assert torch.equal(norm.argsort(dim=1), mass.argsort(dim=1))
    torch.testing.assert_close(minmax(norm), mass)


def test_a_higher_norm_prefers_a_patch_that_few_tokens_attend_to_strongly() -> None:
    # Patches 0 and 2 get 0.4 from all but patch 1, which gets 0.99 from itself and nothing else.
    dense = make_dense(grid=(1, 3), batch=1)
    attention = torch.tensor([[0.2, 0.4, 0.0, 0.4], [0.2, 0.4, 0.0, 0.4], [0.01, 0.0, 0.99, 0.0], [0.2, 0.4, 0.0, 0.4]])
    vars(dense)["attention"] = attention.expand(1, 4, 4, 4)  # as if it had been made
    l1, l4 = column_norm(1)(dense)[0], column_norm(4)(dense)[0]
    assert l1.tolist() == pytest.approx([1.2, 0.99, 1.2])
    assert l4.tolist() == pytest.approx([(3 * 0.4**4) ** 0.25, 0.99, (3 * 0.4**4) ** 0.25])


@prefixes
@pytest.mark.parametrize("name", ["shannon", "renyi"])
def test_a_uniform_row_scores_lowest_and_a_focused_one_highest(name: str, prefix: int) -> None:
    dense = make_dense(prefix)
    query = dense.query.clone()
    query[:, :, prefix + 4] = 0  # the same logit for every token
    query[:, :, prefix + 9] *= 1e4  # one token gets everything
    scores = SCORERS[name](replace(dense, query=query))
    assert scores.argmin(dim=1).tolist() == [4, 4, 4]
    assert scores.argmax(dim=1).tolist() == [9, 9, 9]
    torch.testing.assert_close(scores[:, 4], torch.full((3,), -log(prefix + 15)))
    torch.testing.assert_close(scores[:, 9], torch.zeros(3))


@pytest.mark.parametrize(("grid", "middle"), [((3, 5), [7]), ((4, 2), [2, 3, 4, 5])])
def test_the_centre_is_highest_in_the_middle_and_symmetric(grid: tuple[int, int], middle: list[int]) -> None:
    scores = SCORERS["centre"](make_dense(grid=grid))
    for image in scores:
        assert (image == image.max()).nonzero().flatten().tolist() == middle
        picture = image.view(grid)
        assert torch.equal(picture, picture.flip(0))
        assert torch.equal(picture, picture.flip(1))
        assert (picture[0] < picture[1]).all(), "the first row is further away than the second"


def test_features_that_equal_the_mean_have_no_distance_and_opposite_ones_two() -> None:
    patches = torch.tensor([[[3.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]])
    dense = replace(make_dense(grid=(2, 2), batch=1), patches=patches)
    torch.testing.assert_close(SCORERS["mean_distance"](dense), torch.tensor([[0.0, 2.0, 0, 0]]))


def test_noise_depends_on_seed_and_index_alone() -> None:
    dense = make_dense()
    scores = SCORERS["random"](dense)
    another = replace(make_dense(prefix=5, seed=9), indices=[90, 5, 11])
    noise = SCORERS["random"](another)
    assert torch.equal(noise[0], scores[2]), "index 90"
    assert torch.equal(noise[2], scores[0]), "index 11"
    assert not torch.isclose(noise[1], scores).all(dim=1).any(), "index 5 is none of theirs"
    reseeded = SCORERS["random"](replace(dense, seed=4))
    assert not torch.isclose(reseeded, scores).all(dim=1).any()


def test_noise_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    SCORERS["random"](make_dense())
    assert torch.equal(torch.get_rng_state(), before)


def test_noise_is_uniform_and_without_a_pattern_over_images() -> None:
    noise = random_scores(0, list(range(400)), 196)
    assert noise.min() >= 0
    assert noise.max() < 1
    counts = torch.histc(noise, bins=10, min=0, max=1) / noise.numel()
    torch.testing.assert_close(counts, torch.full((10,), 0.1), atol=0.005, rtol=0)
    assert (noise.mean(dim=0) - 0.5).abs().max() < 5 * sqrt(1 / 12 / 400)
    neighbours = torch.corrcoef(torch.stack([noise[:-1].flatten(), noise[1:].flatten()]))[0, 1]
    assert abs(float(neighbours)) < 0.02


@prefixes
@scorers
def test_permuting_the_batch_permutes_the_scores(scorer: Scorer, prefix: int) -> None:
    dense, order = make_dense(prefix, batch=5), [3, 0, 4, 2, 1]
    torch.testing.assert_close(scorer(images_of(dense, order)), scorer(dense)[order])


@prefixes
@scorers
def test_an_image_alone_has_the_scores_it_has_in_a_batch(scorer: Scorer, prefix: int) -> None:
    dense = make_dense(prefix)
    for image in range(3):
        torch.testing.assert_close(scorer(images_of(dense, [image]))[0], scorer(dense)[image])


@pytest.mark.parametrize("name", [name for name in SCORERS if name not in ("centre", "random")])
def test_scores_follow_the_patches_to_other_places(name: str) -> None:
    dense, order = make_dense(prefix=5), torch.randperm(15)
    tokens = torch.cat([torch.arange(5), 5 + order])
    moved = replace(
        dense,
        query=dense.query[:, :, tokens],
        key=dense.key[:, :, tokens],
        value=dense.value[:, :, tokens],
        patches=dense.patches[:, order],
    )
    expected = SCORERS[name](dense)[:, order]
    torch.testing.assert_close(SCORERS[name](moved), expected, atol=1e-5, rtol=1e-5)


def test_attention_is_made_once_and_its_rows_add_up_to_one() -> None:
    dense = make_dense(prefix=5)
    assert dense.attention is dense.attention
    torch.testing.assert_close(dense.attention.sum(dim=-1), torch.ones(3, 4, 20))
