"""Saved models: they come back as they were, transformers reads them after one import, and refuses them without."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import HfApi, ModelCard
from huggingface_hub.errors import LocalEntryNotFoundError
from PIL import Image
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForImageClassification,
    PreTrainedModel,
    ViTForImageClassification,
    ViTImageProcessorPil,
    pipeline,
)

from families import CHECKPOINTS, make_model, save_checkpoint
from redi.backbone import load_backbone
from redi.demo.generator import sample
from redi.deploy import Accelerated, Setting, accelerate, origin
from redi.deploy.tune import tune
from redi.errors import ArtifactError, BackboneError, ConfigError
from redi.records import drafts
from redi.records.tuning import TuneConfig
from redi.reduction.schedule import Shape
from timm_families import TIMM_CHECKPOINTS

PLAIN = """
import json, sys
from transformers import AutoModel, AutoModelForImageClassification, ViTForImageClassification, ViTModel, pipeline
folder, hub_name = sys.argv[1:]
loaders = {kind.__name__: kind.from_pretrained
           for kind in (AutoModel, AutoModelForImageClassification, ViTForImageClassification, ViTModel)}
loaders["pipeline"] = lambda place: pipeline("image-classification", model=place)
refusals = {}
for place in (folder, hub_name):
    for name, load in loaders.items():
        try:
            load(place)
        except (OSError, ValueError) as error:
            refusals[f"{name} {place}"] = str(error)
import redi.deploy
loaded = [type(loaders["AutoModelForImageClassification"](hub_name)).__name__,
          type(loaders["pipeline"](hub_name).model).__name__,
          redi.Accelerated.from_pretrained(hub_name).setting.cost]
print(json.dumps([refusals, loaded]))
"""


@pytest.fixture
def classifier() -> Accelerated:
    return accelerate(make_model("vit_head"), cost=0.7)


def picture(width: int = 59, height: int = 50) -> Image.Image:
    """A size for which transformers' own processors would round the place of the crop in another way."""
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8))


def outputs(model: Any, pixels: Tensor | None = None) -> dict[str, Tensor]:
    pixels = torch.randn(2, 3, 48, 48, generator=torch.Generator().manual_seed(3)) if pixels is None else pixels
    return dict(model(pixels))


def assert_same(model: Any, other: Any) -> None:
    expected = outputs(model)
    assert outputs(other).keys() == expected.keys()
    assert all(torch.equal(value, expected[key]) for key, value in outputs(other).items())


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_what_is_saved_comes_back(name: str, tmp_path: Path) -> None:
    given = save_checkpoint(name, tmp_path / "timm") if name in TIMM_CHECKPOINTS else make_model(name)
    setting = Setting(cost=0.72, shape=Shape(0, 3, 1.5, 0.2), protection=0.1, task="dense", restore="copy")
    model = accelerate(given, setting=setting).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "faster")
    again = Accelerated.from_pretrained(tmp_path / "faster")
    assert (again.setting, again.dtype) == (setting, torch.bfloat16)
    assert again.backbone.preprocessing == model.backbone.preprocessing
    assert again.backbone.class_names == model.backbone.class_names
    assert_same(model, again)
    auto: Any = AutoModel if model.backbone.head is None else AutoModelForImageClassification
    assert_same(model, auto.from_pretrained(tmp_path / "faster"))
    dense: Any = model.backbone.model
    if isinstance(dense, PreTrainedModel):  # the original is there as an ordinary checkpoint
        options: dict[str, Any] = {"add_pooling_layer": False} if name == "mae" else {}
        plain = type(dense).from_pretrained(tmp_path / "faster" / "dense", **options)
        assert all(torch.equal(value, dense.state_dict()[key]) for key, value in plain.state_dict().items())


@pytest.mark.parametrize("name", ["vit_head", "dinov2", "timm_deit3"])
def test_a_pipeline_of_a_folder_sees_a_picture_as_we_do(name: str, tmp_path: Path) -> None:
    folder = save_checkpoint(name, tmp_path / "given")
    model = accelerate(folder, cost=0.7)
    model.save_pretrained(tmp_path / "faster")
    expected = outputs(model, model.backbone.preprocessing(picture())[None])
    task: Any = "image-classification" if "logits" in expected else "image-feature-extraction"
    answer: Any = pipeline(task, model=str(tmp_path / "faster"))(picture())
    if "logits" in expected:
        scores, classes = expected["logits"][0].softmax(dim=0).topk(5)
        assert [entry["label"] for entry in answer] == [f"LABEL_{number}" for number in classes.tolist()]
        assert [entry["score"] for entry in answer] == pytest.approx(scores.tolist(), rel=1e-6)
    else:
        assert answer == expected["last_hidden_state"].tolist()


def test_plain_transformers_refuses_and_one_import_lets_it_load_from_the_hub(
    classifier: Accelerated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A push goes into the cache's own layout, from which another process reads it without a network."""
    snapshot = tmp_path / "hub" / "models--me--faster" / "snapshots" / ("0" * 40)
    options: dict[str, Any] = {}

    def upload(_api: HfApi, *, repo_id: str, folder_path: Path, **rest: Any) -> None:
        assert repo_id == "me/faster"
        shutil.copytree(folder_path, snapshot)
        options.update(rest)

    class Repository(str):
        repo_id = "me/faster"

    monkeypatch.setattr(HfApi, "create_repo", lambda *_, **__: Repository("https://hub/me/faster"))
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    address = classifier.push_to_hub("me/faster", license="mit", private=True, commit_message="First")
    assert (address, options) == ("https://hub/me/faster", {"commit_message": "First"})
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text(snapshot.name)
    command = [sys.executable, "-c", PLAIN, str(snapshot), "me/faster"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "hub")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    refusals, loaded = json.loads(done.stdout.splitlines()[-1])
    assert len(refusals) == 10
    for loader, message in refusals.items():
        # A class of its own does not look at the model type, but finds no weights.
        assert ("model.safetensors" if loader.startswith("ViT") else "redi_accelerated") in message, loader
    assert loaded == ["Accelerated", "Accelerated", 0.7]


def test_a_push_that_fails_is_one_line(classifier: Accelerated, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError("401\nand more")

    monkeypatch.setattr(HfApi, "create_repo", refuse)
    with pytest.raises(BackboneError, match=r"^me/faster cannot be published on the Hub \(ConnectionError: 401\)$"):
        classifier.push_to_hub("me/faster")


def test_an_auto_class_for_something_else_refuses(classifier: Accelerated, tmp_path: Path) -> None:
    classifier.save_pretrained(tmp_path / "classifier")
    accelerate(make_model("vit"), cost=0.7).save_pretrained(tmp_path / "encoder")
    with pytest.raises(ValueError, match="AcceleratedEncoderConfig"):
        AutoModelForImageClassification.from_pretrained(tmp_path / "encoder")
    with pytest.raises(BackboneError, match=r"^\S+ holds an accelerated model: load it with redi.Acc.*dense.*$"):
        accelerate(tmp_path / "classifier")


def test_common_options_work_and_what_would_be_ignored_is_refused(classifier: Accelerated, tmp_path: Path) -> None:
    classifier.save_pretrained(tmp_path)
    auto: Any = AutoModelForImageClassification
    options: dict[str, Any]
    for options in ({"dtype": "bfloat16"}, {"torch_dtype": torch.bfloat16}, {"dtype": torch.bfloat16}):
        assert auto.from_pretrained(tmp_path, **options).dtype == torch.bfloat16
    for options in ({"device_map": "cpu"}, {"device_map": {"": "cpu"}, "dtype": "auto"}, {"use_safetensors": True}):
        assert auto.from_pretrained(tmp_path, **options).dtype == torch.float32
    refused: list[tuple[dict[str, Any], str]] = [
        ({"num_labels": 3}, "id2label cannot be changed"),
        ({"output_attentions": True}, "output_attentions cannot be changed"),
        ({"attn_implementation": "eager"}, "attn_implementation cannot be changed"),
        ({"quantization_config": {}}, "takes no quantization_config"),
        ({"device_map": {"a": 0, "b": 1}}, "lies on one device"),
        ({"device_map": "cuda:99"}, "no cuda:99 here"),
        ({"dtype": "int8"}, "must be a floating-point type"),
    ]
    for options, message in refused:
        with pytest.raises(ConfigError, match=rf"^.*{message}.*$"):
            auto.from_pretrained(tmp_path, **options)


def test_a_folder_of_something_else_is_neither_written_nor_read(classifier: Accelerated, tmp_path: Path) -> None:
    own = save_checkpoint("vit_head", tmp_path / "own")
    before = {file.name: file.read_bytes() for file in own.iterdir()}
    with pytest.raises(ConfigError, match=r"^\S+own holds config.json, which is not of an accelerated model: .*$"):
        classifier.save_pretrained(own)
    assert {file.name: file.read_bytes() for file in own.iterdir()} == before
    with pytest.raises(BackboneError, match=r"^\S+own holds no accelerated model: make one with redi.accelerate\(\).$"):
        Accelerated.from_pretrained(own)
    classifier.save_pretrained(tmp_path / "damaged")
    processor = tmp_path / "damaged" / "preprocessor_config.json"
    written = json.loads(processor.read_text())
    processor.write_text('{"image_processor_type": "AcceleratedImageProcessor", "size": 3}')
    with pytest.raises(BackboneError, match=r"^preprocessor_config.json of an accelerated model is damaged: save.*$"):
        Accelerated.from_pretrained(tmp_path / "damaged")
    for name, value in (("image_mean", []), ("image_std", [0, 0, 0]), ("size", {"shortest_edge": 10**9})):
        processor.write_text(json.dumps({**written, name: value}))
        with pytest.raises(BackboneError, match=r"^preprocessor_config.json of an accelerated model is damaged"):
            Accelerated.from_pretrained(tmp_path / "damaged")
    processor.write_text(json.dumps({**written, "image_std": [float("nan")] * 3}))
    with pytest.raises(
        BackboneError, match=r"preprocessor_config\.json cannot be read: ValueError: NaN is not a finite"
    ):
        Accelerated.from_pretrained(tmp_path / "damaged")
    processor.unlink()
    with pytest.raises(BackboneError, match=r"^There is no preprocessor_config.json in \S+: save the model again.$"):
        Accelerated.from_pretrained(tmp_path / "damaged")
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactError, match=r"^\S+file cannot be written: .*$"):
        classifier.save_pretrained(tmp_path / "file")
    live = accelerate(make_model("timm_deit3"), cost=0.7)
    with pytest.raises(BackboneError, match=r"^A live model of timm does not know how it was created.*by its name.*$"):
        live.save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_saving_again_replaces_what_was_there(classifier: Accelerated, tmp_path: Path) -> None:
    classifier.save_pretrained(tmp_path)
    again = Accelerated.from_pretrained
    cheaper = again(tmp_path).at_cost(0.6)
    (tmp_path / ".git").mkdir()
    (tmp_path / "tune.json").write_text("of an earlier model")
    cheaper.save_pretrained(tmp_path)  # whose weights may still be read from the file that is replaced
    assert again(tmp_path).setting.cost == 0.6
    assert_same(cheaper, again(tmp_path))
    assert (tmp_path / ".git").is_dir()
    assert not (tmp_path / "tune.json").exists()


@pytest.mark.parametrize("kill", [False, True])
def test_a_save_that_is_cut_off_anywhere_leaves_one_model_or_the_other_or_none(
    kill: bool, classifier: Accelerated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every step of putting the files in place, by an exception and by an end that cleans nothing up."""
    first, second = classifier, accelerate(make_model("vit_head"), cost=0.8)
    with torch.no_grad():
        next(second.backbone.model.parameters()).mul_(2)
    expected = {model.setting.cost: outputs(model)["logits"] for model in (first, second)}
    seen: list[str] = []
    place = 0
    while True:
        folder = tmp_path / str(place)
        first.save_pretrained(folder)
        with monkeypatch.context() as patched:
            left = [place]

            def step(_path: Any, *_rest: Any, real: Any, left: list[int] = left, **options: Any) -> Any:
                if left[0] == 0:
                    raise SystemExit("here")
                left[0] -= 1
                return real(_path, *_rest, **options)

            patched.setattr(Path, "replace", partialmethod(step, real=Path.replace))
            patched.setattr(shutil, "rmtree", partial(step, real=shutil.rmtree))
            if kill:  # what cleans up after an exception does not run either
                patched.setattr(drafts, "_remove", lambda _: None)
            try:
                second.save_pretrained(folder)
                seen.append("whole")
            except SystemExit:
                seen.append("cut off")
        if (folder / "config.json").exists():
            again = Accelerated.from_pretrained(folder)
            torch.testing.assert_close(outputs(again)["logits"], expected[again.setting.cost])
            seen[-1] += f", {again.setting.cost:g}"
        else:
            with pytest.raises(BackboneError, match=r"^The last save to \S+ was cut off, .*: save the model again\.$"):
                Accelerated.from_pretrained(folder)
            with pytest.raises((OSError, ValueError)):
                AutoModelForImageClassification.from_pretrained(folder)
            seen[-1] += ", refused"
        first.save_pretrained(folder)
        again = Accelerated.from_pretrained(folder)
        torch.testing.assert_close(outputs(again)["logits"], expected[0.7])
        assert not list(folder.glob(".*")), "no hidden copy is left"
        if seen[-1].startswith("whole"):
            break
        place += 1
    assert "cut off, refused" in seen
    assert seen[-1] == "whole, 0.8"
    assert len(seen) > 10, "one for each step"


def test_files_of_the_user_in_a_saved_model_are_refused_before_anything_is_touched(
    classifier: Accelerated, tmp_path: Path
) -> None:
    folder = tmp_path / "faster"
    classifier.save_pretrained(folder)
    (tmp_path / "own").mkdir()
    for name in ("notes.txt", "dense/notes.txt", "dense/model-mine.safetensors", "dense/more/a.txt", "dense"):
        path = folder / name
        if name == "dense":
            shutil.rmtree(path)
            path.symlink_to(tmp_path / "own")
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text("mine")
        before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
        with pytest.raises(ConfigError, match=r"^\S+ holds \S+, which is not of an accelerated model: choose another"):
            classifier.at_cost(0.6).save_pretrained(folder)
        assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before
        if path.is_file():
            path.unlink()
            shutil.rmtree(folder / "dense" / "more", ignore_errors=True)
    assert not list((tmp_path / "own").iterdir())


def test_a_live_model_is_published_with_the_constants_of_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_checkpoint("vit_head", tmp_path / "given")
    ViTImageProcessorPil(image_mean=[0.5] * 3, image_std=[0.25] * 3, size={"height": 64, "width": 64}).save_pretrained(
        folder
    )
    live = ViTForImageClassification.from_pretrained(folder)
    preprocessing = accelerate(live, cost=0.7).backbone.preprocessing
    assert (preprocessing.mean, preprocessing.std, preprocessing.size) == ((0.5,) * 3, (0.25,) * 3, 64)
    live.config.name_or_path = "me/given"  # as if it came from the Hub, and its processor did not
    model = accelerate(live, cost=0.7)
    assert model.original.base_model == "me/given"
    reachable = False

    def download(_name: str, file: str, local_files_only: bool) -> str:
        if local_files_only or not reachable:
            raise LocalEntryNotFoundError("not here")
        return str(folder / file)

    monkeypatch.setattr(origin, "hf_hub_download", download)
    with pytest.raises(BackboneError, match=r"^The image processor of me/given is not in the local cache, and the Hub"):
        model.save_pretrained(tmp_path / "faster")
    reachable = True
    model.save_pretrained(tmp_path / "faster")
    again = Accelerated.from_pretrained(tmp_path / "faster")
    assert (again.backbone.preprocessing.mean, again.backbone.preprocessing.std) == ((0.5,) * 3, (0.25,) * 3)
    assert again.original.base_model == "me/given"
    assert load_backbone(tmp_path / "faster" / "dense").preprocessing.mean == (0.5,) * 3


def test_the_card_has_the_curve_its_data_and_no_local_path(tmp_path: Path) -> None:
    headed = save_checkpoint("vit_head", tmp_path / "vit-own")
    (tmp_path / "photos").mkdir()
    for index in range(24):
        sample(3, index).image.resize((64, 64)).save(tmp_path / "photos" / f"{index:02}.png")
    config = TuneConfig(str(headed), str(tmp_path / "photos"), calibration=8, costs=(0.6, 0.9), workers=0)
    tuned = tune(replace(config, repeats=2, batch=4))
    (tmp_path / "tuned").mkdir()
    tuned.write(tmp_path / "tuned")
    tuned.setting.save(tmp_path / "tuned" / "setting.json")
    model = accelerate(headed, cost=0.6, setting=tmp_path / "tuned" / "setting.json")
    model.save_pretrained(tmp_path / "faster", license="mit")
    card = (tmp_path / "faster" / "README.md").read_text()
    code = card.partition("```python\n")[2]
    assert code.startswith("import redi.deploy ")
    assert f"on {tuned.images} images of photos that" in card
    assert f"| **{tuned.points[0].cost:.3f}** | **{tuned.points[0].speedup.median:.2f} (" in card
    assert f"| {tuned.points[1].cost:.3f} | {tuned.points[1].speedup.median:.2f} (" in card
    metadata = ModelCard(card).data.to_dict()
    assert (metadata["library_name"], metadata["license"]) == ("redi", "mit")
    assert metadata["pipeline_tag"] == "image-classification"
    for file in ("README.md", "tune.json", "config.json", "setting.json", "dense/config.json"):
        assert str(tmp_path) not in (tmp_path / "faster" / file).read_text()
    again = Accelerated.from_pretrained(tmp_path / "faster")
    again.save_pretrained(tmp_path / "again" / "faster")
    assert (tmp_path / "again" / "faster" / "README.md").read_text() == card
    again.at_cost(0.7).save_pretrained(tmp_path / "other")
    assert "is not among those that were measured" in (tmp_path / "other" / "README.md").read_text()
    accelerate(headed, setting=Setting(0.6, Shape(0, 2))).save_pretrained(tmp_path / "unknown")
    assert "Not measured: " in (tmp_path / "unknown" / "README.md").read_text()
