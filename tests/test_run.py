"""The whole protocol on a small run: its artefacts, its faults, its processes."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import torch
from PIL import Image

from families import save_checkpoint
from redi import artifacts, loader, passes
from redi.backbone import AttentionScores, Backbone, load_backbone
from redi.config import RunConfig, read_config
from redi.distributed import Ranks
from redi.errors import (
    ArtifactError,
    BackboneError,
    ConfigError,
    CorpusError,
    ImageError,
    LoaderError,
)
from redi.images import FolderImages, load_image
from redi.inspection import inspect_in_run
from redi.pipeline import STAGES, execute
from redi.probe import image_feature
from redi.records import Results, read_results
from redi.reduction import Budget, reduce
from redi.report.tables import print_tables
from redi.run import SCORES, Run, lock
from redi.score import hybrid
from redi.tfidf import CorpusStatistics, lookup
from redi.views import aggregate, align, validation_views
from redi.vocabulary import Vocabulary
from small_run import COLOURS, TRAIN, VAL, small_config, write_images

SCRIPT = Path(__file__).with_name("small_run.py")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "CHUNK", 8)
    monkeypatch.setattr(passes, "SAVE_EVERY", 0.0)
    monkeypatch.setattr(passes, "SAVE_SHARE", 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_images(folder)
    save_checkpoint("dinov3", folder / "backbone")
    save_checkpoint("dinov2_swiglu_head", folder / "head")
    (folder / "map.tsv").write_text("amber\t2\nblue\tLABEL_5\ngreen\t0\nred\t6\n")
    return folder


@pytest.fixture(scope="module")
def finished(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    out = tmp_path_factory.mktemp("run")
    start(folder, out)
    return out


def start(folder: Path, out: Path, *options: str) -> None:
    done = script(folder, out, *options)
    assert done.returncode == 0, done.stderr


def script(folder: Path, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), str(folder), str(out), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def content(out: Path) -> dict[str, Any]:
    """Everything that a run found: tensors by digest, rows as they are."""
    found: dict[str, Any] = {
        str(path.relative_to(out)): artifacts.load(path)[1]["digest"]
        for path in sorted(out.rglob("*.safetensors"))
    }
    results = json.loads((out / "results.json").read_text())
    return {**found, "rows": results["rows"], "digests": results["digests"]}


def test_results_have_the_papers_rows(finished: Path) -> None:
    results = read_results(finished)
    assert [row.name for row in results.rows] == ["dense", *SCORES]
    assert {row.classifier for row in results.rows} == {"probe"}
    assert [row.tokens for row in results.rows] == [201, *[107] * 10]
    assert {row.name for row in results.rows if row.labels == "gt"} == {
        "tfidf",
        "redi_mass",
        "redi_rollout",
        "redi_cls_max",
        "redi_cls_mean",
    }
    assert all(row.images == VAL * len(COLOURS) for row in results.rows)
    assert results.row("dense", "probe").top1 > 50, "the probe has learnt something"
    assert results.row("dense", "probe").p_value == 1
    assert results.notes["probe"]["steps"] == 50
    assert len(results.notes["vocabulary"]["objective"]) == 3


def test_a_finished_run_leaves_no_parts_behind(finished: Path) -> None:
    assert not (finished / "partial").exists()
    assert not list(finished.rglob(".*.safetensors.*"))


def test_vocabulary_and_table_equal_the_library_called_by_hand(
    folder: Path, finished: Path
) -> None:
    """The stages stream, chunk and merge; the mathematics must be that of the library."""
    backbone = load_backbone(folder / "backbone")
    images = FolderImages(folder / "train")
    pixels = torch.stack(
        [backbone.preprocessing(images.load(k)) for k in range(len(images.labels))]
    )
    hidden = backbone.encode(backbone.embed(pixels))
    vocabulary = Vocabulary(16).fit([hidden[:, backbone.prefix :]])
    stored, manifest = artifacts.load(finished / "vocabulary.safetensors")
    torch.testing.assert_close(stored["centroids"], vocabulary.centroids_, atol=1e-4, rtol=0)
    assert manifest["notes"]["objective"] == pytest.approx(vocabulary.objective_, abs=1e-5)
    words = vocabulary.assign(hidden[:, backbone.prefix :])
    statistics = CorpusStatistics(4, 16).update(words, torch.tensor(images.labels))
    table = artifacts.load(finished / "tfidf.safetensors")[0]["table"]
    torch.testing.assert_close(table, statistics.table(), atol=1e-4, rtol=1e-3)
    features = artifacts.load(finished / "features.safetensors")[0]
    expected = image_feature(backbone.final_norm(hidden), backbone.prefix)
    torch.testing.assert_close(features["features"], expected, atol=1e-5, rtol=0)


def test_scores_and_predictions_equal_the_library_called_by_hand(
    folder: Path, finished: Path
) -> None:
    backbone = load_backbone(folder / "backbone")
    images = FolderImages(folder / "val")
    table = artifacts.load(finished / "tfidf.safetensors")[0]["table"]
    vocabulary = Vocabulary(16)
    vocabulary.centroids_ = artifacts.load(finished / "vocabulary.safetensors")[0]["centroids"]
    probe = artifacts.load(finished / "probe.safetensors")[0]
    index = 13
    from redi.views import crop, to_bytes

    resized = backbone.preprocessing.resized(images.load(index))
    views = validation_views(resized.width, resized.height, index, backbone.preprocessing.size)
    maps, masks = [], []
    watched = AttentionScores(backbone.depth, backbone.prefix)
    for view in views:
        picture = to_bytes(crop(resized, view, backbone.preprocessing.size))
        tokens = backbone.embed(backbone.preprocessing.normalise(picture)[None])
        hidden = backbone.encode(tokens, watch=watched.watches if view is views[0] else ())
        words = vocabulary.assign(hidden[:, backbone.prefix :])
        raw = lookup(table, words, torch.tensor([images.labels[index]]))
        values, valid = align(raw[0], view, views[0])
        maps.append(values)
        masks.append(valid)
    tfidf = aggregate(torch.stack(maps), torch.stack(masks))
    expected = hybrid(tfidf[None], watched.maps()["mass"])
    stored = artifacts.load(finished / "scores" / "redi_mass.safetensors")[0]
    assert stored["scores"].dtype == torch.float16
    torch.testing.assert_close(stored["scores"][index].float(), expected[0], atol=2e-3, rtol=0)

    tokens = backbone.embed(backbone.preprocessing(images.load(index))[None])
    reduction = reduce(tokens.patches, stored["scores"][index : index + 1].float())
    normed = backbone.final_norm(backbone.encode(tokens.reduced(reduction)))
    logits = image_feature(normed, backbone.prefix) @ probe["weight"].T + probe["bias"]
    predicted = artifacts.load(finished / "predictions" / "probe" / "redi_mass.safetensors")[0]
    torch.testing.assert_close(
        predicted["logits"][index], logits.sort(descending=True).values[0], atol=1e-4, rtol=1e-4
    )


def test_tables_print_gain_and_what_they_exclude(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_tables(read_results(finished))
    printed = capsys.readouterr().out
    for text in ("Table 1", "Table 2", "Table 3", "Gain", "[gt]", "oracle", "Excludes score"):
        assert text in printed


def test_everything_is_skipped_the_second_time_and_redone_when_a_setting_changes(
    folder: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(finished)
    config = small_config(folder, finished)
    execute(config)
    assert capsys.readouterr().err.splitlines() == [
        f"{stage.name}: already done" for stage in STAGES
    ]
    assert content(finished) == before
    changed = replace(config, budget=replace(config.budget, keep=0.25))
    results = execute(changed)
    assert isinstance(results, Results)
    said = capsys.readouterr().err
    assert "score: already done" in said
    assert "evaluate: 10 reduced" in said
    assert results.row("tfidf", "probe").tokens == 5 + 49 + 4
    assert read_config(finished / "config.toml") == changed
    execute(config)
    assert content(finished) == before


def test_each_stage_can_run_alone(folder: Path, tmp_path: Path) -> None:
    assert execute(small_config(folder, tmp_path), until="tfidf") is None
    assert (tmp_path / "tfidf.safetensors").exists()
    assert not (tmp_path / "probe.safetensors").exists()


def test_dry_run_prints_the_plan_and_writes_nothing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    execute(small_config(folder, tmp_path / "run"), dry_run=True)
    plan = capsys.readouterr().out
    assert "3 passes over 28 training images" in plan
    assert "disk" in plan
    assert not (tmp_path / "run").exists()


KILLS = (
    "run.json",
    "vocabulary-start/g",
    "vocabulary-start.safetensors",
    "vocabulary-pass-1/g0001-r0000-000001",
    "features.safetensors",
    "vocabulary-after-pass-2",
    "analysis/codebooks",
    "tfidf/g",
    "tfidf.safetensors",
    "probe.safetensors",
    "score/g",
    "scores/rollout",
    "predictions/native/dense",
    "rows-from-random/g",
    "predictions/native/random",
    "predictions/probe/redi_mass",
    "analysis/figure2",
    "explorer/g",
    "analysis/typical",
    "results.json",
)


@pytest.mark.parametrize(("cache", "kills"), [("none", KILLS), ("fp16", KILLS[3:9:2])])
def test_killed_in_every_stage_it_ends_with_the_results_of_an_uninterrupted_run(
    folder: Path, tmp_path: Path, cache: str, kills: tuple[str, ...]
) -> None:
    """SIGKILL in the middle of a write, one after the other; each time it is started again at once,
    with worker processes of the killed run perhaps still alive."""
    options = ("--backbone", "head", "--classifier", "both", "--cache", cache)
    start(folder, tmp_path / "whole", *options)
    for place in kills:
        assert die(folder, tmp_path / "run", place, *options), f"not killed at {place}"
    start(folder, tmp_path / "run", *options)
    assert content(tmp_path / "run") == content(tmp_path / "whole")
    assert not (tmp_path / "run" / "partial").exists()
    assert not list((tmp_path / "run").rglob(".*.[0-9]*")), "halves of files are cleared away"


def test_clearing_up_touches_nothing_of_the_users(folder: Path, tmp_path: Path) -> None:
    mine = [tmp_path / ".notes.1", tmp_path / "work" / ".draft.json.7", tmp_path / ".bashrc"]
    half = tmp_path / "scores" / ".mass.safetensors.123"
    for path in (*mine, half):
        path.parent.mkdir(exist_ok=True)
        path.write_text("text")
    execute(small_config(folder, tmp_path), until="vocabulary")
    assert all(path.exists() for path in mine)
    assert not half.exists()


def die(folder: Path, out: Path, place: str, *options: str) -> bool:
    done = script(folder, out, "--kill-at", place, "--workers", "1", *options)
    assert done.returncode in (0, -signal.SIGKILL), f"{place}: {done.stderr}"
    return done.returncode != 0


@pytest.mark.parametrize(
    "stage", ["vocabulary pass 2", "tfidf", "score", "evaluate 10 rows from random"]
)
def test_a_continued_run_does_not_repeat_finished_chunks(
    folder: Path, tmp_path: Path, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after two chunks of a pass, it encodes only the images of the others."""
    config = small_config(folder, tmp_path)
    seen: list[int] = []
    real_step = passes.PassRunner._batches

    def watched(self: Any, work: Any, chunks: Any, mine: Any) -> Iterator[Any]:
        for chunk, last, batch in real_step(self, work, chunks, mine):
            if work.name == stage:
                if stopping and len(seen) >= 16:
                    raise KeyboardInterrupt
                seen.extend(batch.indices)
            yield chunk, last, batch

    monkeypatch.setattr(passes.PassRunner, "_batches", watched)
    stopping = True
    with pytest.raises(KeyboardInterrupt):
        execute(config)
    assert len(seen) == 16
    first, stopping = list(seen), False
    seen.clear()
    execute(config)
    assert not set(first) & set(seen)
    images = VAL if stage.startswith(("score", "evaluate")) else TRAIN
    assert len(first) + len(seen) == 4 * images


def torchrun(
    folder: Path, out: Path, processes: int, *options: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(processes), str(SCRIPT), str(folder), str(out), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_two_processes_give_what_one_gives(folder: Path, finished: Path, tmp_path: Path) -> None:
    done = torchrun(folder, tmp_path, 2)
    assert done.returncode == 0, done.stderr
    assert content(tmp_path) == content(finished)


def test_a_process_that_dies_ends_the_job_and_another_number_of_processes_goes_on(
    folder: Path, finished: Path, tmp_path: Path
) -> None:
    done = torchrun(folder, tmp_path, 2, "--dying-rank", "1")
    assert done.returncode != 0
    assert "this process was told to fail" in done.stderr
    assert torchrun(folder, tmp_path, 2, "--killed-rank", "0").returncode != 0
    assert list((tmp_path / "partial").rglob("*.safetensors")), "work was kept"
    start(folder, tmp_path)
    assert content(tmp_path) == content(finished)


def test_a_damaged_artefact_is_named(folder: Path, finished: Path, tmp_path: Path) -> None:
    start(folder, tmp_path)
    file = tmp_path / "tfidf.safetensors"
    damaged = bytearray(file.read_bytes())
    damaged[-5] ^= 1
    file.write_bytes(damaged)
    (tmp_path / "scores" / "dense.safetensors").unlink()
    with pytest.raises(ArtifactError, match=r"tfidf\.safetensors is damaged.*Delete it"):
        execute(small_config(folder, tmp_path))
    file.unlink()
    execute(small_config(folder, tmp_path))
    assert content(tmp_path) == content(finished)


def test_a_run_of_other_data_or_another_backbone_is_refused(
    folder: Path, finished: Path, tmp_path: Path
) -> None:
    save_checkpoint("dinov3_gated", tmp_path / "other")
    config = small_config(folder, finished)
    before = content(finished)
    with pytest.raises(ArtifactError, match="belongs to another backbone"):
        execute(replace(config, backbone=str(tmp_path / "other")))
    with pytest.raises(ArtifactError, match="belongs to another validation set"):
        execute(replace(config, val=config.train))
    assert content(finished) == before


def test_a_second_run_in_the_same_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    with lock(tmp_path):
        done = script(folder, tmp_path)
    assert done.returncode == 1
    assert "Another redi process is working in" in done.stderr


def test_a_folder_that_cannot_be_written_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ArtifactError, match=r"cannot be written: .*Choose another --out"):
        execute(small_config(folder, tmp_path / "file"))
    with pytest.raises(ArtifactError, match="cannot be written"):
        execute(small_config(folder, tmp_path / "file" / "run"))


def test_a_full_disk_is_one_line_and_loses_nothing(
    folder: Path, finished: Path, tmp_path: Path
) -> None:
    """The limit on the size of a file stands in for a disk that is full."""
    done = script(folder, tmp_path, "--file-size-limit", "30000")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("redi: There is no space left to write")
    assert "Traceback" not in done.stderr
    start(folder, tmp_path)
    assert content(tmp_path) == content(finished)


def copy_images(folder: Path, target: Path) -> RunConfig:
    write_images(target)
    return replace(small_config(target, target / "run"), backbone=str(folder / "backbone"))


def test_images_that_cannot_be_decoded_are_skipped_listed_and_keep_their_index(
    folder: Path, tmp_path: Path
) -> None:
    config = copy_images(folder, tmp_path)
    broken = tmp_path / "train" / "blue" / "000.jpg"
    broken.write_bytes(broken.read_bytes()[:500])
    (tmp_path / "val" / "green" / "002.jpg").write_text("not an image")
    results = execute(config)
    assert results is not None
    assert [name for name, _ in results.notes["skipped_train"]] == ["blue/000.jpg"]
    assert [name for name, _ in results.notes["skipped_val"]] == ["green/002.jpg"]
    assert {row.images for row in results.rows} == {4 * VAL - 1}
    indices = artifacts.load(tmp_path / "run" / "scores" / "dense.safetensors")[0][
        "indices"
    ].tolist()
    assert indices == [k for k in range(4 * VAL) if k != 2 * VAL + 2]
    counts = artifacts.load(tmp_path / "run" / "tfidf.safetensors")[0]["class_images"].tolist()
    assert counts == [TRAIN, TRAIN - 1, TRAIN, TRAIN]
    strict = replace(
        config, out=str(tmp_path / "strict"), runtime=replace(config.runtime, strict=True)
    )
    with pytest.raises(ImageError, match=r"000\.jpg cannot be decoded.*--strict"):
        execute(strict)


def test_classes_missing_on_one_side(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = copy_images(folder, tmp_path)
    (tmp_path / "train" / "empty").mkdir()
    for file in (tmp_path / "val" / "red").iterdir():
        file.unlink()
    results = execute(config)
    said = capsys.readouterr().err
    assert "warning: 1 of 5 classes have no training images: empty" in said
    assert "warning: 2 of 5 classes have no validation images: empty, red" in said
    assert results is not None
    assert results.row("dense", "probe").images == 3 * VAL
    (tmp_path / "val" / "violet").mkdir()
    Image.new("RGB", (50, 50)).save(tmp_path / "val" / "violet" / "1.jpg")
    with pytest.raises(CorpusError, match="1 validation classes are absent from training: violet"):
        execute(config)


def test_folders_without_images_and_missing_folders(folder: Path, tmp_path: Path) -> None:
    config = small_config(folder, tmp_path / "run")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(CorpusError, match="There are no images in"):
        execute(replace(config, train=str(tmp_path / "nothing")))
    with pytest.raises(CorpusError, match="There is no folder"):
        execute(replace(config, val=str(tmp_path / "missing")))
    assert not (tmp_path / "run").exists()


def test_native_head_is_evaluated_beside_the_probe(folder: Path, tmp_path: Path) -> None:
    config = replace(
        small_config(folder, tmp_path / "run"),
        backbone=str(folder / "head"),
        classifier="both",
        class_map=str(folder / "map.tsv"),
    )
    results = execute(config)
    assert results is not None
    assert results.classifiers == ["probe", "native"]
    assert results.notes["native_classes"] == "by map.tsv"
    stored = artifacts.load(tmp_path / "run" / "predictions" / "native" / "dense.safetensors")[0]
    assert stored["labels"].tolist() == [label for label in (2, 5, 0, 6) for _ in range(VAL)]
    backbone = load_backbone(folder / "head")
    images = sorted((folder / "val").rglob("*.jpg"))
    pixels = torch.stack([backbone.preprocessing(load_image(file)) for file in images[:3]])
    logits = backbone.classify(backbone.encode(backbone.embed(pixels)))
    torch.testing.assert_close(stored["logits"][:3], logits.topk(5).values, atol=1e-4, rtol=1e-4)
    with pytest.raises(ConfigError, match=r"7 classes and none is called 'amber'.*--class-map"):
        execute(replace(config, class_map=""))


def test_native_without_a_head_is_refused_before_any_work(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BackboneError, match="has no classifier of its own: use --classifier probe"):
        execute(replace(small_config(folder, tmp_path / "run"), classifier="native"))
    assert not list((tmp_path / "run").rglob("*.safetensors"))


def test_prenorm_features_are_the_other_reading(
    folder: Path, finished: Path, tmp_path: Path
) -> None:
    config = small_config(folder, tmp_path)
    execute(replace(config, probe=replace(config.probe, features="prenorm")), until="vocabulary")
    here, there = (
        artifacts.load(out / "features.safetensors")[0]["features"] for out in (tmp_path, finished)
    )
    assert here.shape == there.shape
    assert not torch.allclose(here, there, atol=1e-2)


def test_worker_processes_change_nothing(folder: Path, finished: Path, tmp_path: Path) -> None:
    execute(small_config(folder, tmp_path, workers=2))
    assert content(tmp_path)["rows"] == content(finished)["rows"]


def test_analysis_holds_what_the_report_needs(folder: Path, finished: Path) -> None:
    explorer = artifacts.load(finished / "analysis" / "explorer.safetensors")[0]
    assert len(explorer["indices"]) == 8
    assert len(explorer["offsets"]) == 8 * 4 + 1
    jpeg = bytes(explorer["jpegs"][explorer["offsets"][4] : explorer["offsets"][5]].tolist())
    assert load_image(jpeg).size == (112, 112)
    assert explorer["source/redi_mass"].shape == (8, 196)
    figure = artifacts.load(finished / "analysis" / "figure2.safetensors")[0]
    assert {f"frequency/block{k}" for k in (1, 2, 3)} <= set(figure)
    assert int(figure["frequency/block3"].sum()) == 4 * TRAIN * 196
    assert int(figure["validation/frequency"].sum()) == 4 * VAL * 196
    scores = artifacts.load(finished / "scores" / "redi_mass.safetensors")[0]["scores"]
    mass = float(figure["validation/score_mass"].sum())
    assert mass == pytest.approx(float(scores.double().sum()), rel=1e-9)
    typical = artifacts.load(finished / "analysis" / "typical.safetensors")[0]
    assert len(typical["offsets"]) == 16 + 1


def test_run_object_reports_a_missing_artefact(folder: Path, tmp_path: Path) -> None:
    run = Run(small_config(folder, tmp_path), Ranks(), torch.device("cpu"))
    with pytest.raises(ArtifactError, match="is missing; run the stage"):
        run.digest("vocabulary")


def test_with_a_cache_later_passes_skip_the_backbone_and_the_result_hardly_changes(
    folder: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(folder, tmp_path)
    config = replace(config, runtime=replace(config.runtime, cache="fp16"))
    forwards: list[int] = []
    embed = Backbone.embed

    def counting_embed(self: Backbone, pixels: torch.Tensor) -> Any:
        forwards.append(len(pixels))
        return embed(self, pixels)

    monkeypatch.setattr(Backbone, "embed", counting_embed)
    execute(config, until="tfidf")
    images = 4 * TRAIN
    assert sum(forwards) == 16 + images, "the start's 16 images and one pass instead of four"
    cached, plain = (
        artifacts.load(out / "vocabulary.safetensors")[0]["centroids"]
        for out in (tmp_path, finished)
    )
    torch.testing.assert_close(cached, plain, atol=2e-2, rtol=0)

    # Without the cache's files the same numbers come from the images.
    again = replace(config, out=str(tmp_path / "again"))
    execute(again, until="tfidf")
    for file in (tmp_path / "again" / "cache").iterdir():
        file.unlink()
    (tmp_path / "again" / "tfidf.safetensors").unlink()
    execute(again, until="tfidf")
    here, there = (
        artifacts.load(out / "tfidf.safetensors")[0]["table"]
        for out in (tmp_path, tmp_path / "again")
    )
    assert torch.equal(here, there)


def test_a_cache_that_does_not_fit_is_refused_before_any_work(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(folder, tmp_path)
    config = replace(config, runtime=replace(config.runtime, cache="fp16"))
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ConfigError, match=r"--cache fp16 needs .* GB .* are free"):
        execute(config)
    assert not list(tmp_path.rglob("*.f16"))


def test_strict_refuses_what_an_earlier_run_has_skipped(folder: Path, tmp_path: Path) -> None:
    config = copy_images(folder, tmp_path)
    (tmp_path / "val" / "green" / "002.jpg").write_text("not an image")
    execute(config)
    with pytest.raises(ImageError, match="--strict allows no such image"):
        execute(replace(config, runtime=replace(config.runtime, strict=True)))


def test_a_file_that_vanishes_stops_the_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = copy_images(folder, tmp_path)
    real = FolderImages.load

    def vanish(self: FolderImages, index: int) -> Any:
        (tmp_path / "train" / "blue" / "003.jpg").unlink(missing_ok=True)
        return real(self, index)

    monkeypatch.setattr(FolderImages, "load", vanish)
    with pytest.raises(CorpusError, match=r"003\.jpg can no longer be read: No such file"):
        execute(config)


def test_one_class_and_no_decodable_image_are_refused(folder: Path, tmp_path: Path) -> None:
    config = copy_images(folder, tmp_path)
    for file in (tmp_path / "val").rglob("*.jpg"):
        file.write_text("not an image")
    with pytest.raises(CorpusError, match=r"None of the images in .*val could be decoded"):
        execute(config)
    for file in (tmp_path / "train").rglob("*.jpg"):
        file.write_text("not an image")
    with pytest.raises(CorpusError, match=r"None of the images in .*train could be decoded"):
        execute(replace(config, out=str(tmp_path / "other")))
    for name in ("blue", "green", "red"):
        shutil.rmtree(tmp_path / "train" / name)
        shutil.rmtree(tmp_path / "val" / name)
    with pytest.raises(CorpusError, match="fewer than two classes"):
        execute(config)


def test_a_worker_that_never_starts_is_started_again(
    folder: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that was forked at a bad moment: here the first one sleeps for ever."""
    real, mark = FolderImages.load, tmp_path / "slept"

    def sleep_once(self: FolderImages, index: int) -> Any:
        if index == 5 and not mark.exists():
            mark.touch()
            sleep(1000)
        return real(self, index)

    monkeypatch.setattr(FolderImages, "load", sleep_once)
    monkeypatch.setattr(loader, "PATIENCE", 2)
    execute(small_config(folder, tmp_path / "run", workers=1))
    assert mark.exists()
    assert content(tmp_path / "run") == content(finished)


def test_workers_that_never_give_a_batch_are_one_sentence(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FolderImages, "load", lambda self, index: sleep(1000))
    monkeypatch.setattr(loader, "PATIENCE", 1)
    with pytest.raises(LoaderError, match="No image came from the worker processes for 3 seconds"):
        execute(small_config(folder, tmp_path, workers=1))


def test_a_worker_that_is_killed_is_one_sentence(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die_in_worker(self: FolderImages, index: int) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(FolderImages, "load", die_in_worker)
    with pytest.raises(LoaderError, match="A worker process that decodes images was killed"):
        execute(small_config(folder, tmp_path, workers=1))


def test_the_command_line_runs_the_protocol_with_its_flags(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "redi"]
    flags = ["--backbone", str(folder / "backbone"), "--train", str(folder / "train")]
    flags += ["--val", str(folder / "val"), "--out", str(tmp_path / "run"), "--words", "16"]
    flags += [
        "--passes",
        "1",
        "--threads",
        "1",
        "--workers",
        "0",
        "--batch-size",
        "8",
        "--seed",
        "3",
    ]
    done = subprocess.run([*command, "run", *flags], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Table 2" in done.stdout
    config = read_config(tmp_path / "run" / "config.toml")
    assert (config.vocabulary.n_passes, config.runtime.batch_size, config.seed) == (1, 8, 3)
    wrong = subprocess.run(
        [*command, "tfidf", *flags, "--device", "cuda:7"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("redi: There is no cuda:7 here")
    assert len(wrong.stderr.splitlines()) == 1


def test_larger_inputs_have_a_larger_grid_through_the_whole_protocol(
    folder: Path, tmp_path: Path
) -> None:
    config = replace(small_config(folder, tmp_path / "run"), size=144)  # 18x18 patches of 8 px
    results = execute(config)
    assert results is not None
    kept, _, _ = Budget().counts(18 * 18)
    assert results.row("dense", "probe").tokens == 5 + 18 * 18
    assert results.row("redi_mass", "probe").tokens == 5 + kept + 4
    scores = artifacts.load(tmp_path / "run" / "scores" / "mass.safetensors")[0]["scores"]
    assert scores.shape == (4 * VAL, 18 * 18)
    image = Path(config.val) / "red" / "001.jpg"
    assert inspect_in_run(image, tmp_path / "run", device="cpu").grid == (18, 18)
    with pytest.raises(BackboneError, match="must be a multiple of the patch size 8, not 150"):
        execute(replace(config, size=150))
    assert read_results(tmp_path / "run") == results, "the finished run is as it was"
    assert execute(replace(config, size=16)) is not None, "smaller than a thumbnail"


def test_the_default_size_by_name_is_the_default(
    folder: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    execute(replace(small_config(folder, tmp_path / "run"), size=112))
    assert capsys.readouterr().err.count("already done") == len(STAGES)
    execute(replace(small_config(folder, tmp_path / "run"), size=128), until="tfidf")
    assert "already done" not in capsys.readouterr().err
