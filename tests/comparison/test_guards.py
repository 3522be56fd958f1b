"""Guards around the user's own functions, called by hand."""

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from redi.backbone import Backbone
from redi.budget import Budget
from redi.comparison.guards import guarded_reducer, guarded_scorer
from redi.comparison.plugins import extended_catalogue
from redi.errors import InvalidInput
from redi.reduction import Extent, Inside, OneShot, Progressive, Reduction
from redi.reduction.oneshot import prune
from redi.reduction.schedule import constant
from redi.rows import Score, Variant
from redi.scorers import Dense
from redi.stages.evaluate import forward

GRID = (4, 4)
PATCHES = 16


def dense(batch: int = 2) -> Dense:
    query, key, value = torch.randn(3, batch, 2, 1 + PATCHES, 4)
    return Dense(query, key, value, 0.5, torch.randn(batch, PATCHES, 8), 1, GRID, list(range(batch)), 0)


def inside(batch: int = 2) -> Inside:
    query, key, value = torch.randn(3, batch, 2, 1 + PATCHES, 4)
    patches, sizes, scores = torch.randn(batch, PATCHES, 8), torch.ones(batch, PATCHES), torch.rand(batch, PATCHES)
    bias = torch.zeros(batch, 1, 1, 1 + PATCHES)
    return Inside(patches, sizes, scores, query, key, value, bias, 0.5, 1, 0, 3)


def tensors(state: object) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in vars(state).items() if isinstance(value, Tensor)}


def unchanged(state: object, before: dict[str, Tensor]) -> bool:
    return all(torch.equal(getattr(state, name), value) for name, value in before.items())


def ruin(state: Any) -> None:
    for value in vars(state).values():
        if isinstance(value, Tensor):
            value.fill_(9)


def leave(patches: Tensor, count: int) -> Reduction:
    keep = torch.arange(count).expand(len(patches), -1)
    source = torch.arange(patches.shape[1]).clamp(max=count - 1).expand(len(patches), -1)
    return Reduction(patches[:, :count], keep, source)


def one_shot(patches: Tensor, _scores: Tensor, budget: Budget, _grid: Any) -> Reduction:
    return leave(patches, budget.tokens(patches.shape[1]))


def test_a_scorer_cannot_change_what_others_see() -> None:
    def score(own: Dense) -> Tensor:
        own.attention.zero_()
        ruin(own)
        own.indices.clear()
        return own.patches[..., 0] + torch.arange(PATCHES)

    state = dense()
    attention, before = state.attention.clone(), tensors(state)
    assert guarded_scorer("mine", score)(state)[0].tolist() == [9 + k for k in range(PATCHES)]
    assert unchanged(state, before)
    assert torch.equal(state.attention, attention)
    assert state.indices == [0, 1]


def test_a_reducer_cannot_change_what_others_see() -> None:
    def reduce(patches: Tensor, scores: Tensor, budget: Budget, grid: Any) -> Reduction:
        patches.zero_()
        scores.zero_()
        return one_shot(patches, scores, budget, grid)

    patches, scores = torch.randn(2, PATCHES, 8), torch.rand(2, PATCHES)
    copies = patches.clone(), scores.clone()
    reducer = guarded_reducer("mine", reduce)
    assert isinstance(reducer, OneShot)
    reducer.reduce(patches, scores, Budget(), GRID)
    assert torch.equal(patches, copies[0])
    assert torch.equal(scores, copies[1])


def test_a_step_cannot_change_what_others_see() -> None:
    def step(own: Inside, count: int) -> Reduction:
        ruin(own)
        return leave(own.patches, count)

    reducer, state = guarded_reducer("mine", Progressive(step, constant)), inside()
    before = tensors(state)
    assert isinstance(reducer, Progressive)
    reducer.step(state, 10)
    assert unchanged(state, before)


def test_a_reducer_with_words_is_guarded_too() -> None:
    def from_words(words: Tensor) -> Callable[..., Reduction]:
        words.zero_()

        def reduce(*_: Any) -> Reduction:
            raise KeyError("no word")

        return reduce

    words = torch.ones(3, 8)
    reducer = guarded_reducer("mine", OneShot(one_shot, from_words=from_words))
    assert isinstance(reducer, OneShot)
    fitted = reducer.with_words(words)
    assert words.eq(1).all()
    with pytest.raises(InvalidInput, match="The reducer 'mine' failed: KeyError: 'no word'"):
        fitted.reduce(torch.zeros(1, PATCHES, 8), torch.zeros(1, PATCHES), Budget(), GRID)


def test_words_do_not_hide_that_a_users_file_has_changed() -> None:
    variant = Variant(Score.parse("mass"), reducer="mine")
    own = OneShot(one_shot, from_words=lambda words: one_shot)
    digests = {
        extended_catalogue({}, {"mine": own}, {"mine": file}).with_words(torch.ones(3, 8), words).digest(variant)
        for file in ("a", "b")
        for words in ("x", "y")
    }
    assert len(digests) == 4


@torch.no_grad()
def test_rows_that_share_an_embedding_do_not_share_damage(dinov3: Backbone, pixels: Tensor) -> None:
    def reduce(patches: Tensor, scores: Tensor, budget: Budget, grid: Any) -> Reduction:
        patches.mul_(0)
        return prune(patches, scores, budget, grid)

    catalogue = extended_catalogue({}, {"mine": reduce}, {"mine": "x"})
    scores = torch.rand(3, 36)
    clean = forward(dinov3, catalogue, Variant(reducer="prune"), scores, {0: dinov3.embed(pixels)}).hidden
    begun = {0: dinov3.embed(pixels)}
    forward(dinov3, catalogue, Variant(reducer="mine"), scores, begun)
    assert torch.equal(forward(dinov3, catalogue, Variant(reducer="prune"), scores, begun).hidden, clean)


def change_torch() -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_grad_enabled(not torch.is_grad_enabled())
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.set_float32_matmul_precision("medium")
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(99)


def torch_state() -> list[Any]:
    return [
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_grad_enabled(),
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_rng_state().tolist(),
    ]


@pytest.fixture
def torch_before() -> Iterator[list[Any]]:
    """The state of torch, put back at the end, so that a test that fails does not break others."""
    before = torch_state()
    yield before
    torch.set_default_device(None)
    torch.set_default_dtype(before[0])
    torch.set_grad_enabled(before[2])
    torch.set_num_threads(before[3])
    torch.set_float32_matmul_precision(before[4])
    torch.use_deterministic_algorithms(before[5])


@pytest.mark.parametrize("fails", [False, True])
def test_a_function_cannot_change_torch_for_others(torch_before: list[Any], fails: bool) -> None:
    state = dense()
    expected = torch_state()

    def score(own: Dense) -> Tensor:
        change_torch()
        return own.patches if fails else own.patches[..., 0]

    def reduce(*inputs: Any) -> Any:
        reduction = one_shot(*inputs)
        change_torch()
        return None if fails else reduction

    reducer = guarded_reducer("mine", reduce)
    assert isinstance(reducer, OneShot)
    for call in (
        lambda: guarded_scorer("mine", score)(state),
        lambda: reducer.reduce(state.patches, state.patches[..., 0], Budget(), GRID),
    ):
        with pytest.raises(InvalidInput, match="failed: it must") if fails else nullcontext():
            call()
        assert torch_state() == expected


def exits(_dense: Dense) -> Tensor:
    sys.exit(3)


class Mine(BaseException):
    pass


def raises_its_own(_dense: Dense) -> Tensor:
    raise Mine("odd\x1b[2J\nsecond line")


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (exits, "SystemExit: 3"),
        (raises_its_own, r"Mine: odd\\x1b\[2J"),
        (lambda dense: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda dense: None, r"it must give \[2, 16\] scores, not NoneType"),
        (lambda dense: torch.zeros(2, 17), r"it must give \[2, 16\] scores, not \[2, 17\]"),
        (lambda dense: torch.full((2, 16), torch.nan), "its scores are not all finite"),
        (lambda dense: torch.full((2, 16), 1e200, dtype=torch.float64), "its scores are not all finite"),
        (lambda dense: torch.full((2, 16), -torch.inf), "its scores are not all finite"),
        (lambda dense: torch.tensor([-3e38, 3e38]).repeat(2, 8), "its scores are too far apart"),
        (lambda dense: torch.zeros(2, 16, dtype=torch.complex64), "its scores are complex numbers"),
        (lambda dense: torch.zeros(2, 16, device="meta"), "its scores are on meta, but the patches are on cpu"),
    ],
)
def test_a_scorers_mistakes_are_one_line(score: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=f"The scorer 'mine' failed: {message}") as caught:
        guarded_scorer("mine", score)(dense())
    assert "\n" not in str(caught.value)


def test_ctrl_c_is_the_users_own() -> None:
    def score(_dense: Dense) -> Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guarded_scorer("mine", score)(dense())


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.float16, torch.float64])
def test_scores_of_any_real_type_are_taken(dtype: torch.dtype) -> None:
    scores = guarded_scorer("mine", lambda dense: torch.ones(2, PATCHES, dtype=dtype))(dense())
    assert scores.dtype == torch.float32
    assert scores.eq(1).all()


GOOD = leave(torch.randn(2, PATCHES, 8), 12)  # the number of tokens of the paper's budget


@pytest.mark.parametrize(
    ("reduction", "message"),
    [
        (None, "it must return a Reduction of tensors, not NoneType"),
        (tuple(GOOD), "it must return a Reduction of tensors, not tuple"),
        (
            GOOD._replace(source=[0]),  # type: ignore[arg-type]
            "it must return a Reduction of tensors",
        ),
        (GOOD._replace(tokens=GOOD.tokens[:, 1:]), "it must return 12 tokens, not 11"),
        (GOOD._replace(tokens=GOOD.tokens[..., 1:]), r"its tokens have the shape \[2, 12, 7\]"),
        (GOOD._replace(tokens=GOOD.tokens[0]), r"its tokens have the shape \[12, 8\]"),
        (GOOD._replace(positions=GOOD.positions[:1]), r"its positions have the shape \[1, 12\]"),
        (GOOD._replace(source=GOOD.positions), r"its source have the shape \[2, 12\]"),
        (GOOD._replace(tokens=GOOD.tokens.double()), "its tokens are torch.float64, but the patches are torch.float32"),
        (GOOD._replace(tokens=GOOD.tokens.to("meta")), "its tokens are on meta"),
        (GOOD._replace(tokens=GOOD.tokens * torch.inf), "its tokens are not all finite"),
        (GOOD._replace(positions=GOOD.positions.float()), "its positions are torch.float32, but must be integers"),
        (GOOD._replace(positions=GOOD.positions + 5), r"its positions must lie in 0\.\.15"),
        (GOOD._replace(source=GOOD.source - 2), r"its source must lie in -1\.\.11"),
        (
            GOOD._replace(sizes=[1]),  # type: ignore[arg-type]
            "it must return a Reduction of tensors",
        ),
        (GOOD._replace(sizes=torch.ones(2, 11)), r"its sizes have the shape \[2, 11\]"),
        (GOOD._replace(sizes=torch.zeros(2, 12)), "its sizes must be positive"),
        (GOOD._replace(memory=torch.ones(2, 11)), r"its memory have the shape \[2, 11\]"),
    ],
)
def test_a_reducers_mistakes_are_one_line(reduction: Any, message: str, unchecked: None) -> None:
    patches, scores = torch.randn(2, PATCHES, 8), torch.rand(2, PATCHES)
    once = guarded_reducer("mine", lambda *_: reduction)
    stepwise = guarded_reducer("mine", Progressive(lambda *_: reduction, constant))
    assert isinstance(once, OneShot)
    assert isinstance(stepwise, Progressive)
    for call in (lambda: once.reduce(patches, scores, Budget(), GRID), lambda: stepwise.step(inside(), 12)):
        with pytest.raises(InvalidInput, match=f"The reducer 'mine' failed: {message}"):
            call()


def test_positions_of_any_integer_type_are_taken() -> None:
    small = GOOD._replace(positions=GOOD.positions.int(), source=GOOD.source.to(torch.int16))
    reducer = guarded_reducer("mine", lambda *_: small)
    assert isinstance(reducer, OneShot)
    taken = reducer.reduce(torch.randn(2, PATCHES, 8), torch.rand(2, PATCHES), Budget(), GRID)
    assert taken.positions.dtype == taken.source.dtype == torch.int64


@pytest.mark.parametrize("counts", [[9.5, 9, 9], "abc", None, [9, 9]])
def test_a_schedule_that_is_no_schedule_is_one_line(dinov3: Backbone, counts: Any, unchecked: None) -> None:
    reducer = guarded_reducer("mine", Progressive(lambda *_: GOOD, lambda *_: counts))
    with pytest.raises(InvalidInput, match="The reducer 'mine' failed: "):
        reducer.extent_for_cost(0.5, dinov3.geometry)


@pytest.mark.parametrize("wrong", [{"tokens": lambda *_: "12"}, {"products": lambda *_: None}])
def test_numbers_of_tokens_and_products_are_integers(dinov3: Backbone, wrong: Any, unchecked: None) -> None:
    with pytest.raises(InvalidInput, match="The reducer 'mine' failed: TypeError"):
        guarded_reducer("mine", OneShot(one_shot, **wrong)).cost(Extent(), dinov3.geometry)
