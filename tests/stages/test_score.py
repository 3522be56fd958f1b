"""The score stage: how its maps are normalised and rounded."""

from pathlib import Path

import pytest
import torch

from redi.attention import ATTENTION_SCORES
from redi.records import artifacts
from redi.rows import SCORES, Score
from redi.score import hybrid
from redi.scorers import random_scores


def stored(run: Path, name: str) -> torch.Tensor:
    return artifacts.load(run / "scores" / f"{name}.safetensors")[0]["scores"]


def factor(run: Path, name: str) -> torch.Tensor:
    return artifacts.load(run / "validation" / "factors" / f"{name}.safetensors")[0]["map"]


@pytest.mark.parametrize("name", SCORES)
def test_every_map_is_normalised(finished: Path, name: str) -> None:
    low, high = stored(finished, name).aminmax(dim=1)
    assert low.eq(0).all()
    assert high.eq(1).all(), "1 / (1 + 1e-8) is 1 in FP16"


def test_the_random_map_ranks_patches_as_its_noise_does(finished: Path) -> None:
    noise = random_scores(0, list(range(20)), 196)
    assert torch.equal(factor(finished, "random").argsort(dim=1), noise.argsort(dim=1))


@pytest.mark.parametrize("name", ["random", *ATTENTION_SCORES])
def test_a_map_is_rounded_when_it_is_complete(finished: Path, name: str) -> None:
    """The stored map is the factor, rounded; the factor itself is not rounded."""
    whole = factor(finished, name)
    assert whole.dtype == torch.float32
    assert not torch.equal(whole.half().float(), whole)
    assert torch.equal(whole.half(), stored(finished, name))


def test_rounded_factors_would_give_other_products(finished: Path) -> None:
    """So it matters that no factor is rounded before it is multiplied."""
    tfidf = stored(finished, "tfidf").float()
    for name in ATTENTION_SCORES:
        from_rounded = hybrid(tfidf, stored(finished, name).float()).half()
        assert not torch.equal(from_rounded, stored(finished, Score("tfidf", name).name))
