"""Scenes: pairs of files, sizes, buckets, void, and what is wrong in one line."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from redi.errors import ConfigError, CorpusError, ImageError
from redi.images.preprocessing import Preprocessing
from redi.images.scenes import (
    VOID,
    SceneDataset,
    Scenes,
    buckets,
    class_values,
    find_class_file,
    fitted,
    picture_size,
    read_class_names,
    read_label_map,
    to_png,
)
from scenes import CLASSES, VOID_VALUE, write_part, write_scenes


def test_pairs_are_found_by_stem_and_a_limit_is_spread_evenly(tmp_path: Path) -> None:
    root = write_part(tmp_path / "part", 0, 6)
    assert Scenes(root).stems == [f"{k:03d}" for k in range(6)]
    assert Scenes(root, limit=3).stems == ["000", "002", "004"]
    assert Scenes(root, limit=9).stems == Scenes(root).stems


def test_a_survey_has_the_sizes_and_every_value(tmp_path: Path) -> None:
    survey = Scenes(write_part(tmp_path / "part", 0, 2)).survey()
    assert survey.sizes == survey.label_sizes == [(48, 64), (48, 48)]
    assert set(survey.values) <= {0, 1, 2, VOID_VALUE}
    assert survey.values[VOID_VALUE] == "000.png"


def test_the_fingerprint_notices_a_changed_label_map(tmp_path: Path) -> None:
    root = write_part(tmp_path / "part", 0, 2)
    before = Scenes(root).fingerprint()
    assert Scenes(root).fingerprint() == before
    Image.fromarray(np.zeros((48, 64), np.uint8)).save(root / "labels" / "000.png")
    assert Scenes(root).fingerprint() != before


@pytest.mark.parametrize(
    ("size", "asked", "expected"),
    [
        ((360, 480), (), (350, 476)),  # CamVid with patches of 14: 25 x 34
        ((360, 480), (180,), (168, 238)),
        ((360, 480), (100, 300), (98, 294)),
        ((5, 30), (), (14, 28)),
    ],
)
def test_the_input_is_the_largest_multiple_of_the_patch(
    size: tuple[int, int], asked: tuple[int, ...], expected: tuple[int, int]
) -> None:
    assert fitted(size, 14, asked) == expected


def test_a_bucket_has_one_size_and_every_scene_is_in_one() -> None:
    sizes = [(2, 2), (1, 1), (2, 2), (2, 2), (1, 1)]
    plan = buckets(sizes, 2)
    assert plan == [[0, 2], [3], [1, 4]]
    assert sorted(index for batch in plan for index in batch) == list(range(5))


def test_a_batch_has_resized_pictures_and_label_maps_as_they_are(tmp_path: Path) -> None:
    scenes = Scenes(write_part(tmp_path / "part", 0, 3))
    sizes = [fitted(size, 14) for size in scenes.survey().sizes]
    dataset = SceneDataset(scenes, sizes, Preprocessing(48, 42, (0.5,) * 3, (0.5,) * 3), VOID_VALUE)
    first, second = dataset.batches(buckets(sizes, 2), workers=0)
    assert first.indices == [0, 2]
    assert first.pixels.shape == (2, 3, 42, 56)
    assert [tuple(labels.shape) for labels in first.labels] == [(48, 64), (48, 64)]
    assert second.pixels.shape == (1, 3, 42, 42)
    original = scenes.label_map(0)
    assert torch.equal(first.labels[0] == VOID, original == VOID_VALUE)
    assert torch.equal(first.labels[0][original != VOID_VALUE], original[original != VOID_VALUE])


def test_label_maps_of_every_index_mode_are_read(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.uint8).reshape(3, 4)
    grey, palette, wide = (Image.fromarray(values) for values in (values, values, values.astype(np.uint16)))
    palette.putpalette([7] * 768)  # makes it a palette image of the same numbers
    for number, image in enumerate((grey, palette, wide)):
        image.save(tmp_path / f"{number}.png")
        assert torch.equal(read_label_map(tmp_path / f"{number}.png"), torch.from_numpy(values))
    (tmp_path / "again.png").write_bytes(to_png(torch.from_numpy(values)))
    assert torch.equal(read_label_map(tmp_path / "again.png"), torch.from_numpy(values))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda file: Image.new("RGB", (4, 4)).save(file), "not an index map"),
        (lambda file: file.write_bytes(b"no picture"), "cannot be read as a PNG"),
        (lambda file: Image.fromarray(np.full((2, 2), 300, np.uint16)).save(file), "a value of 300"),
    ],
)
def test_a_bad_label_map_is_one_line(tmp_path: Path, make: object, message: str) -> None:
    assert callable(make)
    make(tmp_path / "map.png")
    with pytest.raises(ImageError, match=message):
        read_label_map(tmp_path / "map.png")


def test_missing_folders_and_partners_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="has no folder images"):
        Scenes(tmp_path)
    root = write_part(tmp_path / "part", 0, 3)
    (root / "labels" / "001.png").unlink()
    with pytest.raises(CorpusError, match=r"001 has no label map of the same stem\."):
        Scenes(root)
    (root / "images" / "001.jpg").unlink()
    (root / "images" / "002.jpg").unlink()
    with pytest.raises(CorpusError, match="002 has no image of the same stem"):
        Scenes(root)


def test_a_label_map_of_another_shape_is_refused(tmp_path: Path) -> None:
    root = write_part(tmp_path / "part", 0, 1)
    Image.fromarray(np.zeros((64, 48), np.uint8)).save(root / "labels" / "000.png")
    with pytest.raises(CorpusError, match="other proportions"):
        Scenes(root).survey()


def test_an_upright_size_respects_the_orientation(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (30, 20)).save(tmp_path / "turned.jpg", exif=exif)
    assert picture_size(tmp_path / "turned.jpg") == (30, 20)


def test_void_is_the_largest_value_that_is_no_class() -> None:
    names = ["a", "b", "c"]
    assert class_values({0: "f", 2: "f", 3: "g"}, names, None) == (names, 3)
    assert class_values({0: "f", 2: "f"}, names, None) == (names, VOID)
    assert class_values({0: "f", 2: "f", 255: "g"}, [], None) == (["class 0", "class 1", "class 2"], 255)
    assert class_values({0: "f", 1: "f", 9: "g"}, [], 9) == (["class 0", "class 1"], 9)


@pytest.mark.parametrize(
    ("values", "names", "void", "message"),
    [
        ({0: "f", 3: "odd.png", 4: "g"}, ["a", "b", "c"], None, "odd.png has the label 3, but there are 3 class names"),
        ({0: "f"}, ["a", "b"], 1, "--void 1 is the number of a class, b"),
        ({0: "f"}, ["a", "b"], 300, "--void must lie in"),
        ({0: "f", 255: "f"}, [], None, "fewer than two classes"),
        ({0: "f", 255: "odd.png"}, [], 7, "odd.png has the label 255, which is always void"),
        ({0: "f", 1: "f", 255: "odd.png"}, ["a", "b"], 7, "odd.png has the label 255, which is always void"),
    ],
)
def test_labels_outside_the_classes_are_one_line(
    values: dict[int, str], names: list[str], void: int | None, message: str
) -> None:
    with pytest.raises((ConfigError, CorpusError), match=message):
        class_values(values, names, void)


def test_a_byte_order_mark_is_no_part_of_the_first_class(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("road\nsky\n", encoding="utf-8-sig")
    assert read_class_names(tmp_path / "classes.txt") == ["road", "sky"]


def test_class_names_lie_in_or_beside_the_scenes(tmp_path: Path) -> None:
    root = write_scenes(tmp_path, 1, 1)
    file = find_class_file(root / "train")
    assert file is not None
    assert read_class_names(file) == list(CLASSES)
    (root / "train" / "classes.txt").write_text("one\ntwo\n\n")
    file = find_class_file(root / "train")
    assert file is not None
    assert read_class_names(file) == ["one", "two"]
    file.write_text("alone\n")
    with pytest.raises(ConfigError, match="2 to 255 class names"):
        read_class_names(file)
