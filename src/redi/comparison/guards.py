"""Guards around the user's own functions.

A function gets copies of its tensors, so that an operation in place changes nothing that other rows read. torch's
settings and random state are put back after each call. Its result is checked before anything is computed from it or
stored. Whatever it raises, ``sys.exit`` included, becomes a message of one line. Functions of the package are not
guarded: they change nothing, and copies take time.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from operator import index as as_integer
from typing import Any

import torch
from torch import Tensor

from redi.budget import Budget
from redi.errors import InvalidInput, RediError, one_line, printable
from redi.grid import Grid
from redi.reduction import Inside, OneShot, Progressive, Reducer, Reduction, Schedule
from redi.reduction.result import DROPPED
from redi.score import norm01
from redi.scorers import Dense, PatchScores, Scorer

#: Settings of torch that hold for the whole process and change results: how each is read and set.
SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_default_device, torch.set_default_device),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
)


@contextmanager
def unchanged_torch() -> Iterator[None]:
    """Put torch's settings and random state back as they were before the context."""
    before = [read() for read, _ in SETTINGS]
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            for (read, write), value in zip(SETTINGS, before, strict=True):
                if read() != value:
                    write(value)


def guarded_scorer(name: str, function: Callable[..., Any]) -> Scorer:
    """A user's scorer; its scores are finite FP32 numbers, one per patch."""

    def score(dense: Dense) -> PatchScores:
        scores = function(_copied(dense))
        shape = list(dense.patches.shape[:2])
        if not isinstance(scores, Tensor) or list(scores.shape) != shape:
            given = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise InvalidInput(f"it must give {shape} scores, not {given}")
        if scores.is_complex():
            raise InvalidInput("its scores are complex numbers")
        _require_device("scores", scores, dense.patches)
        scores = _finite("scores", scores.detach().float())
        if not torch.isfinite(norm01(scores)).all():
            raise InvalidInput("its scores are too far apart: their range is no finite FP32 number")
        return scores

    guarded: Scorer = _guard(f"scorer {name!r}", score)
    return guarded


def guarded_reducer(name: str, value: Any) -> Reducer:
    """A user's reducer: a :class:`OneShot`, a :class:`Progressive`, or a function that makes a one-shot reducer."""
    what = f"reducer {name!r}"
    if isinstance(value, Progressive):
        return replace(
            value,
            step=_guard(what, _checked_step(value.step)),
            schedule=_guard(what, _checked_schedule(value.schedule)),
            products=_guard(what, lambda *inputs: as_integer(value.products(*inputs))),
        )
    one_shot = value if isinstance(value, OneShot) else OneShot(value)
    from_words = one_shot.from_words
    return replace(
        one_shot,
        reduce=_guard(what, _checked_reduce(one_shot.reduce, one_shot.tokens)),
        tokens=_guard(what, lambda *inputs: as_integer(one_shot.tokens(*inputs))),
        products=_guard(what, lambda *inputs: as_integer(one_shot.products(*inputs))),
        from_words=from_words
        and _guard(what, lambda words: _guard(what, _checked_reduce(from_words(words.clone()), one_shot.tokens))),
    )


def _guard(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*inputs: Any) -> Any:
        try:
            with unchanged_torch():
                return function(*inputs)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever the user's code raises
            reason = str(error) if isinstance(error, RediError) else one_line(error)
            raise InvalidInput(f"The {what} failed: {printable(reason).rstrip('.')}.") from error

    return call


def _checked_reduce(
    reduce: Callable[..., Any], tokens: Callable[[Budget, Grid], int]
) -> Callable[[Tensor, Tensor, Budget, Grid], Reduction]:
    def checked(patches: Tensor, scores: Tensor, budget: Budget, grid: Grid) -> Reduction:
        reduction = reduce(patches.clone(), scores.clone(), budget, grid)
        return _checked(reduction, patches, tokens(budget, grid))

    return checked


def _checked_step(step: Callable[..., Any]) -> Callable[[Inside, int], Reduction]:
    return lambda inside, count: _checked(step(_copied(inside), count), inside.patches, count)


def _checked_schedule(schedule: Callable[..., Any]) -> Callable[[int, int, float], Schedule]:
    def checked(patches: int, depth: int, strength: float) -> Schedule:
        counts = tuple(map(as_integer, schedule(patches, depth, strength)))
        if len(counts) != depth:
            raise InvalidInput(f"its schedule has {len(counts)} blocks, but the backbone has {depth}")
        return counts

    return checked


def _checked(reduction: Any, patches: Tensor, count: int) -> Reduction:
    """A user's reduction of ``patches`` to ``count`` tokens, or an error that says what is wrong with it."""
    parts: dict[str, Any] = reduction._asdict() if isinstance(reduction, Reduction) else {"": None}
    optional = ("sizes", "memory")
    given = {name: part for name, part in parts.items() if not (name in optional and part is None)}
    if not all(isinstance(part, Tensor) for part in given.values()):
        raise InvalidInput(f"it must return a Reduction of tensors, not {type(reduction).__name__}")
    batch, n, dim = patches.shape
    tokens, positions, source, sizes, memory = reduction
    if tokens.ndim == 3 and tokens.shape[1] != count:
        raise InvalidInput(f"it must return {count} tokens, not {tokens.shape[1]}")
    _require_shape("tokens", tokens, (batch, count, dim))
    _require_shape("positions", positions, (batch, count))
    _require_shape("source", source, (batch, n))
    if tokens.dtype != patches.dtype:
        raise InvalidInput(f"its tokens are {tokens.dtype}, but the patches are {patches.dtype}")
    for name, values in (("sizes", sizes), ("memory", memory)):
        if values is not None:
            _require_shape(name, values, (batch, count))
    for part, tensor in given.items():
        _require_device(part, tensor, patches)
    return Reduction(
        _finite("tokens", tokens.detach()),
        _indices("positions", positions, 0, n - 1),
        _indices("source", source, DROPPED, count - 1),
        None if sizes is None else _positive("sizes", sizes.detach()),
        None if memory is None else _finite("memory", memory.detach()),
    )


def _copied(value: Any) -> Any:
    """The same value with tensors and lists of its own."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, list):
        return list(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{entry.name: _copied(getattr(value, entry.name)) for entry in fields(value)})
    return value


def _require_shape(part: str, tensor: Tensor, shape: Sequence[int]) -> None:
    if tuple(tensor.shape) != tuple(shape):
        raise InvalidInput(f"its {part} have the shape {list(tensor.shape)}, but must have {list(shape)}")


def _require_device(part: str, tensor: Tensor, like: Tensor) -> None:
    if tensor.device != like.device:
        raise InvalidInput(f"its {part} are on {tensor.device}, but the patches are on {like.device}")


def _finite(part: str, values: Tensor) -> Tensor:
    if not torch.isfinite(values).all():
        raise InvalidInput(f"its {part} are not all finite")
    return values


def _positive(part: str, values: Tensor) -> Tensor:
    if not (_finite(part, values) > 0).all():
        raise InvalidInput(f"its {part} must be positive")
    return values


def _indices(part: str, values: Tensor, low: int, high: int) -> Tensor:
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise InvalidInput(f"its {part} are {values.dtype}, but must be integers")
    if values.numel() and not low <= int(values.min()) <= int(values.max()) <= high:
        raise InvalidInput(f"its {part} must lie in {low}..{high}")
    return values.long()
