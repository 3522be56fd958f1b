"""What ``load_backbone("timm:...")`` accepts and what it says when it does not."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from PIL import Image
from safetensors.torch import load_file, save_file

from families import save_checkpoint
from redi.backbone import checkpoint, load_backbone
from redi.backbone.checkpoint import checkpoint_digest, checkpoint_folder
from redi.backbone.timm_loading import live_timm
from redi.errors import BackboneError
from timm_families import Small, edit_config, save_timm, small_timm
from timm_import import timm


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_checkpoint("timm_deit3", tmp_path / "deit3")


def edit_cfg(folder: Path, **changes: Any) -> None:
    cfg = json.loads((folder / "config.json").read_text())["pretrained_cfg"]
    edit_config(folder, pretrained_cfg={**cfg, **changes})


def test_a_folder_loads_with_and_without_the_prefix(folder: Path) -> None:
    """A run keeps the folder alone, so its format must speak for itself."""
    pixels = torch.randn(1, 3, 48, 48)
    named, plain = load_backbone(f"timm:{folder}"), load_backbone(folder)
    assert torch.equal(named.embed(pixels).sequence, plain.embed(pixels).sequence)
    assert checkpoint_folder(f"timm:{folder}") == folder


def test_a_digest_follows_the_weights_and_the_configuration(folder: Path) -> None:
    before = checkpoint_digest(folder)
    edit_cfg(folder, mean=[0.5, 0.5, 0.5])
    assert checkpoint_digest(folder) != before


def test_half_precision_on_disk_becomes_fp32(tmp_path: Path) -> None:
    backbone = load_backbone(save_checkpoint("timm_dinov3", tmp_path, dtype=torch.float16))
    assert {parameter.dtype for parameter in backbone.parameters()} == {torch.float32}


def test_constants_and_filter_come_from_the_checkpoint_and_geometry_does_not(folder: Path) -> None:
    edit_cfg(folder, mean=[0.1, 0.2, 0.3], std=[0.4, 0.5, 0.6], interpolation="bilinear")
    edit_cfg(folder, crop_pct=1.0, input_size=[3, 48, 48])
    preprocessing = load_backbone(folder).preprocessing
    assert (preprocessing.mean, preprocessing.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert preprocessing.resample == Image.Resampling.BILINEAR
    assert (preprocessing.shorter, preprocessing.size) == (128, 112)


@pytest.mark.parametrize("name", ["random", "nearest-exact", None], ids=str)
def test_a_filter_that_pillow_does_not_have_becomes_bicubic(folder: Path, name: str | None) -> None:
    edit_cfg(folder, interpolation=name)
    assert load_backbone(folder).preprocessing.resample == Image.Resampling.BICUBIC


@pytest.mark.parametrize("mean", [0.5, [1, 2], [float("nan")] * 3], ids=str)
def test_constants_that_make_no_sense_are_refused(folder: Path, mean: Any) -> None:
    edit_cfg(folder, mean=mean)
    with pytest.raises(BackboneError, match=r"three finite numbers|NaN is not a finite number"):
        load_backbone(folder)


def test_class_names_of_the_checkpoint(folder: Path) -> None:
    assert load_backbone(folder).class_names == [f"LABEL_{number}" for number in range(7)]
    edit_config(folder, label_names=list("abcdefg"), label_descriptions={"a": "first letter"})
    names = load_backbone(folder).class_names
    assert names is not None
    assert names[:2] == ["a, first letter", "b"]


def test_class_names_of_imagenet_bear_the_synset_and_the_words(tmp_path: Path) -> None:
    small = Small("deit3_small_patch16_224", 1000)
    folder = save_timm(small_timm(small), tmp_path, small)
    edit_cfg(folder, tag="fb_in22k_ft_in1k")
    names = load_backbone(folder).class_names
    assert names is not None
    assert len(names) == 1000
    assert names[0].startswith("n01440764, tench")
    edit_cfg(folder, tag="my_own")
    assert load_backbone(folder).class_names == [f"LABEL_{number}" for number in range(1000)]


def test_a_local_folder_causes_no_network_access(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a socket was opened")

    edit_cfg(folder, hf_hub_id="timm/other", url="https://example.org/weights.pth", source="hf-hub")
    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert load_backbone(f"timm:{folder}").depth == 3


def test_no_pickle_is_read_whatever_the_configuration_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("pickle was read")

    monkeypatch.setattr(torch, "load", refuse)
    torch.save({}, folder / "evil.pth")
    edit_cfg(folder, file=str(folder / "evil.pth"), custom_load=True)
    assert load_backbone(folder).depth == 3
    arguments = json.loads((folder / "config.json").read_text())["model_args"]
    edit_config(folder, model_args={**arguments, "checkpoint_path": str(folder / "evil.pth")})
    with pytest.raises(BackboneError, match="the model argument 'checkpoint_path'"):
        load_backbone(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(BackboneError, match=r"no model\.safetensors.*pickle.*refused"):
        load_backbone(folder)


def test_sizes_that_the_weights_do_not_have_are_refused_before_a_model_is_built(folder: Path) -> None:
    arguments = json.loads((folder / "config.json").read_text())["model_args"]
    changes = {"depth": 10**6, **dict.fromkeys(("embed_dim", "num_classes", "reg_tokens", "num_reg_tokens"), 10**9)}
    for change in ({field: value} for field, value in changes.items()):
        edit_config(folder, model_args={**arguments, **change})
        with pytest.raises(BackboneError, match=f"{next(iter(change))} = 10*, but the weights are those of a smaller"):
            load_backbone(folder)


def test_weights_that_do_not_fit_are_one_line(folder: Path) -> None:
    arguments = json.loads((folder / "config.json").read_text())["model_args"]
    for change in ({"depth": 4}, {"embed_dim": 64}, {"num_heads": 5}, {"patch_size": [8, 4]}):
        edit_config(folder, model_args={**arguments, **change})
        with pytest.raises(BackboneError) as caught:
            load_backbone(folder)
        assert "\n" not in str(caught.value)
    (folder / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(BackboneError, match="cannot be read"):
        load_backbone(folder)


def test_any_input_size_works_whatever_the_configuration_says(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    edit_config(folder, model_args={**config["model_args"], "dynamic_img_size": False})
    edit_cfg(folder, fixed_input_size=True)
    assert load_backbone(folder).embed(torch.randn(1, 3, 64, 80)).grid == (8, 10)


def test_a_wrong_name_is_one_line_with_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the Hub was asked")

    timm()
    monkeypatch.setattr(checkpoint, "snapshot_download", refuse)
    with pytest.raises(BackboneError, match=r"no model 'deit3_bas_patch16_224.*deit3_base_patch16"):
        load_backbone("timm:deit3_bas_patch16_224.fb_in1k")
    with pytest.raises(BackboneError, match=r"no weights called 'deit3_base_patch16_224\.fb_in2k'.*\.fb_in1k"):
        load_backbone("timm:deit3_base_patch16_224.fb_in2k")
    with pytest.raises(BackboneError, match="'resnet50' is not a plain VisionTransformer or Eva"):
        load_backbone("timm:resnet50.a1_in1k")
    with pytest.raises(BackboneError, match="the nearest names are "):
        load_backbone("timm:zzz")
    for name in ("timm:", "timm:./nowhere", "timm:a/b/c"):
        with pytest.raises(BackboneError, match="There is no"):
            load_backbone(name)


@pytest.mark.parametrize(
    ("small", "problem"),
    [
        (Small("vit_small_patch16_224", 0, {"in_chans": 1}), "does not take RGB images"),
        (Small("vit_small_patch16_18x2_224"), "has blocks of type ParallelThingsBlock"),
        (Small("vit_small_patch16_rope_mixed_224"), "differ from block to block"),
    ],
    ids=lambda value: value.architecture if isinstance(value, Small) else "",
)
def test_models_that_are_not_plain_are_refused(small: Small, problem: str, tmp_path: Path) -> None:
    folder = save_timm(small_timm(small), tmp_path, small)
    with pytest.raises(BackboneError, match=f"{problem}.*supported are timm's VisionTransformer"):
        load_backbone(folder)


def test_a_folder_of_transformers_is_not_timms(tmp_path: Path) -> None:
    folder = save_checkpoint("vit", tmp_path)
    with pytest.raises(BackboneError, match="names no timm architecture"):
        load_backbone(f"timm:{folder}")


def test_a_name_goes_to_timms_repository_at_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Any]] = []

    def download(name: str, **kwargs: Any) -> str:
        asked.append((name, kwargs["revision"]))
        assert all(file.endswith((".json", ".safetensors")) for file in kwargs["allow_patterns"])
        return str(folder)

    timm()
    monkeypatch.setattr(checkpoint, "snapshot_download", download)
    load_backbone("timm:deit3_base_patch16_224.fb_in1k", revision="v2")
    load_backbone("timm:deit3_base_patch16_224")
    load_backbone("timm:owner/model")
    assert asked[0] == ("timm/deit3_base_patch16_224.fb_in1k", "v2")
    assert asked[1][0].startswith("timm/deit3_base_patch16_224.fb_")
    assert asked[2][0] == "owner/model"


def test_no_network_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> str:
        raise LocalEntryNotFoundError.__new__(LocalEntryNotFoundError)

    timm()
    monkeypatch.setattr(checkpoint, "snapshot_download", fail)
    with pytest.raises(BackboneError, match=r"timm/vit_base_patch16_224\.mae .*cannot be reached"):
        load_backbone("timm:vit_base_patch16_224.mae")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ImportError("No module named 'timm'"), r"need timm .*pip install redi-vit\[timm\]"),
        (RuntimeError("operator torchvision::nms does not exist"), "install a torchvision built for"),
    ],
    ids=["missing", "broken"],
)
def test_timm_that_is_missing_or_broken_is_one_line(
    error: Exception, message: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusal:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "timm":
                raise error

    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Refusal(), *sys.meta_path])
    for name in (folder, "timm:vit_base_patch16_224.mae"):
        with pytest.raises(BackboneError, match=message):
            load_backbone(name)


def test_the_package_does_not_import_timm_by_itself() -> None:
    code = "import sys; sys.modules['timm'] = None; import redi.backbone"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("name", "offered"), [("dinov3", "dinov3"), ("mae", ".mae"), ("Deit3_base_patch16", "deit3_base_patch16")]
)
def test_the_nearest_names_hold_what_was_asked_for(name: str, offered: str) -> None:
    with pytest.raises(BackboneError, match=r"the nearest names are .*") as caught:
        load_backbone(f"timm:{name}")
    first = str(caught.value).split("the nearest names are ")[1].split(",")[0]
    assert offered in first


def test_an_attention_pool_of_another_kind_is_refused() -> None:
    model: Any = small_timm(Small("vit_base_patch16_siglip_224"))
    model.attn_pool = torch.nn.Identity()
    with pytest.raises(BackboneError, match=r"^vit_base_patch16_siglip_224 has an attention pool of type Id.*; .*$"):
        live_timm(model)


@pytest.mark.parametrize(
    "name", ["vit_base_patch16_rpn_224.sw_in1k", "vit_base_patch16_224.", "vit_base_patch16_clip_quickgelu_224.openai"]
)
def test_what_cannot_work_is_said_before_a_download(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: Any, **_options: Any) -> None:
        raise AssertionError("nothing may be downloaded")

    monkeypatch.setattr(checkpoint, "snapshot_download", refuse)
    with pytest.raises(BackboneError, match=r"blocks of type.*the nearest|no weights|a repository of vit_"):
        load_backbone(f"timm:{name}")


def test_weights_that_timm_does_not_miss_are_missed_here(tmp_path: Path) -> None:
    """timm reads a SigLIP tower that has no attention pool without insisting on every weight."""
    whole, file = Small("vit_base_patch16_siglip_224"), tmp_path / "model.safetensors"
    save_timm(small_timm(whole), tmp_path, whole)
    edit_config(tmp_path, architecture="vit_base_patch16_siglip_gap_224")
    assert load_backbone(tmp_path).depth == 3, "the weights of the pool are left over"
    weights = load_file(file)
    del weights["blocks.1.mlp.fc1.weight"]
    save_file(weights, file)
    with pytest.raises(BackboneError, match=r"^.* lacks 1 weights, e\.g\. blocks\.1\.mlp\.fc1\.weight: .*$"):
        load_backbone(tmp_path)


def test_a_head_without_pooling_is_no_classifier(tmp_path: Path) -> None:
    small = Small("vit_base_patch16_224", 7, {"global_pool": ""})
    folder = save_timm(small_timm(small), tmp_path, small)
    assert load_backbone(folder).head is None


def test_a_configuration_on_one_level_is_read(folder: Path) -> None:
    content = json.loads((folder / "config.json").read_text())
    flat = {**content.pop("pretrained_cfg"), **content, "mean": [0.5, 0.25, 0.5]}
    (folder / "config.json").write_text(json.dumps(flat))
    assert load_backbone(folder).preprocessing.mean == (0.5, 0.25, 0.5)


def test_names_with_gaps_are_numbered(folder: Path) -> None:
    edit_config(folder, label_names={"0": "first", "2": "third"})
    assert (load_backbone(folder).class_names or [])[:3] == ["first", "LABEL_1", "third"]
