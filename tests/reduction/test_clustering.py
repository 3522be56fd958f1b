"""Reducers that cluster or sample: by hand, against loops written from their papers' descriptions,
and what each promises."""

from dataclasses import replace
from math import fsum, log, sqrt

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from loops import Vector, attention_of, dot, naive_cls_attention
from redi.reduction import DROPPED, Budget, Inside, Progressive, Reduction, WordMerging
from redi.reduction.clustering import CLUSTERING, agglomerate, atc, ats, merge_clusters, token_pooling

Matrix = list[Vector]

COUNTS = [(2, 1), (5, 4), (9, 8), (9, 4), (16, 11), (25, 13), (25, 1)]
counts = pytest.mark.parametrize(("n", "count"), COUNTS)
prefixes = pytest.mark.parametrize("prefix", [1, 5])
steps = pytest.mark.parametrize("reducer", CLUSTERING.values(), ids=CLUSTERING)


def make_inside(n: int, prefix: int = 1, batch: int = 3, seed: int = 0, scored: bool = False) -> Inside:
    """A block's attention over random tokens that already stand for one to four patches each."""
    generator = torch.Generator().manual_seed(seed)
    query, key, value = torch.randn(3, batch, 4, prefix + n, 6, generator=generator)
    return Inside(
        patches=torch.randn(batch, n, 5, generator=generator),
        sizes=torch.randint(1, 5, (batch, n), generator=generator).float(),
        scores=torch.rand(batch, n, generator=generator) if scored else None,
        query=query,
        key=key,
        value=value,
        bias=None,
        scale=6**-0.5,
        prefix=prefix,
        block=3,
        depth=12,
    )


def images_of(inside: Inside, chosen: list[int]) -> Inside:
    return replace(
        inside, **{name: getattr(inside, name)[chosen] for name in ("patches", "sizes", "query", "key", "value")}
    )


def random_similarity(n: int, batch: int = 3, seed: int = 0) -> Tensor:
    """Symmetric and without ties."""
    values = torch.randn(batch, n, n, generator=torch.Generator().manual_seed(seed)).double()
    return values + values.transpose(1, 2)


def weighted_mean(points: Matrix, weights: Vector, members: list[int]) -> Vector:
    total = fsum(weights[i] for i in members)
    return [fsum(weights[i] * points[i][axis] for i in members) / total for axis in range(len(points[0]))]


# Agglomeration ------------------------------------------------------------------------------------


def naive_clusters(similarity: Matrix, count: int) -> list[list[int]]:
    """Average linkage on lists of members, every mean taken anew; ordered by first member."""
    clusters = [[token] for token in range(len(similarity))]
    while len(clusters) > count:
        best, pair = -float("inf"), (0, 0)
        for a in range(len(clusters)):
            for b in range(a + 1, len(clusters)):
                pairs = [similarity[i][j] for i in clusters[a] for j in clusters[b]]
                if fsum(pairs) / len(pairs) > best:
                    best, pair = fsum(pairs) / len(pairs), (a, b)
        joined = sorted(clusters[pair[0]] + clusters[pair[1]])
        clusters = [members for k, members in enumerate(clusters) if k not in pair] + [joined]
    return sorted(clusters)


def labels_of(clusters: list[list[int]]) -> list[int]:
    label = {token: place for place, members in enumerate(clusters) for token in members}
    return [label[token] for token in sorted(label)]


@counts
@pytest.mark.parametrize("seed", range(3))
def test_agglomeration_equals_the_naive_loop(n: int, count: int, seed: int) -> None:
    similarity = random_similarity(n, seed=seed)
    clusters = agglomerate(similarity, count)
    for image in range(3):
        expected = labels_of(naive_clusters(similarity[image].tolist(), count))
        assert clusters[image].tolist() == expected


def symmetric(n: int, entries: dict[tuple[int, int], float]) -> Tensor:
    similarity = torch.zeros(1, n, n)
    for (a, b), value in entries.items():
        similarity[0, a, b] = similarity[0, b, a] = value
    return similarity


def test_clusters_are_linked_by_the_mean_of_their_pairs() -> None:
    # 0 and 1 join first. Their mean similarity to 2 is 0.5, although one of them has 0.8; 2 and 3
    # have 0.55.
    pairs = {(0, 1): 0.9, (0, 2): 0.8, (1, 2): 0.2, (2, 3): 0.55}
    assert agglomerate(symmetric(4, pairs), 2).tolist() == [[0, 0, 1, 1]]
    # Now the mean is 0.6, although one of them has less than 0.55.
    pairs[1, 2] = 0.4
    assert agglomerate(symmetric(4, pairs), 2).tolist() == [[0, 0, 0, 1]]


def test_the_mean_is_over_pairs_and_not_over_joins() -> None:
    # 0, 1 and 2 join as ((0, 1), 2). Their similarities to 3 are 0.1, 0.1 and 0.7, of mean 0.3; the
    # mean of the means would be 0.4. 3 and 4 have 0.35.
    pairs = {(0, 1): 0.95, (0, 2): 0.9, (1, 2): 0.9, (2, 3): 0.7, (0, 3): 0.1, (1, 3): 0.1}
    pairs[3, 4] = 0.35
    assert agglomerate(symmetric(5, pairs), 2).tolist() == [[0, 0, 0, 1, 1]]


def test_clusters_are_numbered_by_their_first_token() -> None:
    pairs = {(0, 4): 0.5, (1, 3): 0.9}
    assert agglomerate(symmetric(5, pairs), 3).tolist() == [[0, 1, 2, 1, 0]]


def test_as_many_clusters_as_tokens_join_nothing() -> None:
    assert agglomerate(random_similarity(5), 5).tolist() == [list(range(5))] * 3


def test_what_a_token_is_to_itself_does_not_count() -> None:
    similarity = random_similarity(9)
    expected = agglomerate(similarity, 4)
    similarity.diagonal(dim1=1, dim2=2).fill_(1e9)
    before = similarity.clone()
    assert torch.equal(agglomerate(similarity, 4), expected)
    assert torch.equal(similarity, before), "the argument is left alone"


def test_renumbering_the_tokens_renumbers_the_clusters() -> None:
    similarity, order = random_similarity(16), torch.randperm(16)
    label = agglomerate(similarity, 7)
    moved = agglomerate(similarity[:, order][:, :, order], 7)
    for image in range(3):
        together = label[image, order][:, None] == label[image, order]
        assert torch.equal(moved[image][:, None] == moved[image], together)


# Merging ------------------------------------------------------------------------------------------


def test_clusters_are_merged_by_size_at_their_first_member() -> None:
    patches = torch.tensor([[[1.0], [2.0], [6.0], [10.0]]])
    sizes = torch.tensor([[1.0, 3.0, 2.0, 1.0]])
    result = merge_clusters(patches, sizes, torch.tensor([[0, 1, 0, 1]]), 2)
    assert result.tokens.flatten().tolist() == pytest.approx([13 / 3, 4])
    assert result.positions.tolist() == [[0, 1]]
    assert result.source.tolist() == [[0, 1, 0, 1]]


def test_a_token_alone_keeps_every_bit() -> None:
    patches, sizes = torch.randn(2, 7, 5), torch.full((2, 7), 3.0)
    label = torch.tensor([[0, 1, 2, 3, 4, 0, 5], [0, 1, 1, 2, 3, 4, 5]])
    result = merge_clusters(patches, sizes, label, 6)
    assert torch.equal(result.tokens[0, 1:], patches[0, [1, 2, 3, 4, 6]])
    assert torch.equal(result.tokens[1, [0, 2, 3, 4, 5]], patches[1, [0, 3, 4, 5, 6]])
    halves = merge_clusters(patches.bfloat16(), sizes, label, 6)
    assert halves.tokens.dtype == torch.bfloat16
    exact = merge_clusters(patches.bfloat16().float(), sizes, label, 6)
    assert torch.equal(halves.tokens, exact.tokens.bfloat16()), "means are taken in FP32"


# ATC ----------------------------------------------------------------------------------------------


def naive_atc(inside: Inside, image: int, count: int) -> Reduction:
    keys: list[Matrix] = inside.key[image, :, inside.prefix :].double().tolist()
    patches, sizes = inside.patches[image].double().tolist(), inside.sizes[image].tolist()
    everyone = range(len(patches))
    mean = [
        [fsum(head[token][axis] for head in keys) / len(keys) for axis in range(len(keys[0][0]))] for token in everyone
    ]
    cosine = [
        [dot(mean[i], mean[j]) / sqrt(dot(mean[i], mean[i]) * dot(mean[j], mean[j])) for j in everyone]
        for i in everyone
    ]
    clusters = naive_clusters(cosine, count)
    return Reduction(
        torch.tensor([weighted_mean(patches, sizes, members) for members in clusters]),
        torch.tensor([members[0] for members in clusters]),
        torch.tensor(labels_of(clusters)),
    )


def assert_equals(result: Reduction, image: int, expected: Reduction) -> None:
    assert result.positions[image].tolist() == expected.positions.tolist()
    assert result.source[image].tolist() == expected.source.tolist()
    torch.testing.assert_close(result.tokens[image], expected.tokens, atol=1e-5, rtol=1e-5)


@prefixes
@counts
def test_atc_equals_the_papers_loop(n: int, count: int, prefix: int) -> None:
    inside = make_inside(n, prefix)
    result = atc(inside, count)
    for image in range(3):
        assert_equals(result, image, naive_atc(inside, image, count))


@counts
def test_atc_keeps_the_sum_of_all_patches(n: int, count: int) -> None:
    """The sum of the tokens, each times its size, which follows from ``source``."""
    inside = make_inside(n)
    result = atc(inside, count)
    sizes = torch.zeros(3, count).scatter_add(1, result.source, inside.sizes)
    assert (sizes > 0).all()
    torch.testing.assert_close(
        (sizes[..., None] * result.tokens).sum(dim=1), (inside.sizes[..., None] * inside.patches).sum(dim=1)
    )
    firsts = [[row.index(cluster) for cluster in range(count)] for row in result.source.tolist()]
    assert result.positions.tolist() == firsts


def test_atc_does_not_look_at_what_the_keys_belong_to() -> None:
    inside = make_inside(16)
    other = replace(inside, patches=torch.randn(3, 16, 5), sizes=torch.ones(3, 16))
    longer = replace(inside, key=3 * inside.key)
    for same in (other, longer):
        assert torch.equal(atc(same, 6).source, atc(inside, 6).source)


# Token pooling ------------------------------------------------------------------------------------


def naive_relevance(inside: Inside, image: int) -> Vector:
    if inside.scores is not None:
        given: Vector = inside.scores[image].double().tolist()
        return given
    return naive_cls_attention(inside, image)


def nearest(point: Vector, centres: Matrix) -> int:
    return min(range(len(centres)), key=lambda k: fsum((x - c) ** 2 for x, c in zip(point, centres[k], strict=True)))


def naive_token_pooling(inside: Inside, image: int, count: int, rounds: int = 5) -> Reduction:
    points: Matrix = inside.patches[image].double().tolist()
    weights = naive_relevance(inside, image)
    everyone = range(len(points))
    seeds = sorted(sorted(everyone, key=lambda i: -weights[i])[:count])
    centres = [points[i] for i in seeds]
    for _ in range(rounds):
        cluster = [nearest(point, centres) for point in points]
        for k in range(count):
            members = [i for i in everyone if cluster[i] == k]
            if members:
                centres[k] = weighted_mean(points, weights, members)
    cluster = [nearest(point, centres) for point in points]
    positions = []
    for k in range(count):
        members = [i for i in everyone if cluster[i] == k]
        positions.append(members[nearest(centres[k], [points[i] for i in members])])
    return Reduction(torch.tensor(centres), torch.tensor(positions), torch.tensor(cluster))


@prefixes
@counts
@pytest.mark.parametrize("scored", [False, True])
def test_token_pooling_equals_the_papers_loop(n: int, count: int, prefix: int, scored: bool) -> None:
    inside = make_inside(n, prefix, scored=scored)
    result = token_pooling(inside, count)
    for image in range(3):
        expected = naive_token_pooling(inside, image, count)
        torch.testing.assert_close(result.tokens[image], expected.tokens, atol=1e-5, rtol=1e-5)
        assert result.source[image].tolist() == expected.source.tolist()


@counts
def test_a_pooled_token_sits_at_its_nearest_member(n: int, count: int) -> None:
    inside = make_inside(n)
    result = token_pooling(inside, count)
    for image in range(3):
        expected = naive_token_pooling(inside, image, count)
        assert result.positions[image].tolist() == expected.positions.tolist()


def on_a_line(values: list[float], scores: list[float]) -> Inside:
    return replace(
        make_inside(len(values), batch=1),
        patches=torch.tensor(values)[None, :, None],
        sizes=torch.ones(1, len(values)),
        scores=torch.tensor([scores]),
    )


def test_token_pooling_by_hand() -> None:
    # The two best start at 0 and 10; 1 and 2 go to the first, 12 to the second. The means by score
    # are (0 + 0.1 + 0.4) / 1.3 and (9 + 3.6) / 1.2.
    inside = on_a_line([0.0, 10, 1, 2, 12], [1.0, 0.9, 0.1, 0.2, 0.3])
    result = token_pooling(inside, 2)
    assert result.tokens.flatten().tolist() == pytest.approx([0.5 / 1.3, 10.5])
    assert result.source.tolist() == [[0, 1, 0, 0, 1]]


def test_positions_of_pooled_tokens_by_hand() -> None:
    # Means at 0.385, nearest to patch 0, and at 10.5, nearest to patch 1.
    inside = on_a_line([0.0, 10, 1, 2, 12], [1.0, 0.9, 0.1, 0.2, 0.3])
    assert token_pooling(inside, 2).positions.tolist() == [[0, 1]]


def test_token_pooling_moves_patches_between_clusters_round_by_round() -> None:
    # From 0 and 1: the second centre is drawn away to 20 and so gives 1 and 2 to the first.
    inside = on_a_line([0.0, 1, 2, 20, 21], [1.0, 0.9, 0.5, 0.5, 0.5])
    result = token_pooling(inside, 2)
    assert result.source.tolist() == [[0, 0, 0, 1, 1]]
    assert result.tokens.flatten().tolist() == pytest.approx([1.9 / 2.4, 20.5])


@pytest.mark.parametrize("scored", [False, True])
def test_pooled_tokens_are_the_weighted_means_of_the_patches_that_source_says(scored: bool) -> None:
    """Where the clusters lie apart, so that five rounds are enough."""
    inside = make_inside(24, scored=scored)
    middle = 50 * torch.eye(5)[torch.randint(5, (3, 24))]
    inside = replace(inside, patches=middle + inside.patches)
    result = token_pooling(inside, 9)
    weights = inside.relevance
    total = torch.zeros(3, 9).scatter_add(1, result.source, weights)
    assert (total > 0).all()
    for image in range(3):
        for cluster in range(9):
            members = (result.source[image] == cluster).nonzero().flatten()
            mean = (weights[image, members, None] * inside.patches[image, members]).sum(dim=0)
            torch.testing.assert_close(
                result.tokens[image, cluster], mean / total[image, cluster], atol=1e-4, rtol=1e-4
            )
            assert result.positions[image, cluster] in members


def test_a_cluster_without_patches_stays_where_it_began() -> None:
    # All patches are equal, so the first cluster takes all of them.
    inside = on_a_line([5.0, 5, 5], [0.25, 1.0, 0.5])
    result = token_pooling(inside, 2)
    assert result.source.tolist() == [[0, 0, 0]]
    assert result.tokens.flatten().tolist() == [5, 5]
    assert result.positions[0, 1] == 2, "the second of the two best"


def test_token_pooling_stops_after_five_rounds() -> None:
    # Two centres that start at one end of a line need more rounds than that.
    line = [k + 0.3 * (k % 3) for k in range(40)]
    inside = on_a_line(line, [1.0, 0.9, *[0.5] * 38])
    pooled = token_pooling(inside, 2).tokens[0]
    torch.testing.assert_close(pooled, naive_token_pooling(inside, 0, 2).tokens)
    for rounds in (4, 6):
        other = naive_token_pooling(inside, 0, 2, rounds).tokens
        assert (pooled - other).abs().max() > 0.1


def test_without_any_relevance_all_patches_weigh_the_same() -> None:
    inside = make_inside(16)
    result = token_pooling(replace(inside, scores=torch.zeros(3, 16)), 6)
    expected = token_pooling(replace(inside, scores=torch.ones(3, 16)), 6)
    torch.testing.assert_close(result.tokens, expected.tokens)
    assert torch.equal(result.source, expected.source)


# ATS ----------------------------------------------------------------------------------------------


def naive_significance(inside: Inside, image: int) -> Vector:
    """Attention from CLS times the length of the value, summed over heads, adding up to one."""
    rows = [head[0] for head in attention_of(inside, image, queries=1)]
    values: list[Matrix] = inside.value[image].double().tolist()
    raw = [
        fsum(row[token] * sqrt(dot(head[token], head[token])) for row, head in zip(rows, values, strict=True))
        for token in range(inside.prefix, inside.key.shape[2])
    ]
    return [value / fsum(raw) for value in raw]


def naive_samples(significance: Vector, count: int) -> set[int]:
    """The first token at which the cumulative sum reaches (2k - 1) / 2K, for k = 1 .. K."""
    sampled = set()
    for k in range(1, count + 1):
        point, total, token = (2 * k - 1) / (2 * count), significance[0], 0
        while total < point:
            token += 1
            total += significance[token]
        sampled.add(token)
    return sampled


@prefixes
@counts
def test_ats_keeps_the_samples_and_then_the_most_significant(n: int, count: int, prefix: int) -> None:
    inside = make_inside(n, prefix)
    result = ats(inside, count)
    for image in range(3):
        significance = naive_significance(inside, image)
        kept = naive_samples(significance, count)
        assert kept <= set(result.positions[image].tolist())
        for token in sorted(range(n), key=lambda i: -significance[i]):
            if len(kept) == count:
                break
            kept.add(token)
        assert result.positions[image].tolist() == sorted(kept)


@counts
def test_ats_leaves_kept_tokens_as_they_are_in_raster_order(n: int, count: int) -> None:
    inside = make_inside(n)
    result = ats(inside, count)
    for image in range(3):
        keep = result.positions[image].tolist()
        assert keep == sorted(set(keep))
        assert torch.equal(result.tokens[image], inside.patches[image, keep])
        source = [keep.index(i) if i in keep else DROPPED for i in range(n)]
        assert result.source[image].tolist() == source


def with_significance(first: list[float], second: list[float]) -> Inside:
    """Two heads: attention to the patches in proportion to ``first`` in both, and values whose lengths
    are ``second`` in one head and zero in the other."""
    n = len(first)
    logits = torch.tensor([0.0, *[log(value) for value in first]])
    value = torch.zeros(1, 2, n + 1, 2)
    value[0, 0, 1:, 0] = torch.tensor(second) * 0.6
    value[0, 0, 1:, 1] = torch.tensor(second) * -0.8
    return replace(
        make_inside(n, batch=1),
        query=torch.ones(1, 2, n + 1, 1),
        key=logits[:, None].expand(1, 2, n + 1, 1),
        value=value,
        scale=1.0,
    )


def test_ats_by_hand() -> None:
    # Significance 0.54, 0.06, 0.12, 0.28 with sums 0.54, 0.60, 0.72, 1.
    inside = with_significance([0.54, 0.06, 0.12, 0.28], [1.0, 1, 1, 1])
    assert ats(inside, 1).positions.tolist() == [[0]]  # 1/2
    assert ats(inside, 2).positions.tolist() == [[0, 3]]  # 1/4, 3/4
    # 1/6 and 1/2 both hit the first, 5/6 the last: the freed place goes to the best one left.
    assert ats(inside, 3).positions.tolist() == [[0, 2, 3]]


def test_sampling_is_not_the_same_as_taking_the_best() -> None:
    # Sums 0.40, 0.45, 0.50, 0.55, 0.60, 1: the middle, 1/2, falls upon a small one.
    inside = with_significance([0.4, 0.05, 0.06, 0.04, 0.05, 0.4], [1.0] * 6)
    assert ats(inside, 3).positions.tolist() == [[0, 2, 5]]
    assert ats(inside, 1).positions.tolist() == [[2]], "although the first and last have 0.4"


def test_the_length_of_a_value_counts_as_much_as_attention() -> None:
    attended = with_significance([0.54, 0.06, 0.12, 0.28], [1.0, 1, 1, 1])
    long = with_significance([1.0, 1, 1, 1], [0.54, 0.06, 0.12, 0.28])
    for count in (1, 2, 3):
        assert torch.equal(ats(attended, count).positions, ats(long, count).positions)
    swapped = with_significance([0.54, 0.06, 0.12, 0.28], [0.01, 1, 1, 1])
    assert ats(swapped, 1).positions.tolist() == [[3]]


# Merging by visual word ---------------------------------------------------------------------------


def naive_word_merging(patches: Matrix, centroids: Matrix, count: int) -> Reduction:
    everyone = range(len(patches))
    own = [[x / sqrt(dot(point, point)) for x in point] for point in patches]
    word = [max(range(len(centroids)), key=lambda k: dot(own[i], centroids[k])) for i in everyone]
    similarity = [
        [dot(centroids[word[i]], centroids[word[j]]) + 1e-3 * dot(own[i], own[j]) for j in everyone] for i in everyone
    ]
    clusters = naive_clusters(similarity, count)
    ones = [1.0] * len(patches)
    return Reduction(
        torch.tensor([weighted_mean(patches, ones, members) for members in clusters]),
        torch.tensor([members[0] for members in clusters]),
        torch.tensor(labels_of(clusters)),
    )


@pytest.mark.parametrize("keep", [0.1, 0.4, 0.6])
def test_merging_by_word_equals_the_naive_loop(keep: float) -> None:
    patches, centroids = torch.randn(3, 25, 6), normalize(torch.randn(8, 6), dim=1)
    budget = Budget(keep=keep, merge=0.1)
    result = WordMerging(centroids)(patches, torch.rand(3, 25), budget, (5, 5))
    assert result.tokens.shape == (3, budget.tokens(25), 6)
    for image in range(3):
        expected = naive_word_merging(patches[image].double().tolist(), centroids.double().tolist(), budget.tokens(25))
        assert_equals(result, image, expected)


def test_patches_of_one_word_are_merged_before_patches_of_two() -> None:
    centroids = normalize(torch.randn(4, 6), dim=1)
    word = torch.randint(4, (2, 25))
    patches = centroids[word] * (1 + torch.rand(2, 25, 1)) + 0.01 * torch.randn(2, 25, 6)
    result = WordMerging(centroids)(patches, torch.zeros(2, 25), Budget(0.2, 0.1, 1), (5, 5))
    for image in range(2):
        for cluster in range(6):
            assert len(word[image, result.source[image] == cluster].unique()) == 1
    fewest = WordMerging(centroids)(patches, torch.zeros(2, 25), Budget(0.0, 0.0, 2), (5, 5))
    for image in range(2):
        assert torch.equal(
            fewest.source[image][:, None] == fewest.source[image], word[image][:, None] == word[image]
        ), "as many tokens as words: each word is one"


# What every step promises -------------------------------------------------------------------------


@prefixes
@counts
@steps
def test_the_promised_number_of_tokens_comes_out(reducer: Progressive, n: int, count: int, prefix: int) -> None:
    inside = make_inside(n, prefix)
    result = reducer.step(inside, count)
    assert result.tokens.shape == (3, count, 5)
    assert result.tokens.dtype == inside.patches.dtype
    assert result.positions.shape == (3, count)
    assert result.positions.min() >= 0
    assert result.positions.max() < n
    assert result.source.shape == (3, n)
    assert result.source.max() < count
    for image in range(3):
        used = set(result.source[image].tolist()) - {DROPPED}
        assert used == set(range(count)), "every token holds some patch"
        # A token sits where one of its own patches was.
        at = result.positions[image]
        assert result.source[image, at].tolist() == list(range(count))


@steps
def test_permuting_the_batch_permutes_the_results(reducer: Progressive) -> None:
    inside, order = make_inside(16, batch=5), [3, 0, 4, 2, 1]
    whole, permuted = reducer.step(inside, 7), reducer.step(images_of(inside, order), 7)
    torch.testing.assert_close(permuted.tokens, whole.tokens[order])
    assert torch.equal(permuted.positions, whole.positions[order])
    assert torch.equal(permuted.source, whole.source[order])
