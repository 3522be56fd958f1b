"""Neighbours, measures of rankings and late interaction: by hand, against loops, and their invariances."""

import builtins
from typing import Any

import pytest
import torch
from torch.nn.functional import normalize

from redi import retrieval
from redi.errors import ConfigError, InvalidInput
from redi.retrieval import (
    average_precision,
    best_patches,
    knn_vote,
    maxsim,
    merged_patches,
    nearest,
    ranking,
    recalled,
    search_of,
)


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def test_average_precision_by_hand() -> None:
    # Relevant images at ranks 1, 3 and 6: (1/1 + 2/3 + 3/6) / 3.
    scores = torch.tensor([[0.9, 0.8, 0.7, 0.6, 0.5, 0.4]])
    relevant = torch.tensor([[True, False, True, False, False, True]])
    assert average_precision(scores, relevant).item() == pytest.approx((1 + 2 / 3 + 1 / 2) / 3)
    assert average_precision(-scores, relevant).item() == pytest.approx((1 + 2 / 4 + 3 / 6) / 3)


def test_average_precision_equals_a_loop() -> None:
    scores = torch.randn(7, 30)
    relevant = torch.rand(7, 30) < 0.3
    relevant[:, 4] = True
    expected = []
    for row, wanted in zip(scores.tolist(), relevant.tolist(), strict=True):
        found, precisions = 0, []
        for rank, index in enumerate(sorted(range(30), key=lambda k: -row[k]), start=1):
            if wanted[index]:
                found += 1
                precisions.append(found / rank)
        expected.append(sum(precisions) / len(precisions))
    assert average_precision(scores, relevant).tolist() == pytest.approx(expected, abs=1e-6)


def test_measures_ignore_the_order_of_the_gallery_and_monotone_changes() -> None:
    scores, relevant = torch.randn(5, 20), torch.rand(5, 20) < 0.4
    relevant[:, 0] = True
    order = torch.randperm(20)
    expected = average_precision(scores, relevant)
    torch.testing.assert_close(average_precision(scores[:, order], relevant[:, order]), expected)
    torch.testing.assert_close(average_precision((3 * scores).exp(), relevant), expected)


def test_a_perfect_ranking_has_an_average_precision_of_one_and_a_query_needs_a_relevant_image() -> None:
    relevant = torch.tensor([[False, True, True, False]])
    assert average_precision(relevant.float(), relevant).item() == 1
    with pytest.raises(InvalidInput, match="without a relevant image"):
        average_precision(torch.rand(1, 4), torch.zeros(1, 4, dtype=torch.bool))


def test_the_first_in_the_gallery_wins_a_tie() -> None:
    scores = torch.tensor([[1.0, 2.0, 2.0, 1.0]])
    assert ranking(scores).tolist() == [[1, 2, 0, 3]]
    _, index = nearest(torch.ones(1, 1), torch.ones(50, 1), 3)
    assert index.tolist() == [[0, 1, 2]]


def test_recall_looks_at_the_first_images_alone() -> None:
    relevant = torch.tensor([[False, True, False], [True, False, False], [False, False, True]])
    assert recalled(relevant, 1).tolist() == [False, True, False]
    assert recalled(relevant, 2).tolist() == [True, True, False]
    assert recalled(relevant, 10).tolist() == [True, True, True]


def test_votes_by_hand() -> None:
    # At a temperature of 1, exp(0.9) = 2.46 of class 2 loses to exp(0.5) + exp(0.4) = 3.14 of class 0; at 0.07 it wins.
    similarity, labels = torch.tensor([[0.9, 0.5, 0.4]]), torch.tensor([[2, 0, 0]])
    assert knn_vote(similarity, labels, 3, temperature=1.0).tolist() == [0]
    assert knn_vote(similarity, labels, 3).tolist() == [2]


def test_votes_equal_a_loop() -> None:
    similarity = torch.rand(40, 9).sort(dim=1, descending=True).values
    labels = torch.randint(0, 4, (40, 9))
    expected = []
    for row, classes in zip(similarity.double(), labels.tolist(), strict=True):
        votes = [0.0] * 4
        for value, label in zip(row.tolist(), classes, strict=True):
            votes[label] += 2.718281828459045 ** (value / 0.07)
        expected.append(votes.index(max(votes)))
    assert knn_vote(similarity, labels, 4).tolist() == expected


def test_neighbours_equal_a_loop() -> None:
    queries, gallery = unit(300, 8), unit(40, 8, seed=1)  # more queries than one chunk has
    values, index = nearest(queries, gallery, 5)
    for query in (0, 255, 256, 299):
        cosines = [float(queries[query] @ vector) for vector in gallery]
        expected = sorted(range(40), key=lambda k: -cosines[k])[:5]
        assert index[query].tolist() == expected
        assert values[query].tolist() == pytest.approx([cosines[k] for k in expected], abs=1e-6)
    with pytest.raises(InvalidInput, match="no 41 nearest"):
        nearest(queries, gallery, 41)


def test_faiss_finds_the_same_neighbours() -> None:
    pytest.importorskip("faiss", reason="faiss is not installed: pip install 'redi-vit[faiss]'")
    queries, gallery = unit(64, 16), unit(500, 16, seed=1)
    ours, theirs = (nearest(queries, gallery, 10, search) for search in ("torch", "faiss"))
    assert torch.equal(ours[1], theirs[1])
    torch.testing.assert_close(ours[0], theirs[0], atol=1e-5, rtol=0)


def test_a_large_gallery_is_searched_by_faiss_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "find_spec", lambda name: object())
    assert [search_of(retrieval.FAISS_FROM - 1), search_of(retrieval.FAISS_FROM)] == ["torch", "faiss"]
    monkeypatch.setattr(retrieval, "find_spec", lambda name: None)
    assert search_of(retrieval.FAISS_FROM) == "torch"


def test_a_search_by_faiss_without_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def blocked(name: str, *arguments: Any) -> Any:
        if name == "faiss":
            raise ImportError(name)
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", blocked)
    with pytest.raises(ConfigError, match=r"^This search needs faiss: pip install 'redi-vit\[faiss\]'\.$"):
        nearest(unit(2, 4), unit(3, 4), 1, "faiss")


def test_maxsim_by_hand() -> None:
    query = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    gallery = torch.tensor([[[1.0, 0.0], [0.6, 0.8]], [[-1.0, 0.0], [0.0, -1.0]]])
    # First image: 1 + 0.8; second: max(-1, 0) + max(0, -1).
    assert maxsim(query, gallery).tolist() == [[pytest.approx(1.8), 0.0]]


def test_maxsim_equals_a_loop_whatever_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, gallery = unit(9, 3, 5), unit(11, 4, 5, seed=1)
    expected = [[float((q @ g.T).amax(dim=1).sum()) for g in gallery] for q in queries]
    whole = maxsim(queries, gallery)
    torch.testing.assert_close(whole, torch.tensor(expected))
    monkeypatch.setattr(retrieval, "QUERY_CHUNK", 4)
    monkeypatch.setattr(retrieval, "PAIRS", 96)  # two gallery images at once
    torch.testing.assert_close(maxsim(queries, gallery), whole)


def test_maxsim_ignores_the_order_of_the_vectors_and_is_the_cosine_for_one() -> None:
    queries, gallery = unit(4, 6, 5), unit(5, 6, 5, seed=1)
    torch.testing.assert_close(maxsim(queries[:, torch.randperm(6)], gallery.flip(1)), maxsim(queries, gallery))
    torch.testing.assert_close(maxsim(queries[:, :1], gallery[:, :1]), queries[:, 0] @ gallery[:, 0].T)


def test_the_best_patches_come_first_and_raster_order_wins_a_tie() -> None:
    patches = torch.arange(4.0).view(1, 4, 1)
    assert best_patches(patches, torch.tensor([[1.0, 3.0, 3.0, 2.0]]), 3).flatten().tolist() == [1, 2, 3]


def test_merging_to_one_vector_gives_the_unit_mean() -> None:
    patches = unit(3, 10, 4)
    torch.testing.assert_close(merged_patches(patches, 1)[:, 0], normalize(patches.mean(dim=1), dim=-1))


def test_merging_to_all_vectors_keeps_every_patch() -> None:
    patches = unit(2, 8, 6)
    merged = merged_patches(patches, 8)
    torch.testing.assert_close((merged @ patches.transpose(1, 2)).amax(dim=2), torch.ones(2, 8))


def test_merging_finds_groups_that_are_far_apart_in_any_order() -> None:
    directions = torch.eye(4)[:3]
    member = torch.randint(0, 3, (1, 30)).sort().values
    patches = normalize(directions[member] + 0.05 * torch.randn(1, 30, 4), dim=-1)
    merged = merged_patches(patches, 3)[0]
    expected = torch.stack([normalize(patches[0, member[0] == k].sum(dim=0), dim=-1) for k in range(3)])
    closest = (merged @ expected.T).argmax(dim=1)
    torch.testing.assert_close(merged, expected[closest])
    assert closest.unique().numel() == 3
    shuffled = merged_patches(patches[:, torch.randperm(30)], 3)[0]
    torch.testing.assert_close((shuffled @ merged.T).amax(dim=1), torch.ones(3))


def test_equal_patches_leave_clusters_empty_but_valid() -> None:
    patches = torch.eye(3)[:1].expand(1, 6, 3).clone()
    merged = merged_patches(patches, 4)
    assert merged.isfinite().all()
    torch.testing.assert_close(merged, patches[:, :4])
    with pytest.raises(InvalidInput, match="no 7 clusters"):
        merged_patches(patches, 7)
