"""Artefacts: whole or not there, current or not, and never used when damaged."""

import errno
import os
from pathlib import Path

import pytest
import safetensors
import torch

from redi import __version__
from redi.errors import ArtifactError
from redi.records import artifacts

KEY = {"stage": "score", "seed": 3, "blocks": (1, 2)}
TENSORS = {
    "counts": torch.arange(6).view(2, 3),
    "scores": torch.linspace(0, 1, 8, dtype=torch.float16),
    "flags": torch.tensor([True, False]),
    "scalar": torch.tensor(0.5, dtype=torch.float64),
    "nothing": torch.empty(0, 4),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "scores" / "mass.safetensors"
    artifacts.save(path, TENSORS, KEY, skipped=[(4, "not an image")])
    return path


def test_tensors_and_manifest_come_back(file: Path) -> None:
    tensors, manifest = artifacts.load(file)
    assert set(tensors) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)
    assert manifest["key"] == {"stage": "score", "seed": 3, "blocks": [1, 2]}
    assert manifest["notes"] == {"skipped": [[4, "not an image"]]}
    assert manifest["version"] == __version__
    assert manifest["digest"] == artifacts.tensor_digest(TENSORS)
    assert artifacts.read_manifest(file) == manifest
    assert artifacts.load_named(file.parent.parent, "scores/mass")[1] == manifest


def test_a_view_of_a_tensor_is_stored_like_a_copy(tmp_path: Path) -> None:
    whole = torch.arange(12).view(3, 4).float().requires_grad_()
    artifacts.save(tmp_path / "view.safetensors", {"part": whole.T[1:]}, KEY)
    assert torch.equal(artifacts.load(tmp_path / "view.safetensors")[0]["part"], whole.detach().T[1:])


def test_a_flipped_byte_anywhere_in_the_tensors_is_refused(file: Path) -> None:
    content = file.read_bytes()
    data = 8 + int.from_bytes(content[:8], "little")  # after the header and its length
    for place in range(data, len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1
        file.write_bytes(damaged)
        with pytest.raises(ArtifactError, match=r"mass\.safetensors is damaged.*Delete it and run"):
            artifacts.load(file)
    file.write_bytes(content)
    artifacts.load(file)


@pytest.mark.parametrize("length", [0, 4, 50, -1])
def test_a_file_that_was_cut_off_is_refused(file: Path, length: int) -> None:
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(ArtifactError, match=r"mass\.safetensors is damaged, or was not written by redi: move it away"):
        artifacts.load(file)
    with pytest.raises(ArtifactError, match=r"mass\.safetensors is damaged"):
        artifacts.is_current(file, KEY)


def test_a_file_that_is_not_ours_is_neither_called_damaged_nor_to_be_deleted(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    safetensors.torch.save_file({"scores": torch.zeros(3)}, path)
    with pytest.raises(ArtifactError, match=r"^\S+other\.safetensors was not written by redi: move it away, or name"):
        artifacts.read_manifest(path)
    endless = '{"key": {}, "digest": "", "notes": ' + "[" * 200_000 + "]" * 200_000 + "}"
    deep = '{"key": {}, "digest": "", "notes": ' + "[" * 960 + "]" * 960 + "}"  # read, but perhaps not written again
    infinite = [f'{{"key": {{}}, "digest": "", "notes": {value}}}' for value in ("NaN", "-Infinity", "1e999")]
    for text in ("not JSON", "[]", '{"key": {}}', endless, deep, *infinite):
        metadata = {"manifest": text}
        safetensors.torch.save_file({"scores": torch.zeros(3)}, path, metadata=metadata)
        with pytest.raises(ArtifactError, match=r"is damaged, or was not written by redi: move it away") as refused:
            artifacts.read_manifest(path)
        assert "elete" not in str(refused.value)


def test_a_changed_note_is_damage(file: Path) -> None:
    """Notes are results too, so the file must not be used with another one."""
    data = file.read_bytes()
    assert data.count(b"not an image") == 1
    file.write_bytes(data.replace(b"not an image", b"not an imagf"))
    for read in (artifacts.read_manifest, artifacts.load):
        with pytest.raises(ArtifactError, match=r"mass\.safetensors is damaged"):
            read(file)


def test_it_is_current_with_the_same_key_alone(file: Path) -> None:
    assert artifacts.is_current(file, KEY)
    assert artifacts.is_current(file, {**KEY, "blocks": [1, 2]}), "JSON knows no tuples"
    for change in ({"seed": 4}, {"seed": "3"}, {"blocks": (2, 1)}, {"format": 2}):
        assert not artifacts.is_current(file, {**KEY, **change})
    assert not artifacts.is_current(file, {"stage": "score"})
    assert not artifacts.is_current(file.with_name("absent.safetensors"), KEY)


def test_what_is_not_there_has_no_manifest_and_the_error_says_what_to_do(tmp_path: Path) -> None:
    assert artifacts.read_manifest(tmp_path / "absent.safetensors") is None
    with pytest.raises(ArtifactError, match=r"There is no scores/mass in .*: finish `redi run` first"):
        artifacts.load_named(tmp_path / "missing", "scores/mass")
    with pytest.raises(ArtifactError, match="is damaged"):
        artifacts.load(tmp_path / "absent.safetensors")


def test_a_write_replaces_the_file_and_leaves_nothing_beside_it(file: Path) -> None:
    artifacts.save(file, {"scores": torch.ones(2)}, KEY)
    assert artifacts.load(file)[0]["scores"].tolist() == [1, 1]
    artifacts.write_text(file.with_name("note.json"), "ü")
    assert file.with_name("note.json").read_bytes() == "ü".encode()
    assert sorted(path.name for path in file.parent.iterdir()) == ["mass.safetensors", "note.json"]


def test_a_failed_write_leaves_the_old_file_and_no_half(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArtifactError, match=r"no space left to write .*mass\.safetensors.*finished work is kept"):
        artifacts.save(file, {"scores": torch.ones(2)}, KEY)
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ArtifactError, match=r"note\.json cannot be written: "):
        artifacts.write_text(tmp_path / "file" / "note.json", "text")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(ArtifactError, match=r"folder\.json cannot be written: "):
        artifacts.write_text(tmp_path / "folder.json", "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.json"]


def test_the_digest_covers_names_types_shapes_and_values_but_not_the_order() -> None:
    tensors = {"a": torch.zeros(2, 3), "b": torch.ones(2)}
    digest = artifacts.tensor_digest(tensors)
    assert digest == artifacts.tensor_digest(dict(reversed(tensors.items())))
    for change in (
        {"a": torch.zeros(3, 2)},
        {"a": torch.zeros(2, 3, dtype=torch.int32)},
        {"b": torch.tensor([1.0, 1.0000001])},
        {"c": torch.empty(0)},
    ):
        assert digest != artifacts.tensor_digest({**tensors, **change})
    assert digest != artifacts.tensor_digest({"a": tensors["a"], "c": tensors["b"]})


def test_a_note_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="is not written: one of its numbers is not finite"):
        artifacts.save(tmp_path / "probe.safetensors", {"weight": torch.ones(2)}, {}, loss=float("nan"))
    assert not list(tmp_path.iterdir())
