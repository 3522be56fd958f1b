"""Costs against the products that are counted while the real blocks of every family run."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from families import save_model, scrambled
from redi.backbone import Backbone, load_backbone
from redi.backbone.model import block_products
from redi.cost import block_cost, cost_table, vit_block
from redi.deploy import accelerate
from redi.reduction import OPERATOR, REDUCERS, Extent


def counted(work: Callable[[], object]) -> int:
    """Multiply-adds of all matrix products, those of the attention included."""
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops()) // 2


@pytest.fixture
def image(pixels: Tensor) -> Tensor:
    return pixels[:1]


def test_a_block_costs_the_products_that_are_counted_while_it_runs(backbone: Backbone, image: Tensor) -> None:
    tokens = backbone.embed(image)
    length = tokens.sequence.shape[1]
    wanted = backbone.geometry.block.cost(length, length)
    for block in range(backbone.depth):
        assert counted(partial(backbone.encode, tokens, block, block + 1)) == wanted


def test_the_mlp_is_counted_apart_from_the_attention(backbone: Backbone, image: Tensor) -> None:
    hidden = backbone.embed(image).sequence
    halves, block = backbone.family.halves, backbone.blocks[0]
    assert counted(lambda: halves.transform(block, hidden)) == hidden.shape[1] * backbone.geometry.block.mlp


@pytest.mark.parametrize("after", [0, 2])
def test_the_operators_cost_is_what_its_forward_pass_multiplies(backbone: Backbone, image: Tensor, after: int) -> None:
    tokens, operator = backbone.embed(image), REDUCERS[OPERATOR]
    on, extent = backbone.at_size(image.shape[-1]).geometry, Extent(after=after)
    scores = torch.rand(1, on.patches)
    dense = counted(lambda: backbone.encode(tokens))
    before = tokens.advanced(backbone.encode(tokens, stop=after))
    reduced = counted(lambda: backbone.encode(tokens, stop=after))
    reduced += counted(lambda: operator.apply(backbone, before, extent, scores))
    assert operator.cost(extent, on) == reduced / dense


@pytest.mark.parametrize("name", ["tome", "evo-vit", OPERATOR])
def test_the_shortcut_of_the_last_block_saves_the_products_that_it_leaves_out(
    name: str, tmp_path: Path, pixels: Tensor
) -> None:
    """But for the rows of attention, which are sums and not products."""
    backbone, reducer = load_backbone(save_model(scrambled("vit_head"), tmp_path)), REDUCERS[name]
    size, on = backbone.preprocessing.size, backbone.geometry
    tokens = backbone.embed(nn.functional.interpolate(pixels[:1], (size, size)))
    extent = reducer.extent_for_cost(0.6, on, Extent(), prefix_only=True)
    scores = torch.rand(1, on.patches) if reducer.needs_score else None
    dense = counted(lambda: backbone.encode(tokens))
    whole, short = (counted(partial(reducer.apply, backbone, tokens, extent, scores, only)) for only in (False, True))
    saved = reducer.cost(extent, on) - reducer.cost(extent, on, prefix_only=True)
    assert saved > 0.05
    assert (whole - short) / dense == pytest.approx(saved, abs=0.002)


@pytest.mark.parametrize("name", ["dinov3", "dinov3_gated"])
def test_an_accelerated_model_costs_what_it_multiplies(name: str, tmp_path: Path, pixels: Tensor) -> None:
    """But for its own matching, whose count leaves out single tokens."""
    given = scrambled(name, hidden_size=64, intermediate_size=32 if name == "dinov3" else 512)
    backbone = load_backbone(save_model(given, tmp_path))
    size = backbone.preprocessing.size
    image = nn.functional.interpolate(pixels[:1], (size, size))
    tokens = backbone.embed(image)
    model = accelerate(backbone, cost=0.7)
    spent = counted(lambda: model(image)) - counted(lambda: backbone.embed(image))
    share = spent / counted(lambda: backbone.encode(tokens))
    assert model.cost() == pytest.approx(share, abs=0.002)
    extent = Extent(schedule=model.setting.extent(backbone.geometry, prefix_only=False).schedule)
    by_formula = model.setting.reducer.cost(extent, replace(backbone.geometry, own_block=None))
    assert by_formula != pytest.approx(share, abs=0.02)


def test_an_mlp_of_twice_the_width_costs_0_405_where_the_formula_says_0_430(tmp_path: Path) -> None:
    model = scrambled("vit", hidden_size=48, intermediate_size=96)
    products = load_backbone(save_model(model, tmp_path)).geometry.block
    dense, reduced = 201, 107

    def naive(tokens: int) -> int:
        projections = 4 * tokens * 48 * 48
        attention = 2 * tokens * tokens * 48
        return projections + attention + tokens * 48 * 96 + tokens * 96 * 48

    assert products.cost(dense, dense) == naive(dense)
    (*_, arithmetic) = cost_table(196, 5, 48, block=products)
    assert arithmetic.reduced == naive(reduced) / naive(dense)
    assert arithmetic.formula == block_cost(reduced, 48) / block_cost(dense, 48)
    assert (f"{arithmetic.reduced:.3f}", f"{arithmetic.formula:.3f}") == ("0.405", "0.430")


def test_a_block_of_the_papers_kind_needs_no_block_of_its_own(tmp_path: Path) -> None:
    on = load_backbone(save_model(scrambled("vit", intermediate_size=128), tmp_path)).geometry
    assert on.own_block is None
    assert on.block == vit_block(32)
    assert on.dense == 3 * block_cost(197, 32)


def test_products_are_those_of_the_linear_layers() -> None:
    block = nn.ModuleDict({"attention": nn.Linear(8, 24), "mlp": nn.Sequential(nn.Linear(8, 5), nn.Linear(5, 8))})
    products = block_products(block, "mlp", 8)
    assert (products.projections, products.mlp, products.pairs) == (8 * 24, 80, 16)
