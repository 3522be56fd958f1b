"""Towers of images and texts, with and without CLS, from a run to its report, a comparison and a tuned model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import pad
from transformers import (
    CLIPConfig,
    CLIPModel,
    Siglip2Config,
    Siglip2Model,
    SiglipConfig,
    SiglipForImageClassification,
    SiglipModel,
)

import redi
from families import inputs_of, make_model, save_checkpoint, scramble
from redi.attention import ATTENTION_SCORES, cls_max, incoming_mass
from redi.backbone import load_backbone
from redi.backbone.classifier import final_feature
from redi.comparison.compare import compare
from redi.comparison.grid import Request
from redi.deploy.readout import ImageReadout
from redi.errors import BackboneError, ConfigError, InvalidInput
from redi.pipeline import execute
from redi.records.results import read_results
from redi.report.build import build_report
from redi.report.figures import write_figures
from redi.report.tables import paper_tables
from redi.runs.config import saved_config
from small_run import small_config, write_images

SIZE = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
VISION = {**SIZE, "patch_size": 8, "image_size": 48, "num_patches": 36}
TEXT = {**SIZE, "vocab_size": 99, "max_position_embeddings": 16, "projection_size": 32}
WHOLE = {
    "clip": (CLIPModel, CLIPConfig(vision_config=VISION, text_config=TEXT, projection_dim=24)),
    "siglip": (SiglipModel, SiglipConfig(vision_config=VISION, text_config=TEXT)),
    "siglip2": (Siglip2Model, Siglip2Config(vision_config=VISION, text_config=TEXT)),
}


@pytest.fixture(scope="module")
def siglip_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("siglip")
    write_images(folder)
    save_checkpoint("siglip", folder / "backbone")
    execute(small_config(folder, folder / "run"))
    return folder / "run"


@pytest.mark.parametrize("name", WHOLE)
def test_the_image_tower_of_a_whole_model_gives_its_embedding(name: str, tmp_path: Path) -> None:
    kind, config = WHOLE[name]
    model = scramble(kind(config))
    model.save_pretrained(tmp_path)  # type: ignore[operator]
    backbone, pixels = load_backbone(tmp_path), torch.randn(2, 3, 48, 48)
    inputs = inputs_of(model.vision_model, pixels) if name == "siglip2" else {"pixel_values": pixels}
    with torch.no_grad():
        expected = model.get_image_features(**inputs).pooler_output  # type: ignore[operator]
        embedding = backbone.image_embedding(backbone.encode(backbone.embed(pixels)))
    expected = expected / expected.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(embedding, expected, atol=1e-5, rtol=1e-5)


def test_only_models_of_images_and_texts_have_an_embedding(tmp_path: Path) -> None:
    for name in ("vit", "clip"):  # a CLIP tower without its projection has none
        backbone = load_backbone(save_checkpoint(name, tmp_path / name))
        with pytest.raises(BackboneError, match="no embedding that texts can be compared with"):
            backbone.image_embedding(torch.randn(1, 37, 32))


def test_a_run_without_cls_has_the_scores_that_read_none(siglip_run: Path) -> None:
    results = read_results(siglip_run)
    assert [row.name for row in results.rows] == ["dense", "random", "tfidf", "mass", "redi_mass"]
    assert results.notes.attention_scores == ["mass"]
    assert results.row("redi_mass", "probe").tokens == results.row("dense", "probe").tokens * 102 // 196
    tables = paper_tables(results)
    assert len(tables["table1-probe"].rows) == 5
    assert [row[0] for row in tables["table2-probe"].rows] == ["Incoming mass"]
    assert build_report(siglip_run).exists()
    assert write_figures(siglip_run)
    with pytest.raises(ConfigError, match="one of redi_mass, not 'redi_rollout'"):
        write_figures(siglip_run, row="redi_rollout")


@pytest.mark.parametrize("score", [name for name in ATTENTION_SCORES if name != "mass"])
def test_a_score_that_reads_cls_is_refused_in_one_line(score: str, siglip_run: Path) -> None:
    with pytest.raises(ConfigError, match=f"{score} reads the CLS token, and this backbone has none: use e.g. mass"):
        redi.compare(siglip_run, scorer=[f"redi_{score}"], labels=["none"])


def test_comparisons_and_inspection_without_cls(siglip_run: Path) -> None:
    config = saved_config(siglip_run)
    bundle = compare(config, ["scorers"], Request(reducers=["protected", "evit", "ppt", "zero-tprune"], costs=[0.85]))
    assert bundle is not None
    names = {line.row.name for entry in bundle.comparisons for line in entry.lines}
    assert "redi_mass~posterior" in names
    assert not [name for name in names if "cls" in name or "rollout" in name]
    image = next(Path(config.val).rglob("*.jpg"))
    assert set(redi.inspect(image, siglip_run).image.scores) == {"tfidf", "mass", "redi_mass"}


@pytest.mark.parametrize("name", ["clip_projection", "siglip", "siglip2"])
def test_a_tower_is_tuned_and_exported(name: str, tmp_path: Path) -> None:
    write_images(tmp_path, train=10, val=1)
    model = save_checkpoint(name, tmp_path / "model")
    tuned = redi.tune(model, tmp_path / "train", out=tmp_path / "tuned", calibration=8, repeats=2, size=48)
    assert tuned.tuned.points
    redi.export(model, tmp_path / "model.onnx", cost=0.7)
    assert (tmp_path / "model.onnx").exists()


def test_flattened_patches_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    model = make_model("siglip2")
    faster, inputs = redi.accelerate(model, cost=0.7), inputs_of(model, torch.randn(2, 3, 32, 32))
    padded = {name: pad(value, (0, 0, 0, 3) if value.ndim == 3 else (0, 3)) for name, value in inputs.items()}
    padded["spatial_shapes"] = inputs["spatial_shapes"]
    with torch.no_grad():
        short, long = faster(**inputs), faster(**padded)
    assert long.last_hidden_state.shape == (2, 19, 32)
    assert torch.equal(long.last_hidden_state[:, :16], short.last_hidden_state)
    assert not long.last_hidden_state[:, 16:].any()
    torch.testing.assert_close(faster(torch.zeros(1, 3, 32, 32)).pooler_output.shape, short.pooler_output[:1].shape)
    for changes, problem in (
        ({"spatial_shapes": torch.tensor([[4, 8]] * 2)}, "4x8 patches need at least 32 flattened patches"),
        ({"pixel_values": inputs["pixel_values"][..., :5]}, "of 192 values, not 16 of 5"),
        ({"spatial_shapes": torch.tensor([[4, 4], [2, 8]])}, "All images of a call must have one shape"),
        ({"pixel_attention_mask": torch.zeros(2, 16)}, "must be on for the 16 patches"),
        ({"spatial_shapes": None}, "need spatial_shapes"),
    ):
        with pytest.raises(InvalidInput, match=problem):
            faster(**{**inputs, **changes})


def test_a_classifier_on_a_tower_is_refused_not_stripped_of_its_head(tmp_path: Path) -> None:
    model: Any = SiglipForImageClassification(SiglipConfig(vision_config=VISION, text_config=TEXT))
    model.save_pretrained(tmp_path)
    with pytest.raises(BackboneError, match="a classifier on an image tower, whose head is not supported"):
        load_backbone(tmp_path)
    with pytest.raises(BackboneError, match="SiglipForImageClassification cannot be accelerated"):
        redi.accelerate(model)
    kind, config = WHOLE["clip"]
    with pytest.raises(
        BackboneError, match=r"CLIPModel has a tower for images and one for texts: .* model.vision_model"
    ):
        redi.accelerate(kind(config))


def test_tuning_reads_what_texts_are_compared_with(tmp_path: Path) -> None:
    """And without an embedding, the feature of the probe, which is normed."""
    pixels = torch.randint(0, 256, (3, 3, 48, 48), dtype=torch.uint8)
    for name in ("clip", "clip_projection", "siglip", "siglip2"):
        dense = redi.accelerate(make_model(name), cost=1.0)
        backbone = dense.backbone
        vectors = ImageReadout(dense, pixels, None, 2)._vectors(dense, pixels, "")
        with torch.no_grad():
            hidden = backbone.encode(backbone.embed(backbone.preprocessing.normalise(pixels)))
            joint = backbone.has_embedding
            expected = backbone.image_embedding(hidden) if joint else final_feature(backbone, hidden, prenorm=False)
        torch.testing.assert_close(vectors, expected, atol=1e-5, rtol=1e-5)


def test_pure_functions_without_cls() -> None:
    attention = torch.rand(2, 4, 9, 9)
    assert ATTENTION_SCORES["mass"].map([attention.mean(1)], attention[:, :, 0], 0).shape == (2, 9)
    assert incoming_mass(attention, 0).shape == (2, 9)
    with pytest.raises(InvalidInput, match=r"reads the CLS token, and there is none \(prefix 0\)"):
        cls_max(attention, 0)
