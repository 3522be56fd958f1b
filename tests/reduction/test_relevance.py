"""Relevance inside a block: CLS attention, the mean query, and what a token receives, against loops."""

from dataclasses import replace
from math import exp, fsum
from typing import Any

import pytest
import torch

from families import make_model
from insides import make_inside
from loops import Vector, attention_of, dot, mean_of_heads, naive_cls_attention
from redi.deploy import Setting, accelerate
from redi.errors import ConfigError
from redi.reduction import Inside
from redi.reduction.protected import OURS
from redi.reduction.relevance import RELEVANCES, default_relevance

prefixes = pytest.mark.parametrize("prefix", [0, 1, 5])


def shares(inside: Inside, image: int) -> Vector:
    """How much each token counts among the queries: as many as its patches, one for the prefix."""
    sizes = [1.0] * inside.prefix + inside.sizes[image].double().tolist()
    return [size / fsum(sizes) for size in sizes]


def naive_received(inside: Inside, image: int) -> Vector:
    weights = shares(inside, image)
    heads = [
        [fsum(weight * row[key] for weight, row in zip(weights, rows, strict=True)) for key in range(len(rows))]
        for rows in attention_of(inside, image, queries=len(weights))
    ]
    return mean_of_heads(heads)[inside.prefix :]


def naive_mean_query(inside: Inside, image: int) -> Vector:
    weights, heads = shares(inside, image), []
    sizes = [1.0] * inside.prefix + inside.sizes[image].double().tolist()
    for queries, keys in zip(inside.query[image].double().tolist(), inside.key[image].double().tolist(), strict=True):
        mean = [fsum(w * query[axis] for w, query in zip(weights, queries, strict=True)) for axis in range(6)]
        raised = [size * exp(dot(mean, key) * inside.scale) for size, key in zip(sizes, keys, strict=True)]
        heads.append([value / fsum(raised) for value in raised])
    return mean_of_heads(heads)[inside.prefix :]


NAIVE = {"cls": naive_cls_attention, "mean_query": naive_mean_query, "received": naive_received}


@prefixes
@pytest.mark.parametrize("name", RELEVANCES)
def test_relevance_is_that_of_a_loop(name: str, prefix: int) -> None:
    if name == "cls" and not prefix:
        return
    inside = replace(make_inside(9, prefix), attending=name)
    for image in range(3):
        torch.testing.assert_close(inside.attention[image], torch.tensor(NAIVE[name](inside, image)))


@pytest.mark.parametrize("name", ["mean_query", "received"])
def test_a_token_of_three_patches_counts_as_three_equal_tokens(name: str) -> None:
    """Merging tokens that are exactly alike changes the relevance of no other token."""
    inside = replace(make_inside(9, 0), sizes=torch.ones(3, 9), bias=None, attending=name)
    alike = [0, 1, 2, 2, 2, 3, 4, 5, 6]
    long = replace(inside, query=inside.query[:, :, alike], key=inside.key[:, :, alike])
    sizes = torch.tensor([1.0, 1, 3, 1, 1, 1, 1]).expand(3, -1)
    short = replace(
        inside,
        query=inside.query[:, :, :7],
        key=inside.key[:, :, :7],
        sizes=sizes,
        bias=sizes.log()[:, None, None],
        value=inside.value[:, :, :7],
        patches=inside.patches[:, :7],
    )
    merged = long.attention[:, 2:5].sum(dim=1, keepdim=True)
    expected = torch.cat([long.attention[:, :2], merged, long.attention[:, 5:]], dim=1)
    torch.testing.assert_close(short.attention, expected)


def test_the_rule_is_cls_where_there_is_a_cls_token() -> None:
    assert default_relevance(has_cls=True) == "cls"
    assert default_relevance(has_cls=False) in RELEVANCES


def test_a_tower_without_cls_uses_the_rule_and_a_setting_can_name_another(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    step = OURS["protected"].step

    def watched(inside: Inside, count: int, **options: Any) -> Any:
        seen.append(inside.attending)
        return step(inside, count, **options)

    monkeypatch.setitem(OURS, "protected", replace(OURS["protected"], step=watched))
    pixels = torch.randn(2, 3, 48, 48)
    for name, setting, expected in (
        ("vit", Setting(0.7), "cls"),
        ("siglip", Setting(0.7), default_relevance(has_cls=False)),
        ("siglip", Setting(0.7, relevance="received"), "received"),
        ("vit", Setting(0.7, relevance="mean_query"), "mean_query"),
    ):
        seen.clear()
        accelerate(make_model(name), setting=setting)(pixels)
        assert set(seen) == {expected}
    with pytest.raises(ConfigError, match="This model has no CLS token, whose attention"):
        accelerate(make_model("siglip"), setting=Setting(0.7, relevance="cls"))
    with pytest.raises(ConfigError, match="Relevance is one of cls, mean_query, received, not 'rollout'"):
        Setting(relevance="rollout")


def test_received_attention_costs_one_row_per_token_more() -> None:
    """At the same cost it therefore keeps fewer tokens."""
    model = make_model("vit")
    received, mean = (accelerate(model, setting=Setting(0.8, relevance=name)) for name in ("received", "mean_query"))
    geometry, schedule = received.backbone.geometry, (30, 20, 20)
    extent = received.setting.extent(geometry, prefix_only=False)
    extent = replace(extent, schedule=schedule)
    more = received.setting.reducer.cost(extent, geometry) - mean.setting.reducer.cost(extent, geometry)
    patches, width = geometry.patches, geometry.width
    tokens = [patches, 30]  # before the two blocks that remove some
    assert more * geometry.dense == pytest.approx(sum((1 + n - 1) * n * width for n in tokens))
