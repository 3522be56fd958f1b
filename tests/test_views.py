"""Views, alignment and aggregation."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given, strategies as st
from torch import Tensor

from redi.errors import InvalidInput
from redi.score import minmax
from redi.views import View, aggregate, align, align_views, reference_view, validation_views

CENTRE = View((16, 16, 224, 224))


@st.composite
def boxes(draw: st.DrawFn) -> View:
    width, height = draw(st.integers(20, 400)), draw(st.integers(20, 300))
    left, top = draw(st.integers(0, 400 - width)), draw(st.integers(0, 300 - height))
    return View((left, top, width, height), draw(st.booleans()))


def patch_centres(view: View, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Image coordinates of a view's patch centres, in the order of its map."""
    left, top, width, height = view.box
    x = left + (torch.arange(columns, dtype=torch.float64) + 0.5) * width / columns
    y = top + (torch.arange(rows, dtype=torch.float64) + 0.5) * height / rows
    if view.flip:
        x = x.flip(0)
    return x.repeat(rows), y.repeat_interleave(columns)


@given(boxes(), st.sampled_from([(14, 14), (7, 5), (3, 8)]))
def test_a_linear_map_comes_back_clamped_at_the_edge_and_masked_by_the_box(view: View, grid: tuple[int, int]) -> None:
    reference = View((100, 40, 224, 210))
    rows, columns = grid

    def plane(x: Tensor, y: Tensor) -> Tensor:
        return (0.3 + 0.002 * x - 0.003 * y).float()

    x, y = patch_centres(view, rows, columns)
    values, valid = align(plane(x, y), view, reference, grid)
    target_x, target_y = patch_centres(reference, rows, columns)
    left, top, width, height = view.box
    inside = (target_x >= left) & (target_x <= left + width) & (target_y >= top) & (target_y <= top + height)
    assert torch.equal(valid, inside)
    # The plane itself inside the hull of the view's patch centres, the edge value beyond it.
    expected = plane(target_x.clamp(float(x.min()), float(x.max())), target_y.clamp(float(y.min()), float(y.max())))
    torch.testing.assert_close(values[inside], expected[inside], atol=1e-5, rtol=0)
    assert values[~inside].eq(0).all()


def test_aligning_the_reference_to_itself_changes_nothing() -> None:
    values = torch.rand(196)
    aligned, valid = align(values, CENTRE, CENTRE)
    assert torch.equal(aligned, values)
    assert valid.all()


def test_the_flip_of_the_reference_comes_back_mirrored() -> None:
    values = torch.rand(5, 196)
    aligned, valid = align(values, View(CENTRE.box, flip=True), CENTRE)
    mirrored = values.view(5, 14, 14).flip(-1).flatten(1)
    torch.testing.assert_close(aligned, mirrored)
    assert valid.shape == values.shape
    assert valid.all()


def test_a_flipped_reference_mirrors_the_result() -> None:
    values, view = torch.rand(196), View((40, 3, 160, 220))
    straight, valid = align(values, view, CENTRE)
    flipped, flipped_valid = align(values, view, View(CENTRE.box, flip=True))
    torch.testing.assert_close(flipped, straight.view(14, 14).flip(1).flatten())
    assert torch.equal(flipped_valid, valid.view(14, 14).flip(1).flatten())


def test_half_the_reference_by_hand() -> None:
    # A 2x2 grid over (0, 0, 4, 4); the view is its right half. Reference centres lie at x = 1, 3;
    # the view's own at 2.5, 3.5, so x = 3 is half way between them and x = 1 is outside.
    values, valid = align(torch.tensor([1.0, 3.0, 5.0, 9.0]), View((2, 0, 2, 4)), View((0, 0, 4, 4)))
    assert valid.tolist() == [False, True, False, True]
    assert values.tolist() == [0.0, 2.0, 0.0, 7.0]


def test_a_centre_on_the_border_of_the_box_is_inside() -> None:
    _, valid = align(torch.rand(4), View((1, 1, 2, 2)), View((0, 0, 4, 4)))
    assert valid.all()


def test_align_on_a_batch_equals_each_map_alone() -> None:
    view = View((30, 5, 150, 200), flip=True)
    maps = torch.rand(2, 3, 196)
    values, valid = align(maps, view, CENTRE)
    for i in range(2):
        for j in range(3):
            alone, alone_valid = align(maps[i, j], view, CENTRE)
            torch.testing.assert_close(values[i, j], alone)
            assert torch.equal(valid[i, j], alone_valid)


def test_aligning_all_views_of_a_batch_equals_one_at_a_time() -> None:
    views = [validation_views(300, 256, index) for index in range(5)]
    maps = torch.rand(5, 4, 196)
    values, valid = align_views(maps, views)
    for image in range(5):
        for view in range(4):
            alone, alone_valid = align(maps[image, view], views[image][view], views[image][0])
            torch.testing.assert_close(values[image, view], alone)
            assert torch.equal(valid[image, view], alone_valid)
    with pytest.raises(InvalidInput, match="4 views for each of 5 images"):
        align_views(maps, views[:4])


def test_aggregate_equals_a_naive_loop() -> None:
    values = torch.rand(4, 20)
    valid = torch.rand(4, 20) > 0.4
    valid[0] = True
    raw = []
    for i in range(20):
        covered = [values[v, i].item() for v in range(4) if valid[v, i]]
        raw.append(0.8 * sum(covered) / len(covered) + 0.2 * max(covered))
    torch.testing.assert_close(aggregate(values, valid), minmax(torch.tensor(raw)))


def test_aggregate_by_hand() -> None:
    # Patch 0: mean (.2 + .6) / 2, max .6: .44. Patch 1: only the first view: .5. Patch 2: 0.
    values = torch.tensor([[0.2, 0.5, 0.0], [0.6, 9.0, 0.0]])
    valid = torch.tensor([[True, True, True], [True, False, True]])
    result = aggregate(values, valid)
    assert result.tolist() == pytest.approx([0.88, 1.0, 0.0])


def test_aggregate_takes_batches_and_ignores_the_order_of_views() -> None:
    values, valid = torch.rand(6, 4, 20), torch.rand(6, 4, 20) > 0.3
    valid[:, 0] = True
    result = aggregate(values, valid)
    torch.testing.assert_close(result[2], aggregate(values[2], valid[2]))
    order = [2, 0, 3, 1]
    torch.testing.assert_close(result, aggregate(values[:, order], valid[:, order]))


@given(st.integers(256, 700), st.integers(256, 700), st.integers(0, 10**6), st.integers(0, 5))
def test_views_lie_inside_the_image_with_the_papers_scale_and_ratio(
    width: int, height: int, index: int, seed: int
) -> None:
    assume(min(width, height) == 256 or index % 2)
    centre, flipped, *drawn = validation_views(width, height, index, seed=seed)
    assert centre == reference_view(width, height)
    assert flipped == View(centre.box, flip=True)
    elongated = max(width, height) / min(width, height) > 1.5
    for view in drawn:
        left, top, w, h = view.box
        assert left >= 0
        assert top >= 0
        assert left + w <= width
        assert top + h <= height
        assert 0.74 <= w / h <= 1.35
        if not elongated:
            assert 0.595 <= w * h / (width * height) <= 1.0


def test_views_depend_on_seed_index_and_view_alone() -> None:
    first = [validation_views(300, 256, index) for index in range(50)]
    again = [validation_views(300, 256, index) for index in reversed(range(50))][::-1]
    assert first == again
    assert len({views[2] for views in first} | {views[3] for views in first}) > 95
    assert first != [validation_views(300, 256, index, seed=1) for index in range(50)]
    flips = [view.flip for views in first for view in views[2:]]
    assert 30 < sum(flips) < 70


def test_views_of_one_image_stay_what_they_are() -> None:
    """Cached scores depend on these; a change here must be deliberate."""
    views = validation_views(341, 256, 12345)
    assert views[0].box == (58, 16, 224, 224)
    assert views[2] == View((0, 27, 246, 227), flip=True)
    assert views[3] == View((57, 15, 264, 228), flip=False)


def test_very_elongated_images_fall_back_to_the_largest_central_crop() -> None:
    wide = validation_views(1024, 256, 0)[2]
    assert wide.box == (341, 0, 341, 256)
    tall = validation_views(256, 1024, 0)[3]
    assert tall.box == (0, 341, 256, 341)


def raises(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        call()


@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_refused() -> None:
    raises(lambda: View((0, 0, 0, 5)), "positive extent")
    raises(lambda: reference_view(200, 300), "does not fit")
    raises(lambda: align(torch.rand(195), CENTRE, CENTRE), "square grid")
    valid = torch.tensor([[True, False]])
    raises(lambda: aggregate(torch.rand(1, 2), valid), "lie in no view")
    raises(lambda: aggregate(torch.rand(1, 2) / 0, ~(valid & ~valid)), "finite")
    raises(lambda: aggregate(torch.rand(1, 3), valid), "same shape")
    raises(lambda: aggregate(torch.rand(1, 2), valid.float()), "must be boolean")
    raises(lambda: aggregate(torch.rand(2), valid[0]), "views patches")
    raises(lambda: align(torch.arange(196), CENTRE, CENTRE), "floating point")
    raises(lambda: align(torch.rand(196) / 0, CENTRE, CENTRE), "finite")
    raises(lambda: align(torch.tensor(1.0), CENTRE, CENTRE), "A map must be")
