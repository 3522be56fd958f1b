"""The sums of a k-means pass: the same whatever the chunks, the parts and their order."""

import pytest
import torch
from torch.nn.functional import normalize

from redi.centroids import CentroidSums, dot_products


def test_worst_patches_are_those_of_the_whole_pass_whatever_the_chunks() -> None:
    rows = torch.randn(40, 5, 6, generator=torch.Generator().manual_seed(5))
    centroids = normalize(torch.randn(7, 6, generator=torch.Generator().manual_seed(6)), dim=1)
    cosine = (normalize(rows.flatten(0, 1), dim=1) @ centroids.T).amax(1)
    expected = cosine.sort().values[:7]
    for size in (3, 40):
        sums = CentroidSums(7, 6, torch.device("cpu"))
        for chunk in rows.split(size):
            sums.update(chunk, centroids)
        torch.testing.assert_close(sums.worst_similarity, expected)


def test_parts_merge_to_the_same_bits_in_any_order() -> None:
    features = torch.randn(120, 9, 16, generator=torch.Generator().manual_seed(2))
    centroids = normalize(torch.randn(11, 16, generator=torch.Generator().manual_seed(3)), dim=1)
    results = []
    for order in (range(4), (3, 1, 0, 2), (2, 3, 1, 0)):
        total = CentroidSums(11, 16, torch.device("cpu"))
        for part in order:
            one = CentroidSums(11, 16, torch.device("cpu"))
            one.update(features[30 * part : 30 * part + 30], centroids)
            total.merge(one)
        results.append(total)
    for other in results[1:]:
        assert torch.equal(other.sums, results[0].sums)
        assert torch.equal(other.similarity, results[0].similarity)
        assert torch.equal(other.worst, results[0].worst)


@pytest.mark.parametrize("shape", [(5,), (3, 7), (2, 3, 4), (1, 1)])
def test_dot_products_are_the_matrix_product(shape: tuple[int, ...]) -> None:
    features, centroids = torch.randn(*shape, 24), torch.randn(6, 24)
    torch.testing.assert_close(dot_products(features, centroids), features @ centroids.T, atol=1e-5, rtol=1e-5)
