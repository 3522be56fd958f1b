"""The whole protocol on a small run: its stages, its faults, its interruptions."""

import os
import shutil
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import torch
from PIL import Image

from redi.attention import ATTENTION_SCORES
from redi.errors import ArtifactError, BackboneError, CorpusError, ImageError, LoaderError
from redi.images import FolderImages
from redi.images.loader import Batch, BatchSource
from redi.pipeline import STAGES, execute
from redi.records import artifacts
from redi.records.results import Results, read_results, write_results
from redi.reduction import Budget
from redi.report.build import build_report
from redi.report.tables import print_tables
from redi.runs.config import read_config
from redi.runs.passes import Outcome, Pass, PassRunner
from redi.stages.inspect import inspect_in_run
from small_run import TRAIN, VAL, content, copy_images, script, small_config, start


def test_a_finished_run_leaves_no_parts_behind(finished: Path) -> None:
    assert not (finished / "partial").exists()
    assert not list(finished.rglob(".*.safetensors.*"))


def test_tables_print_gain_and_what_they_exclude(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_tables(read_results(finished))
    printed = capsys.readouterr().out
    for text in ("Table 1", "Table 2", "Table 3", "Gain", "[gt]", "oracle", "Excludes score"):
        assert text in printed


def test_results_from_before_a_new_attention_score_are_read(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = read_results(finished)
    monkeypatch.setitem(ATTENTION_SCORES, "toy", replace(ATTENTION_SCORES["mass"], title="Toy", short="toy"))
    assert read_results(finished) == results
    print_tables(results)


@pytest.mark.parametrize("scores", [[], ["rollout"], ["mass", "mass"], ["mass", "nothing"]])
def test_results_with_scores_that_no_backbone_has_are_damaged(
    finished: Path, tmp_path: Path, scores: list[str]
) -> None:
    results = read_results(finished)
    write_results(tmp_path, replace(results, notes=replace(results.notes, attention_scores=scores)))
    with pytest.raises(ArtifactError, match="no backbone with the attention scores"):
        read_results(tmp_path)


def test_everything_is_skipped_the_second_time_and_redone_when_a_setting_changes(
    small_data: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(finished)
    config = small_config(small_data, finished)
    execute(config)
    assert capsys.readouterr().err.splitlines() == [
        f"stage {number} of 6, {stage.name}: already done" for number, stage in enumerate(STAGES, 1)
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


def test_results_keep_the_environment_that_made_them(small_data: Path, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    made = read_results(finished)
    other = replace(made, environment=replace(made.environment, torch="1.0"))
    write_results(tmp_path / "run", other)
    start(small_data, tmp_path / "run")
    assert read_results(tmp_path / "run").environment.torch == "1.0"
    (tmp_path / "run" / "results.json").write_text("damaged")
    start(small_data, tmp_path / "run")
    assert read_results(tmp_path / "run").environment.torch == torch.__version__


def test_each_stage_can_run_alone(small_data: Path, tmp_path: Path) -> None:
    assert execute(small_config(small_data, tmp_path), until="tfidf") is None
    assert (tmp_path / "tfidf.safetensors").exists()
    assert not (tmp_path / "probe.safetensors").exists()


def test_dry_run_prints_the_plan_and_writes_nothing(
    small_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    execute(small_config(small_data, tmp_path / "run"), dry_run=True)
    plan = capsys.readouterr().out
    assert "3 passes over 28 training images" in plan
    assert "disk" in plan
    assert not (tmp_path / "run").exists()


def test_a_limited_run_is_a_trial_and_says_so(
    small_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = replace(small_config(small_data, tmp_path / "run"), limit=3)
    results = execute(config)
    assert results is not None
    assert (results.notes.train_images, results.notes.val_images, results.notes.limit) == (12, 12, 3)
    print_tables(results)
    assert "12 images, at most 3 images per class (--limit 3)" in " ".join(capsys.readouterr().out.split())
    assert "at most 3 images per class (--limit 3)" in build_report(tmp_path / "run").read_text()
    image = small_data / "val" / "blue" / "000.jpg"
    explained = inspect_in_run(image, tmp_path / "run", "blue", "cpu")
    stored = artifacts.load(tmp_path / "run" / "scores" / "redi_mass.safetensors")[0]["scores"][3]
    torch.testing.assert_close(explained.scores["redi_mass"], stored.float(), atol=1e-3, rtol=0)
    with pytest.raises(ArtifactError, match="was made with --limit 3, which is another data set"):
        execute(replace(config, limit=0))


KILLS = (
    "run.json",
    "vocabulary-start/g",
    "vocabulary-pass-1/g0001-r0000-000001",
    "features.safetensors",
    "analysis/codebooks",
    "tfidf/g",
    "tfidf.safetensors",
    "probe.safetensors",
    "score/g",
    "predictions/native/dense",
    "predictions/native/random",
    "predictions/probe/redi_mass",
    "analysis/figure2",
    "results.json",
)


@pytest.mark.parametrize(("cache", "kills"), [("none", KILLS), ("fp16", KILLS[2:7:2])])
def test_killed_in_every_stage_it_ends_with_the_results_of_an_uninterrupted_run(
    small_data: Path, tmp_path: Path, cache: str, kills: tuple[str, ...]
) -> None:
    """SIGKILL in the middle of a write, one after the other; each time it is started again at once,
    with worker processes of the killed run perhaps still alive."""
    options = ("--backbone", "head", "--classifier", "both", "--cache", cache)
    start(small_data, tmp_path / "whole", *options)
    for place in kills:
        assert die(small_data, tmp_path / "run", place, *options), f"not killed at {place}"
    start(small_data, tmp_path / "run", *options)
    assert content(tmp_path / "run") == content(tmp_path / "whole")
    assert not (tmp_path / "run" / "partial").exists()
    assert not list((tmp_path / "run").rglob(".*.[0-9]*")), "halves of files are cleared away"


def die(folder: Path, out: Path, place: str, *options: str) -> bool:
    done = script(folder, out, "--kill-at", place, "--workers", "1", *options)
    assert done.returncode in (0, -signal.SIGKILL), f"{place}: {done.stderr}"
    return done.returncode != 0


@pytest.mark.parametrize("stage", ["vocabulary pass 2", "tfidf", "score", "evaluate 10 rows from random"])
def test_a_continued_run_does_not_repeat_finished_chunks(
    small_data: Path, tmp_path: Path, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after two chunks of a pass, it encodes only the images of the others."""
    config = small_config(small_data, tmp_path)
    seen: list[int] = []
    run_pass = PassRunner.run

    def watch_pass(self: PassRunner, work: Pass, key: artifacts.Key) -> Outcome | None:
        source = Watched(work.source) if work.name == stage else work.source
        return run_pass(self, replace(work, source=source), key)

    class Watched:
        def __init__(self, source: BatchSource) -> None:
            self.source = source

        def __len__(self) -> int:
            return len(self.source)

        def batches(self, plan: Iterable[Sequence[int]], workers: int) -> Iterator[Batch]:
            for batch in self.source.batches(plan, workers):
                if stopping and len(seen) >= 16:
                    raise KeyboardInterrupt
                seen.extend(batch.indices)
                yield batch

    monkeypatch.setattr(PassRunner, "run", watch_pass)
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


def test_a_damaged_artefact_is_named(small_data: Path, finished: Path, tmp_path: Path) -> None:
    start(small_data, tmp_path)
    file = tmp_path / "tfidf.safetensors"
    damaged = bytearray(file.read_bytes())
    damaged[-5] ^= 1
    file.write_bytes(damaged)
    (tmp_path / "validation" / "dense.safetensors").unlink()
    with pytest.raises(ArtifactError, match=r"tfidf\.safetensors is damaged.*Delete it"):
        execute(small_config(small_data, tmp_path))
    file.unlink()
    execute(small_config(small_data, tmp_path))
    assert content(tmp_path) == content(finished)


def test_images_that_cannot_be_decoded_are_skipped_listed_and_keep_their_index(
    small_data: Path, tmp_path: Path
) -> None:
    config = copy_images(small_data, tmp_path)
    broken = tmp_path / "train" / "blue" / "000.jpg"
    broken.write_bytes(broken.read_bytes()[:500])
    (tmp_path / "val" / "green" / "002.jpg").write_text("not an image")
    results = execute(config)
    assert results is not None
    assert [name for name, _ in results.notes.skipped_train] == ["blue/000.jpg"]
    assert [name for name, _ in results.notes.skipped_val] == ["green/002.jpg"]
    assert {row.images for row in results.rows} == {4 * VAL - 1}
    indices = artifacts.load(tmp_path / "run" / "validation" / "dense.safetensors")[0]["indices"].tolist()
    assert indices == [k for k in range(4 * VAL) if k != 2 * VAL + 2]
    counts = artifacts.load(tmp_path / "run" / "tfidf.safetensors")[0]["class_images"].tolist()
    assert counts == [TRAIN, TRAIN - 1, TRAIN, TRAIN]
    strict = replace(config, out=str(tmp_path / "strict"), runtime=replace(config.runtime, strict=True))
    with pytest.raises(ImageError, match=r"000\.jpg cannot be decoded.*--strict"):
        execute(strict)


def test_classes_missing_on_one_side(small_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = copy_images(small_data, tmp_path)
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


def test_worker_processes_change_nothing(small_data: Path, finished: Path, tmp_path: Path) -> None:
    execute(small_config(small_data, tmp_path, workers=2))
    assert content(tmp_path)["rows"] == content(finished)["rows"]


def test_strict_refuses_what_an_earlier_run_has_skipped(small_data: Path, tmp_path: Path) -> None:
    config = copy_images(small_data, tmp_path)
    (tmp_path / "val" / "green" / "002.jpg").write_text("not an image")
    execute(config)
    with pytest.raises(ImageError, match="--strict makes this an error"):
        execute(replace(config, runtime=replace(config.runtime, strict=True)))


def test_a_file_that_vanishes_stops_the_run(small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = copy_images(small_data, tmp_path)
    real = FolderImages.load

    def vanish(self: FolderImages, index: int) -> Any:
        (tmp_path / "train" / "blue" / "003.jpg").unlink(missing_ok=True)
        return real(self, index)

    monkeypatch.setattr(FolderImages, "load", vanish)
    with pytest.raises(CorpusError, match=r"003\.jpg can no longer be read: No such file"):
        execute(config)


def test_a_data_set_that_is_mostly_damaged_stops_and_goes_on_once_it_is_restored(
    small_data: Path, tmp_path: Path
) -> None:
    """Three of 28 training images and of 20 validation images are more than a tenth, two of 20 are not."""
    config = copy_images(small_data, tmp_path)
    out = tmp_path / "run"
    whole = {file: file.read_bytes() for split in ("train", "val") for file in (tmp_path / split).glob("*/000.jpg")}
    broken = [file for file in whole if "red" not in file.parts]
    for file in broken:
        file.write_bytes(b"broken")
    with pytest.raises(CorpusError, match="3 of 28 images cannot be decoded"):
        execute(config)
    assert not (out / "features.safetensors").exists()
    for file in broken[:3]:
        file.write_bytes(whole[file])
    with pytest.raises(CorpusError, match="3 of 20 images cannot be decoded"):
        execute(config)
    assert not (out / "validation").exists()
    encoded = (out / "features.safetensors").stat().st_mtime_ns
    for file in broken[3:]:
        file.write_bytes(whole[file])
    execute(config)
    assert (out / "features.safetensors").stat().st_mtime_ns == encoded, "training images are not encoded again"
    rows = content(out)["rows"]
    assert [row["images"] for row in rows] == [4 * VAL] * len(rows)
    broken[3].write_bytes(b"broken")
    with pytest.raises(ArtifactError, match="belongs to another validation set"):
        execute(config)


def test_what_is_left_out_is_one_warning_and_fails_under_strict(
    small_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = copy_images(small_data, tmp_path)
    (tmp_path / "train" / "blue" / "unfetched.jpg").symlink_to("nowhere")
    (tmp_path / "val" / "red" / "\x1b[2J").symlink_to(tmp_path / "val" / "red")
    strict = replace(config, runtime=replace(config.runtime, strict=True))
    with pytest.raises(CorpusError, match=r"1 entries of .*train are left out: .*blue/unfetched\.jpg.*--strict makes"):
        execute(strict)
    assert not (tmp_path / "run").exists(), "nothing was written"
    execute(config, until="vocabulary")
    said = capsys.readouterr().err
    assert "warning: 1 entries of" in said
    assert "links that lead nowhere, 1 (blue/unfetched.jpg)\n" in said
    assert "links to a folder that is read anyway, 1 (red/\\x1b[2J)\n" in said
    assert "\x1b" not in said


def test_one_class_and_no_decodable_image_are_refused(small_data: Path, tmp_path: Path) -> None:
    config = copy_images(small_data, tmp_path)
    for file in (tmp_path / "val").rglob("*.jpg"):
        file.write_text("not an image")
    with pytest.raises(CorpusError, match=r"At least 4 of 20 images cannot be decoded, more than 10%.*000\.jpg"):
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
    small_data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that was forked at a bad moment: here the first one sleeps for ever."""
    real, mark = FolderImages.load, tmp_path / "slept"

    def sleep_once(self: FolderImages, index: int) -> Any:
        if index == 5 and not mark.exists():
            mark.touch()
            sleep(1000)
        return real(self, index)

    monkeypatch.setattr(FolderImages, "load", sleep_once)
    config = small_config(small_data, tmp_path / "run", workers=1)
    execute(replace(config, runtime=replace(config.runtime, patience=2)))
    assert mark.exists()
    assert content(tmp_path / "run") == content(finished)


def test_workers_that_never_give_a_batch_are_one_sentence(
    small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FolderImages, "load", lambda self, index: sleep(1000))
    config = small_config(small_data, tmp_path, workers=1)
    config = replace(config, runtime=replace(config.runtime, patience=1))
    with pytest.raises(LoaderError, match="No image came from the worker processes for 3 seconds"):
        execute(config)


def test_a_worker_that_is_killed_is_one_sentence(
    small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die_in_worker(self: FolderImages, index: int) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(FolderImages, "load", die_in_worker)
    with pytest.raises(LoaderError, match="A worker process that decodes images was killed"):
        execute(small_config(small_data, tmp_path, workers=1))


def test_workers_killed_in_the_middle_of_a_forward_change_nothing(
    small_data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the system does when memory runs out. Each time the run ends in one sentence and is continued."""
    config = small_config(small_data, tmp_path, workers=2)
    run_pass, deadly = PassRunner.run, [""]

    def run_deadly_pass(self: PassRunner, work: Pass, key: artifacts.Key) -> Outcome | None:
        def step(batch: Batch, sums: Mapping[str, Any]) -> Mapping[str, torch.Tensor]:
            if [work.name] == deadly:
                for worker in active_children():
                    worker.kill()
                sleep(0.2)  # torch's own handler would raise here
            return work.step(batch, sums)

        return run_pass(self, replace(work, step=step), key)

    monkeypatch.setattr(PassRunner, "run", run_deadly_pass)
    for deadly[0] in ("vocabulary pass 2", "tfidf", "score", "evaluate 10 rows from random"):
        with pytest.raises(LoaderError, match="A worker process that decodes images was killed"):
            execute(config)
    deadly[0] = ""
    execute(config)
    assert content(tmp_path)["rows"] == content(finished)["rows"]


def test_larger_inputs_have_a_larger_grid_through_the_whole_protocol(small_data: Path, tmp_path: Path) -> None:
    config = replace(small_config(small_data, tmp_path / "run"), size=144)  # 18x18 patches of 8 px
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
    assert execute(replace(config, size=24)) is not None, "smaller than a thumbnail"
