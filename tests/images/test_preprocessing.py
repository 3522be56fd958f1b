"""From a picture to the input of a backbone."""

import pytest
import torch
from PIL import Image

from redi.errors import ImageError, InvalidInput
from redi.images import Preprocessing
from redi.images.preprocessing import FILTERS, crop, default_size, normalise, resampling, resize, shorter_side, to_bytes
from redi.views import View, reference_view, validation_views

MEAN, STD = (0.5, 0.5, 0.2), (0.5, 0.25, 0.1)


@pytest.mark.parametrize(
    ("size", "expected"),
    [((500, 375), (341, 256)), ((375, 500), (256, 341)), ((10, 20), (256, 512)), ((9, 9), (256, 256))],
)
def test_resize_makes_the_shorter_side_exact_and_truncates_the_longer(
    size: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert resize(Image.new("RGB", size)).size == expected


def gradient(width: int, height: int) -> Image.Image:
    image = Image.new("RGB", (width, height))
    image.putdata([(x % 256, y % 256, 7) for y in range(height) for x in range(width)])
    return image


def test_crop_cuts_the_box_and_mirrors_it() -> None:
    image = gradient(300, 256)
    view = View((30, 12, 224, 224))
    straight = to_bytes(crop(image, view))
    assert straight[0, 0, :3].tolist() == [30, 31, 32]
    assert straight[1, :3, 0].tolist() == [12, 13, 14]
    mirrored = to_bytes(crop(image, View(view.box, flip=True)))
    assert torch.equal(mirrored, straight.flip(2))
    assert crop(image, View((0, 0, 300, 200)), size=196).size == (196, 196)


def test_pixels_are_normalised_per_channel() -> None:
    image = Image.new("RGB", (4, 4), (255, 0, 51))
    pixels = normalise(to_bytes(image), MEAN, STD)
    assert pixels[:, 0, 0].tolist() == pytest.approx([1.0, -2.0, 0.0], abs=1e-6)


@pytest.mark.parametrize(("patch", "size", "shorter"), [(16, 224, 256), (14, 196, 224), (8, 112, 128)])
def test_every_patch_size_has_the_papers_grid_and_ratio(patch: int, size: int, shorter: int) -> None:
    assert default_size(patch) == size == 14 * patch
    assert shorter_side(size) == shorter


def test_filters_have_lower_case_names() -> None:
    assert resampling("bilinear") is Image.Resampling.BILINEAR
    assert resampling("lanczos") is Image.Resampling.LANCZOS


def test_filters_do_not_depend_on_the_version_of_pillow() -> None:
    assert list(FILTERS) == ["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]


@pytest.mark.parametrize("name", ["random", "", "Bicubic"])
def test_a_filter_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=rf"no resize filter '{name}'; choose one of nearest, .*bicubic, lanczos"):
        resampling(name)


def test_a_preprocessing_resizes_cuts_the_centre_and_normalises() -> None:
    picture = gradient(120, 90)
    preprocessing = Preprocessing(64, 56, MEAN, STD)
    resized = resize(picture, 64)
    assert resized.size == (85, 64)
    expected = normalise(to_bytes(crop(resized, reference_view(85, 64, 56), 56)), MEAN, STD)
    assert torch.equal(preprocessing(picture), expected)
    nearest = Preprocessing(64, 56, MEAN, STD, Image.Resampling.NEAREST)
    assert not torch.equal(nearest(picture), expected), "the filter is the backbone's own"


def test_a_picture_of_any_mode_is_taken() -> None:
    preprocessing = Preprocessing(16, 14, MEAN, STD)
    grey = preprocessing(Image.new("L", (20, 30), 51))
    assert torch.equal(grey, preprocessing(Image.new("RGB", (20, 30), (51, 51, 51))))


def test_cut_gives_the_reference_alone_or_the_four_views_of_an_index() -> None:
    picture = gradient(120, 90)
    preprocessing = Preprocessing(64, 56, MEAN, STD)
    resized = preprocessing.resized(picture)
    (reference,), pixels = preprocessing.cut(picture)
    assert reference == preprocessing.reference(resized) == reference_view(85, 64, 56)
    assert pixels.shape == (1, 3, 56, 56)
    assert pixels.dtype == torch.uint8
    views, four = preprocessing.cut(picture, index=7, seed=3)
    assert views == validation_views(85, 64, 7, 56, seed=3)
    for view, cut in zip(views, four, strict=True):
        assert torch.equal(cut, to_bytes(crop(resized, view, 56)))
    assert torch.equal(four[0], pixels[0])
    assert torch.equal(four[1], pixels[0].flip(2))
    assert preprocessing.cut(picture, index=8, seed=3)[0] != views


def test_bad_input_is_refused() -> None:
    with pytest.raises(ImageError, match="no pixels: its size is 0x5"):
        resize(Image.new("RGB", (0, 5)))
    with pytest.raises(ImageError, match="too elongated"):
        resize(Image.new("RGB", (1, 5000)))
    with pytest.raises(InvalidInput, match="beyond"):
        crop(gradient(256, 256), View((50, 0, 224, 224)))
