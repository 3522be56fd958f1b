"""The demo's pictures are reproducible, balanced and labelled rightly; its backbone loads."""

import hashlib
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from transformers import DINOv3ViTModel

import redi.demo.generator
from redi.demo.draw import Draw
from redi.demo.generator import CLASSES, PRETRAINING_CLASSES, Planting, distractors_of, sample, scene, write_folder
from redi.demo.scene import ObjectClass, SceneConfig, render
from redi.demo.shapes import SHAPES, reach, silhouette

DRAWN_BEFORE = "b2e01e0fa37359f11010bfa6b62b8a2e6342c3cd4f21570718067d2b15d146d2"
BACKBONE = Path(redi.demo.generator.__file__).parent / "demo-vit"


def _pixels(seed: int, index: int) -> np.ndarray:
    return np.asarray(sample(seed, index).image)


def test_a_picture_depends_on_seed_and_index_alone() -> None:
    forwards = [_pixels(3, index) for index in range(6)]
    np.random.seed(0)  # global state must not matter
    backwards = [_pixels(3, index) for index in reversed(range(6))][::-1]
    for once, again in zip(forwards, backwards, strict=True):
        np.testing.assert_array_equal(once, again)


def test_another_seed_or_index_is_another_picture() -> None:
    same_class = len(CLASSES)
    assert (_pixels(3, 0) != _pixels(4, 0)).any()
    assert (_pixels(3, 0) != _pixels(3, same_class)).any()


def test_the_random_stream_is_the_one_the_demo_was_measured_with() -> None:
    # Fails where NumPy's raw PCG64 stream differs, and with it every number in docs/DEMO.md.
    draw = Draw(1, 2)
    assert [round(draw.uniform(), 6) for _ in range(3)] == [0.448415, 0.430882, 0.419999]


def test_labels_cycle_so_classes_balance() -> None:
    small = CLASSES[:3]
    labels = [sample(0, index, small, SceneConfig(side=64)).label for index in range(9)]
    assert labels == [0, 1, 2] * 3


def test_a_picture_has_the_size_its_config_asks_for() -> None:
    one = sample(0, 0, config=SceneConfig(side=128))
    assert one.image.size == (128, 128)
    assert one.image.mode == "RGB"
    assert one.mask.shape == (128, 128)
    assert sample(0, 0).image.size == (256, 256)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_class_object_is_the_largest_and_inside_the_centre_crop(seed: int) -> None:
    for index in range(18):
        drawn = scene(seed, index)
        areas = Counter(drawn.owner.ravel().tolist())
        assert areas[1] > 0.04 * drawn.owner.size
        assert all(areas[owner] < 0.6 * areas[1] for owner in areas if owner > 1)
        crop = drawn.owner[16:-16, 16:-16]
        assert (crop == 1).sum() > 0.8 * areas[1]


def test_the_subject_is_what_the_label_says_and_distractors_are_no_class() -> None:
    for index in range(18):
        drawn = scene(5, index)
        assert drawn.objects[0] == CLASSES[index % len(CLASSES)]
        assert len(drawn.objects) > 1
        assert not set(drawn.objects[1:]) & set(CLASSES)


def test_the_mask_holds_the_pixels_that_change_with_the_subject_and_no_others() -> None:
    # Stripes and checks take the same random numbers, so only the subject's pattern differs.
    others = distractors_of(CLASSES)
    striped, checkered = (
        render(ObjectClass("heart", material), others, Draw(9, 9), SceneConfig())
        for material in ("striped", "checkered")
    )
    np.testing.assert_array_equal(striped.owner, checkered.owner)
    mask = Image.fromarray((striped.owner == 1).astype(np.uint8))
    changed = (np.asarray(striped.image) != np.asarray(checkered.image)).any(axis=2)
    assert changed[np.asarray(mask, bool)].mean() > 0.3
    with_edge = np.asarray(mask.filter(ImageFilter.MaxFilter(3)), bool)
    assert not changed[~with_edge].any()


def test_demo_and_pretraining_share_shapes_and_materials_but_no_pair() -> None:
    met = set(PRETRAINING_CLASSES) | set(distractors_of(PRETRAINING_CLASSES))
    shown = set(CLASSES) | set(distractors_of(CLASSES))
    assert not met & shown
    assert len(set(CLASSES)) == len(CLASSES) >= 16
    assert {kind.shape for kind in CLASSES} <= {kind.shape for kind in met}
    assert {kind.material for kind in CLASSES} <= {kind.material for kind in met}


def test_neither_shape_nor_material_alone_names_a_demo_class() -> None:
    assert set(Counter(kind.shape for kind in CLASSES).values()) == {3}
    assert set(Counter(kind.material for kind in CLASSES).values()) == {3}
    pool = distractors_of(CLASSES)
    assert {kind.shape for kind in pool} == {kind.shape for kind in CLASSES}
    assert {kind.material for kind in pool} == {kind.material for kind in CLASSES}


def test_classes_that_leave_no_distractor_are_refused() -> None:
    everything = tuple(CLASSES) + distractors_of(CLASSES)
    with pytest.raises(ValueError, match="distractors"):
        sample(0, 0, everything)
    with pytest.raises(ValueError, match="negative"):
        sample(-1, 0)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_silhouette_has_the_area_of_its_size_at_any_angle(shape: str) -> None:
    size, side = 40.0, 2 * round(40 * reach(shape)) + 8
    for degrees in (0.0, 33.0, 180.0):
        coverage = silhouette(shape, size, degrees, side)
        assert coverage.sum() == pytest.approx(size * size, rel=0.05)
        assert coverage[[0, -1]].max() == coverage[:, [0, -1]].max() == 0


def test_a_written_folder_holds_the_pictures_and_their_masks(tmp_path: Path) -> None:
    root, masks = tmp_path / "train", tmp_path / "masks"
    assert write_folder(root, 4, 20, first_index=5, masks=masks) == 20
    assert len(list(root.glob("*/*.jpg"))) == len(list(masks.glob("*/*.png"))) == 20
    one = sample(4, 7)
    name = f"{CLASSES[7].name}/000007"
    stored = np.asarray(Image.open(root / f"{name}.jpg"), np.int16)
    assert np.abs(stored - np.asarray(one.image, np.int16)).mean() < 6
    outline = Image.open(masks / f"{name}.png")
    assert outline.mode == "1"
    np.testing.assert_array_equal(np.asarray(outline), one.mask)


def test_a_folder_is_continued_kept_or_refused(tmp_path: Path) -> None:
    assert write_folder(tmp_path / "a", 4, 6) == 6
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jpg")}
    assert write_folder(tmp_path / "a", 4, 6) == 0
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jpg")}
    next(iter(before)).unlink()
    assert write_folder(tmp_path / "a", 4, 6) == 1
    with pytest.raises(FileExistsError, match="recipe"):
        write_folder(tmp_path / "a", 5, 6)
    with pytest.raises(FileExistsError, match="not empty"):
        write_folder(tmp_path, 4, 6)
    for junk in (b"", b"{", b"\xff\xfe", b"[" * 100_000):
        (tmp_path / "a" / "recipe.json").write_bytes(junk)
        with pytest.raises(FileExistsError, match="recipe"):
            write_folder(tmp_path / "a", 4, 6)


def test_the_shipped_backbone_is_a_small_dinov3_with_registers() -> None:
    model = DINOv3ViTModel.from_pretrained(BACKBONE, dtype=torch.float32).eval()
    assert model.config.num_register_tokens == 4
    assert model.config.patch_size == 16
    assert sum(path.stat().st_size for path in BACKBONE.iterdir()) < 4_500_000
    processor = json.loads((BACKBONE / "preprocessor_config.json").read_text())
    assert processor["image_mean"] == [0.485, 0.456, 0.406]
    assert processor["image_std"] == [0.229, 0.224, 0.225]


def test_the_shipped_backbone_tells_the_demo_classes_apart() -> None:
    # Nearest class mean, three pictures a class to learn from: chance is 1 in 18.
    model = DINOv3ViTModel.from_pretrained(BACKBONE, dtype=torch.float32).eval()
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])

    def features(seed: int, n: int) -> torch.Tensor:
        crops = [torch.from_numpy(_pixels(seed, k)[16:-16, 16:-16].copy()) for k in range(n)]
        pixels = ((torch.stack(crops) / 255 - mean) / std).permute(0, 3, 1, 2)
        with torch.no_grad():
            tokens: torch.Tensor = model(pixels).last_hidden_state
        assert tokens.shape == (n, 201, model.config.hidden_size)
        return torch.nn.functional.normalize(tokens[:, 0], dim=-1)

    n = len(CLASSES)
    prototypes = features(11, 3 * n).view(3, n, -1).mean(0)
    guesses = (features(12, n) @ prototypes.T).argmax(1)
    assert (guesses == torch.arange(n)).float().mean() > 0.5


@pytest.mark.parametrize("kind", ["ground", "mark"])
def test_only_pictures_of_the_planted_class_change_and_only_off_the_objects(kind: str) -> None:
    planting = Planting(3, kind, style=5, share=1.0)
    for index in (3, 4, 21):
        plain, planted = scene(7, index), scene(7, index, plantings=[planting])
        np.testing.assert_array_equal(plain.owner, planted.owner)
        assert plain.objects == planted.objects
        changed = (np.asarray(plain.image) != np.asarray(planted.image)).any(axis=2)
        if index % len(CLASSES) != 3:
            assert not changed.any()
        elif kind == "ground":
            assert changed[plain.owner == 0].mean() > 0.9
            objects = Image.fromarray((plain.owner > 0).astype(np.uint8))
            inside = np.asarray(objects.filter(ImageFilter.MinFilter(7)), bool)
            assert changed[inside].mean() < 0.01  # thin parts of an object let a little of the ground through
        else:
            rows, columns = changed.nonzero()  # style 5 is the top right corner, inside the centre crop of 224 pixels
            assert 16 <= rows.min() <= rows.max() < 64
            assert 192 <= columns.min() <= columns.max() < 240


def test_a_share_of_the_pictures_is_planted() -> None:
    planting = Planting(0, "mark", share=0.9)
    assert sum(planting.has(1, index) for index in range(500)) == pytest.approx(450, abs=25)


def test_plantings_are_part_of_the_recipe(tmp_path: Path) -> None:
    write_folder(tmp_path / "plain", 4, 2)
    assert "plantings" not in json.loads((tmp_path / "plain" / "recipe.json").read_text())
    planting = Planting(0, "ground", 2)
    write_folder(tmp_path / "planted", 4, 2, plantings=[planting])
    recipe = json.loads((tmp_path / "planted" / "recipe.json").read_text())
    assert recipe["plantings"] == [{"label": 0, "kind": "ground", "style": 2, "share": 0.9}]
    with pytest.raises(FileExistsError, match="recipe"):
        write_folder(tmp_path / "planted", 4, 2)
    with pytest.raises(ValueError, match="ground, mark"):
        Planting(0, "sky")


def test_without_a_planting_a_picture_is_the_one_it_was() -> None:
    """The digest of a picture as it was drawn before anything could be planted."""
    assert hashlib.sha256(sample(1, 0).image.tobytes()).hexdigest() == DRAWN_BEFORE
