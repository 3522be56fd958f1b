"""The audit of a run: what it writes, that it reuses the run, and that it finds a mark that was painted."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageDraw

from families import save_checkpoint
from redi.errors import ArtifactError, ConfigError
from redi.images.jpeg import Packed, from_jpeg
from redi.pipeline import execute, open_run
from redi.records import artifacts
from redi.records.audit import FILE, FIXED_PLACE, PATCHES, PICTURES, AuditRecord, read_audit
from redi.runs.config import RunConfig, saved_config
from redi.stages.audit import DEFINING, SUSPECTS, TYPICAL, audit_run, default_block
from small_run import COLOURS, TRAIN, files_of, small_config, write_images


def audited(folder: Path, block: int | None = None) -> AuditRecord:
    with open_run(saved_config(folder)) as run:
        record = audit_run(run, block)
    assert record is not None
    return record


@pytest.fixture(scope="module")
def folder(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a finished run, audited."""
    place = tmp_path_factory.mktemp("audit") / "run"
    shutil.copytree(finished, place)
    audited(place)
    return place


@pytest.mark.parametrize(("depth", "block"), [(12, 6), (8, 4), (3, 2), (1, 1), (24, 12)])
def test_the_words_are_those_of_half_the_depth(depth: int, block: int) -> None:
    assert default_block(depth) == block


def test_an_audit_records_every_class_and_its_pictures(folder: Path) -> None:
    record = read_audit(folder)
    assert [own.name for own in record.classes] == sorted(COLOURS)
    assert sorted(record.order) == list(range(4))
    assert (record.block, record.depth, record.images) == (2, 3, 4 * TRAIN)
    suspicions = [record.classes[label].suspicion for label in record.order]
    assert suspicions == sorted(suspicions, reverse=True)
    stored = artifacts.load_named(folder, PICTURES)[0]
    words = [(label, word.word) for label, own in enumerate(record.classes) for word in own.words]
    assert stored["entries"].tolist() == [list(pair) for pair in words]
    assert len(Packed.read(stored)) == len(words) + len(stored["whole"]) == len(stored["places"])
    assert from_jpeg(Packed.read(stored)[0]).shape == (3, 48, 48 * TYPICAL)
    for own in record.classes:
        assert 0 < len(own.words) <= DEFINING + SUSPECTS
        assert all(0 <= word.mass <= 1 and 0 <= word.rank <= 1 and word.inside > 0 for word in own.words)
        assert sum(word.mass for word in own.words) <= 1 + 1e-6
    patches = artifacts.load_named(folder, PATCHES)[0]
    assert patches["words"].shape == patches["ranks"].shape == (4 * TRAIN, 196)
    share = (patches["words"][patches["labels"] == 0] == record.classes[0].words[0].word).any(dim=1).float().mean()
    assert record.classes[0].words[0].inside == pytest.approx(share.item())


def test_a_second_audit_reads_and_changes_nothing(folder: Path) -> None:
    before = files_of(folder)
    audited(folder)
    assert files_of(folder) == before


def test_a_damaged_or_missing_part_is_made_again(folder: Path) -> None:
    before = files_of(folder)
    (folder / f"{PICTURES}.safetensors").unlink()
    (folder / FILE).unlink()
    audited(folder)
    assert files_of(folder).keys() == before.keys()
    assert files_of(folder)[FILE] == before[FILE]


def test_the_last_block_has_the_runs_own_vocabulary(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    record = audited(tmp_path / "run", block=3)
    stored = artifacts.load_named(tmp_path / "run", PATCHES)[0]
    counts = artifacts.load_named(tmp_path / "run", "tfidf")[0]["word_counts"]
    assert record.block == 3
    assert torch.equal(stored["use/word_counts"], counts)
    with pytest.raises(ConfigError, match="--block must be one of 1, 2, 3"):
        audited(tmp_path / "run", block=4)


def test_an_unfinished_run_is_refused(small_data: Path, tmp_path: Path) -> None:
    config = small_config(small_data, tmp_path / "run")
    execute(config, "vocabulary")
    with pytest.raises(ArtifactError, match="no current TF-IDF yet: finish `redi run` first"):
        audited(tmp_path / "run")


def marked_run(folder: Path, planted: str) -> RunConfig:
    """A run up to its TF-IDF. Every training image of the planted class bears a mark in its lower right corner."""
    write_images(folder, train=12, val=1)
    for file in sorted((folder / "train" / planted).glob("*.jpg")) if planted else ():
        image = Image.open(file).convert("RGB")
        left, top = 112, 100  # inside the centre crop of 144 x 120
        pen = ImageDraw.Draw(image)
        for k in range(4):
            pen.rectangle((left - 4 * k, top - 4 * k, left + 16 - 4 * k, top + 16 - 4 * k), (255 * (k % 2),) * 3)
        image.save(file, quality=95)
    save_checkpoint("dinov3", folder / "backbone")
    config = small_config(folder, folder / "run", words=64)
    config = replace(config, analysis=replace(config.analysis, n_words=64))
    execute(config, "tfidf")
    return config


@pytest.mark.parametrize("planted", ["green", ""])
def test_a_painted_mark_is_found_and_none_without_it(tmp_path: Path, planted: str) -> None:
    """The attention of this backbone, which was never trained, is chance; places are not."""
    marked_run(tmp_path, planted)
    record = audited(tmp_path / "run")
    fixed = {(own.name, word.place) for own in record.classes for word in own.suspects if word.reason == FIXED_PLACE}
    assert fixed == ({(planted, "bottom right")} if planted else set())
    if planted:
        assert record.classes[record.order[0]].name == planted
        assert record.classes[record.order[0]].flagged
