"""What ``load_backbone`` accepts and what it says when it does not."""

import json
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError
from safetensors.torch import load_file
from transformers import ViTForImageClassification

from families import save_checkpoint
from redi.backbone import checkpoint, load_backbone
from redi.errors import BackboneError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_checkpoint("vit_head", tmp_path / "vit")


def edit(file: Path, **changes: Any) -> None:
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**content, **changes}))


def test_half_precision_on_disk_becomes_fp32(tmp_path: Path) -> None:
    backbone = load_backbone(save_checkpoint("dinov3", tmp_path, dtype=torch.float16))
    assert {parameter.dtype for parameter in backbone.parameters()} == {torch.float32}


def test_normalisation_constants_come_from_the_preprocessor_file(folder: Path) -> None:
    assert load_backbone(folder).preprocessing.mean == (0.485, 0.456, 0.406)
    file = folder / "preprocessor_config.json"
    edit(file, image_mean=[0.1, 0.2, 0.3], image_std=[0.4, 0.5, 0.6])
    preprocessing = load_backbone(folder).preprocessing
    assert (preprocessing.mean, preprocessing.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert (preprocessing.shorter, preprocessing.size) == (128, 112), "a 14x14 grid of patch 8"
    edit(file, do_normalize=False)
    assert load_backbone(folder).preprocessing.std == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(("patch", "shorter", "size"), [(16, 256, 224), (14, 224, 196)])
def test_default_geometry(tmp_path: Path, patch: int, shorter: int, size: int) -> None:
    preprocessing = load_backbone(save_checkpoint("vit_head", tmp_path, patch=patch)).preprocessing
    assert (preprocessing.shorter, preprocessing.size) == (shorter, size)


def test_a_local_folder_causes_no_network_access(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert load_backbone(str(folder)).depth == 3


def test_unsupported_model_is_named_with_the_supported_ones(folder: Path) -> None:
    edit(folder / "config.json", model_type="swin")
    with pytest.raises(BackboneError, match=r"'swin'.*supported are dinov3_vit, dinov2"):
        load_backbone(folder)


def test_pickled_weights_are_refused_with_a_hint(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(BackboneError, match=r"no model\.safetensors.*pickle.*refused: .*save_pretrained"):
        load_backbone(folder)


@pytest.mark.parametrize("shard", ["pytorch_model.bin", "../outside.safetensors", "/etc/x.safetensors"])
def test_an_index_cannot_point_to_pickle_or_out_of_the_folder(
    folder: Path, shard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("pickle was read")

    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
    torch.save(weights, folder / "pytorch_model.bin")
    index = folder / "model.safetensors.index.json"
    edit(index, metadata={}, weight_map=dict.fromkeys(weights, shard))
    monkeypatch.setattr(torch, "load", refuse)
    with pytest.raises(BackboneError, match="is not a safetensors file of the same folder"):
        load_backbone(folder)
    index.write_text("{}")
    with pytest.raises(BackboneError, match="names no weights"):
        load_backbone(folder)


def test_sharded_safetensors_load(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    shards = dict.fromkeys(weights, "model-00001-of-00001.safetensors")
    edit(folder / "model.safetensors.index.json", metadata={}, weight_map=shards)
    assert load_backbone(folder).depth == 3


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": "wide"},
        {"patch_size": "8"},
        {"num_hidden_layers": None},
        {"id2label": {"a": "b"}},
        {"hidden_act": "nope"},
        {"model_type": []},
        {"num_channels": 1},
        {"patch_size": [8, 4]},
        {"hidden_size": 33},
    ],
    ids=str,
)
def test_a_config_that_makes_no_sense_is_one_sentence(folder: Path, change: dict[str, Any]) -> None:
    edit(folder / "config.json", **change)
    with pytest.raises(BackboneError) as caught:
        load_backbone(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 10**6}, "num_hidden_layers = 1000000, but the weights are those of a smaller model"),
        ({"hidden_size": 10**9}, "hidden_size = 1000000000, but the weights are those of a smaller model"),
        ({"intermediate_size": 10**9}, "intermediate_size = 1000000000, but the weights"),
        ({"num_labels": 10**9}, "num_labels = 1000000000, but the weights"),
        ({"image_size": 80_000}, "images of 80000 in patches of 8, but the weights have fewer positions"),
        ({"image_size": [48, 80_000]}, "but the weights have fewer positions"),
        ({"num_hidden_layers": -1}, "num_hidden_layers = -1, which is not a whole number from 1"),
        ({"num_hidden_layers": True}, "num_hidden_layers = True, which is not a whole number from 1"),
        ({"hidden_size": None}, "hidden_size = None, which is not a whole number from 1"),
        ({"num_attention_heads": 2.5}, "num_attention_heads = 2.5, which is not a whole number from 1"),
        ({"num_attention_heads": 5}, "hidden_size = 32, which cannot be split into num_attention_heads = 5"),
        ({"hidden_dropout_prob": float("nan")}, r"config\.json cannot be read: ValueError: NaN is not a finite number"),
        ({"patch_size": []}, r"patch_size = \[\], which is not a whole number from 1"),
        ({"patch_size": {}}, r"patch_size = \{\}, which is not a whole number from 1"),
    ],
    ids=str,
)
def test_sizes_that_the_weights_do_not_have_are_refused_before_a_model_is_built(
    folder: Path, change: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a model was built")

    monkeypatch.setattr(ViTForImageClassification, "from_pretrained", refuse)
    edit(folder / "config.json", **change)
    with pytest.raises(BackboneError, match=message):
        load_backbone(folder)


def test_weights_that_cannot_be_read_are_named(folder: Path) -> None:
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    for damaged in (content[: len(content) // 2], content[:100], b""):
        weights.write_bytes(damaged)
        with pytest.raises(BackboneError, match=r"model\.safetensors cannot be read: ") as caught:
            load_backbone(folder)
        assert "\n" not in str(caught.value)
    weights.unlink()
    weights.mkdir()
    for read in (load_backbone, checkpoint.checkpoint_digest):
        with pytest.raises(BackboneError, match=r"model\.safetensors is not a file"):
            read(folder)
    weights.rmdir()
    os.mkfifo(weights)
    for read in (load_backbone, checkpoint.checkpoint_digest):
        with pytest.raises(BackboneError, match=r"model\.safetensors is not a file"):
            read(folder)


def test_weights_without_permission_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.open

    def refuse(file: Path, *args: Any, **kwargs: Any) -> Any:
        if file.suffix == ".safetensors":
            raise PermissionError(13, "Permission denied", str(file))
        return real(file, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)
    for read in (load_backbone, checkpoint.checkpoint_digest):
        with pytest.raises(BackboneError, match=r"model\.safetensors cannot be read: Permission denied\.$"):
            read(folder)


def test_a_shard_that_the_index_names_and_the_folder_lacks_is_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    edit(folder / "model.safetensors.index.json", metadata={}, weight_map={"a": "model-1.safetensors"})
    with pytest.raises(BackboneError, match=r"There is no model-1\.safetensors in "):
        load_backbone(folder)


def test_a_config_of_endless_depth_is_one_sentence(folder: Path) -> None:
    (folder / "config.json").write_text("[" * 100_000)
    with pytest.raises(BackboneError, match=r"config\.json cannot be read: ValueError: it is nested too deeply"):
        load_backbone(folder)


@pytest.mark.parametrize("mean", [0.5, "abc", [1, 2], [1, 2, "x"], [float("nan")] * 3], ids=str)
def test_constants_that_make_no_sense_are_refused(folder: Path, mean: Any) -> None:
    edit(folder / "preprocessor_config.json", image_mean=mean)
    with pytest.raises(BackboneError, match=r"preprocessor_config\.json .*finite number"):
        load_backbone(folder)


@pytest.mark.parametrize("name", ["image_mean", "image_std"])
@pytest.mark.parametrize("value", ["Infinity", "-Infinity", "NaN", "1e999", "1e300", "1" + "0" * 400])
def test_an_input_that_would_not_be_finite_is_refused(folder: Path, name: str, value: str) -> None:
    (folder / "preprocessor_config.json").write_text(f'{{"{name}": [{value}, {value}, {value}]}}')
    with pytest.raises(BackboneError, match=r"preprocessor_config\.json") as refused:
        load_backbone(folder)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("value", [0, -0.5, 1e-40])
def test_a_deviation_that_cannot_be_divided_by_is_refused(folder: Path, value: float) -> None:
    edit(folder / "preprocessor_config.json", image_std=[0.5, value, 0.5])
    with pytest.raises(BackboneError, match="std of the pixels must be three positive numbers"):
        load_backbone(folder)


@pytest.mark.parametrize("name", ["image_mean", "image_std"])
def test_empty_constants_are_refused(folder: Path, name: str) -> None:
    edit(folder / "preprocessor_config.json", **{name: []})
    with pytest.raises(BackboneError, match="three finite numbers"):
        load_backbone(folder)


def test_a_stored_attention_implementation_is_ignored(folder: Path) -> None:
    edit(folder / "config.json", attn_implementation="flash_attention_2")
    assert load_backbone(folder).depth == 3


def test_patches_written_for_both_axes_and_a_head_named_without_a_list(folder: Path) -> None:
    edit(folder / "config.json", patch_size=[8, 8], architectures="ViTForImageClassification")
    backbone = load_backbone(folder)
    assert backbone.patch_size == 8
    assert backbone.class_names is not None


def test_remote_code_in_the_config_is_ignored(folder: Path) -> None:
    (folder / "evil.py").write_text("raise SystemExit('remote code ran')")
    edit(folder / "config.json", auto_map={"AutoModel": "evil.Model", "AutoConfig": "evil.Config"})
    assert load_backbone(folder).depth == 3


def test_missing_weights_are_an_error(folder: Path) -> None:
    edit(folder / "config.json", num_hidden_layers=4)
    with pytest.raises(BackboneError, match=r"lacks 16 weights of a vit model.* e\.g\. "):
        load_backbone(folder)


def test_broken_files_are_named(folder: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(folder, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(BackboneError, match=r"model\.safetensors cannot be read"):
        load_backbone(broken)
    (broken / "config.json").write_text("{")
    with pytest.raises(BackboneError, match=r"config\.json cannot be read"):
        load_backbone(broken)
    (broken / "config.json").unlink()
    with pytest.raises(BackboneError, match=r"no config\.json in"):
        load_backbone(broken)
    with pytest.raises(BackboneError, match="is a file; pass the folder"):
        load_backbone(folder / "config.json")


def test_missing_folder_and_impossible_names(tmp_path: Path) -> None:
    with pytest.raises(BackboneError, match="There is no folder"):
        load_backbone(tmp_path / "nowhere")
    with pytest.raises(BackboneError, match=r"There is no folder \./nowhere"):
        load_backbone("./nowhere")
    with pytest.raises(BackboneError, match="neither a folder nor a Hub name"):
        load_backbone("not a name!")
    for odd in ("~nobody-here/x", "x" * 300):
        with pytest.raises(BackboneError):
            load_backbone(odd)


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (GatedRepoError, "is gated: accept its licence.*hf auth login"),
        (RepositoryNotFoundError, "There is no folder owner/model here, and no model owner/model on the Hub"),
        (LocalEntryNotFoundError, "There is no folder owner/model here, .*the Hub cannot be reached"),
        (TimeoutError, "There is no folder owner/model here, .*the Hub cannot be reached"),
    ],
)
def test_hub_failures_say_what_to_do(failure: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> str:
        raise failure.__new__(failure)  # the constructors differ between versions of the client

    monkeypatch.setattr(checkpoint, "snapshot_download", fail)
    with pytest.raises(BackboneError, match=message):
        load_backbone("owner/model")


def test_a_hub_name_loads_only_json_and_safetensors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def download(name: str, **kwargs: Any) -> str:
        asked.update(kwargs, name=name)
        return str(folder)

    monkeypatch.setattr(checkpoint, "snapshot_download", download)
    assert load_backbone("owner/model", revision="v2").depth == 3
    assert (asked["name"], asked["revision"]) == ("owner/model", "v2")
    assert all(name.endswith((".json", ".safetensors")) for name in asked["allow_patterns"])
