"""BAT: density peaks and the whole step against loops, and by hand."""

from dataclasses import replace
from math import exp, fsum

import pytest
import torch

from insides import make_inside
from loops import Expected, Vector, cosine, image_of, merged, naive_cls_attention
from redi.reduction.decoupling import bat, density_peaks

COUNTS = [(2, 1), (3, 2), (9, 8), (9, 1), (9, 4), (16, 11), (25, 13)]


def apart(a: Vector, b: Vector) -> float:
    return fsum((x - y) ** 2 for x, y in zip(a, b, strict=True)) / len(a)


def naive_peaks(points: list[Vector], count: int) -> list[list[int]]:
    """The members of each cluster; the clusters in the order of their centres."""
    everyone = range(len(points))
    squares = [[apart(points[i], points[j]) for j in everyone] for i in everyone]
    density = [exp(-fsum(sorted(row)[:5]) / len(row[:5])) for row in squares]
    farthest = max(max(row) for row in squares) ** 0.5
    peak = []
    for i in everyone:
        denser = [squares[i][j] ** 0.5 for j in everyone if density[j] > density[i]]
        peak.append(density[i] * (min(denser) if denser else farthest))
    centres = sorted(sorted(everyone, key=lambda i: -peak[i])[:count])
    nearest = {i: i if i in centres else min(centres, key=lambda c: squares[i][c]) for i in everyone}
    return [[i for i in everyone if nearest[i] == centre] for centre in centres]


def naive_bat(patches: list[Vector], attention: Vector, count: int) -> Expected:
    n = len(patches)
    clusters = max(round(count / 4), 1)
    pairs = min(clusters, n - count, count - clusters)
    order = sorted(range(n), key=lambda i: -attention[i])
    attentive, inattentive = order[: count - clusters + pairs], sorted(order[count - clusters + pairs :])
    second, first = attentive[0::2], attentive[1::2]
    best = {a: max(second, key=lambda b: cosine(patches[a], patches[b])) for a in first}
    ranked = sorted(first, key=lambda a: -cosine(patches[a], patches[best[a]]))
    groups = [[b, *(a for a in ranked[:pairs] if best[a] == b)] for b in second] + [[a] for a in ranked[pairs:]]
    groups += [
        [inattentive[i] for i in members] for members in naive_peaks([patches[i] for i in inattentive], clusters)
    ]
    return merged(patches, attention, [sorted(group) for group in groups])


@pytest.mark.parametrize(("n", "clusters"), [(1, 1), (2, 1), (3, 2), (7, 7), (12, 4), (20, 3)])
def test_density_peaks_equal_the_loop(n: int, clusters: int) -> None:
    points = torch.randn(3, n, 5, generator=torch.Generator().manual_seed(n))
    result = density_peaks(points, clusters)
    for image in range(3):
        groups = naive_peaks(points[image].double().tolist(), clusters)
        assert [torch.where(result[image] == k)[0].tolist() for k in range(clusters)] == groups


def test_two_clouds_have_two_peaks_and_equal_points_do_not_empty_a_cluster() -> None:
    points = torch.tensor([[[0.0], [0.1], [5.0], [0.2], [5.1], [5.2]]])
    (label,) = density_peaks(points, 2)
    assert (label == label[0]).tolist() == [True, True, False, True, False, False]
    assert sorted(set(density_peaks(torch.zeros(1, 6, 2), 3)[0].tolist())) == [0, 1, 2]


@pytest.mark.parametrize("prefix", [1, 5])
@pytest.mark.parametrize(("n", "count"), COUNTS)
def test_bat_equals_the_loop(n: int, count: int, prefix: int) -> None:
    inside = replace(make_inside(n, prefix), bias=None)
    result = bat(inside, count)
    for image in range(3):
        expected = naive_bat(image_of(inside, image).patches, naive_cls_attention(inside, image), count)
        assert result.positions[image].tolist() == expected.positions
        assert result.source[image].tolist() == expected.source
        torch.testing.assert_close(result.tokens[image], torch.tensor(expected.tokens), atol=1e-5, rtol=1e-5)


def test_given_scores_replace_the_attention() -> None:
    inside = replace(make_inside(9, 1), scores=torch.arange(9.0).expand(3, -1))
    result = bat(inside, 4)
    assert (result.source[:, 8] != result.source[:, 0]).all(), "the best and the worst are not in one token"
    assert (result.source[:, :5] == 3).all(), "all but the best four are one cluster"


def test_half_precision_tokens_are_merged_in_fp32() -> None:
    rough = replace(make_inside(25, 1), patches=make_inside(25, 1).patches.bfloat16())
    expected = bat(replace(rough, patches=rough.patches.float()), 13).tokens
    assert torch.equal(bat(rough, 13).tokens, expected.bfloat16())
