"""Odd image files: converted where a person would expect it, refused in one sentence otherwise."""

import os
import random
from math import isqrt
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from redi.errors import ImageError
from redi.images import MAX_PIXELS, load_image, to_rgb
from redi.images.decode import FORMATS, MAX_BYTES


def pixel(path: Path) -> tuple[int, ...]:
    image = load_image(path)
    assert image.mode == "RGB"
    value = image.getpixel((0, 0))
    assert isinstance(value, tuple)
    return value


@pytest.mark.parametrize(
    ("mode", "colour", "expected", "suffix"),
    [
        ("L", 100, (100, 100, 100), "png"),
        ("1", 1, (255, 255, 255), "png"),
        ("LA", (90, 10), (90, 90, 90), "png"),
        ("RGBA", (10, 20, 30, 0), (10, 20, 30), "png"),
        ("CMYK", (0, 255, 255, 0), (255, 0, 0), "tiff"),
        ("CMYK", (0, 255, 255, 0), (255, 0, 0), "jpg"),
    ],
)
def test_modes_become_rgb(tmp_path: Path, mode: str, colour: int, expected: tuple[int, ...], suffix: str) -> None:
    file = tmp_path / f"image.{suffix}"
    Image.new(mode, (8, 6), colour).save(file)
    assert np.allclose(pixel(file), expected, atol=2)  # JPEG is lossy


def test_palette_with_transparency_becomes_rgb(tmp_path: Path) -> None:
    image = Image.new("P", (8, 6), 1)
    image.putpalette([9, 8, 7, 200, 100, 50])
    image.save(tmp_path / "image.png", transparency=b"\x00\x80")
    assert pixel(tmp_path / "image.png") == (200, 100, 50)


def test_sixteen_bits_are_scaled_not_clipped(tmp_path: Path) -> None:
    values = np.full((6, 8), 0x8080, dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / "image.png")
    assert pixel(tmp_path / "image.png") == (128, 128, 128)
    Image.fromarray(values // 4).save(tmp_path / "image.tiff")
    assert pixel(tmp_path / "image.tiff") == (32, 32, 32)
    Image.fromarray(np.full((6, 8), 200, dtype=np.uint16)).save(tmp_path / "dark.png")
    assert pixel(tmp_path / "dark.png") == (0, 0, 0)


def test_floating_point_in_the_unit_interval_is_scaled(tmp_path: Path) -> None:
    Image.fromarray(np.full((6, 8), 0.5, dtype=np.float32)).save(tmp_path / "image.tiff")
    assert pixel(tmp_path / "image.tiff")[0] in (127, 128)


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by a quarter
    Image.new("RGB", (8, 6)).save(tmp_path / "image.jpg", exif=exif)
    assert load_image(tmp_path / "image.jpg").size == (6, 8)


def test_of_an_animation_the_first_frame_is_taken(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (8, 6), colour) for colour in ("red", "lime")]
    frames[0].save(tmp_path / "image.gif", save_all=True, append_images=frames[1:])
    assert pixel(tmp_path / "image.gif") == (255, 0, 0)


def test_truncated_file_is_refused(tmp_path: Path) -> None:
    whole = tmp_path / "whole.jpg"
    Image.effect_noise((64, 64), 80).save(whole)
    (tmp_path / "half.jpg").write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    with pytest.raises(ImageError, match=r"half\.jpg cannot be decoded: .*truncated"):
        load_image(tmp_path / "half.jpg")


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("not an image")
    with pytest.raises(ImageError, match=r"text\.jpg is not an image"):
        load_image(tmp_path / "text.jpg")
    (tmp_path / "empty.jpg").touch()
    with pytest.raises(ImageError, match=r"empty\.jpg is not an image"):
        load_image(tmp_path / "empty.jpg")
    with pytest.raises(ImageError, match="does not exist"):
        load_image(tmp_path / "missing.jpg")
    with pytest.raises(ImageError, match="is a folder"):
        load_image(tmp_path)


def test_a_format_that_starts_another_program_is_not_decoded_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *inputs: started.append(inputs))
    for file in (tmp_path / "image.eps", tmp_path / "image.jpg"):
        Image.new("RGB", (8, 6)).save(file, "EPS")
        for given in (file, file.read_bytes()):
            with pytest.raises(ImageError, match="is not an image in one of the formats JPEG, PNG"):
                load_image(given)
    assert not started


def test_every_format_is_one_of_pillows() -> None:
    Image.init()
    assert set(FORMATS) - {"AVIF"} <= set(Image.OPEN)


def test_a_pipe_or_a_device_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    for file in (tmp_path / "pipe.jpg", Path("/dev/zero")):
        with pytest.raises(ImageError, match="is not a regular file"):
            load_image(file)


def test_a_file_that_is_too_large_to_read_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "huge.jpg").open("wb") as file:
        file.truncate(MAX_BYTES + 1)  # a hole
    with pytest.raises(ImageError, match=r"huge\.jpg has 268,435,457 bytes, more than"):
        load_image(tmp_path / "huge.jpg")


@pytest.mark.parametrize("times", [1, 2])
def test_decompression_bomb_is_refused(tmp_path: Path, times: int) -> None:
    """Pillow warns beyond its limit and raises beyond twice its limit."""
    side = isqrt(times * MAX_PIXELS) + 1
    Image.new("1", (side, side)).save(tmp_path / "bomb.png")
    with pytest.raises(ImageError, match=r"bomb\.png has more than 89,478,485 pixels"):
        load_image(tmp_path / "bomb.png")


def test_the_limit_holds_where_pillows_is_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    side = isqrt(MAX_PIXELS) + 1
    Image.new("1", (side, side)).save(tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # Pillow's own switch
    with pytest.raises(ImageError, match="pixels"):
        load_image(tmp_path / "bomb.png")


def test_random_damage_never_raises_anything_else(tmp_path: Path) -> None:
    draw = random.Random(0)
    for suffix in ("jpg", "png", "gif", "webp", "tiff", "bmp"):
        whole = tmp_path / f"whole.{suffix}"
        Image.effect_noise((40, 30), 60).convert("RGB").save(whole)
        for _ in range(60):
            content = bytearray(whole.read_bytes())
            for _ in range(draw.randint(1, 20)):
                content[draw.randrange(len(content))] = draw.randrange(256)
            try:
                assert load_image(bytes(content)).mode == "RGB"
            except ImageError:
                continue


def test_the_limit_is_pillows() -> None:
    assert MAX_PIXELS == Image.MAX_IMAGE_PIXELS


def test_picture_without_pixels_is_refused() -> None:
    with pytest.raises(ImageError, match="no pixels: its size is 5x0"):
        to_rgb(Image.new("RGB", (5, 0)))
