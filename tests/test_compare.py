"""The bench on a small run: every study, the user's own scorer and reducer, resuming, mistakes."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from families import save_checkpoint
from redi import artifacts, passes
from redi.compare.records import read_bundle
from redi.compare.run import compare
from redi.compare.studies import STUDIES, Bench, Request, grid
from redi.config import VocabularyConfig, saved_config
from redi.corpus import LABEL_SOURCES
from redi.equal import Geometry
from redi.errors import ConfigError, ImageError, InvalidInput
from redi.images import FolderImages
from redi.pipeline import execute, open_run
from redi.records import read_results
from redi.reduction import Budget
from redi.report.compare import comparison_sheet, publish
from redi.report.sheets import to_markdown
from redi.run import SCORES
from redi.stages import evaluate
from redi.stages.evaluate import score_maps
from redi.tfidf import lookup
from redi.variants import DENSE, CorpusSettings, Variant, catalogue
from small_run import small_config, write_images

PLUGIN = """
import torch
from redi.reduction import Progressive, Reduction
from redi.reduction.schedule import constant

def contrast(dense):
    rows, columns = dense.grid
    grid = dense.patches.unflatten(1, (rows, columns))
    return (grid - grid.roll(-1, dims=2)).norm(dim=-1).flatten(1)

def first(patches, scores, budget, grid):
    count = budget.tokens(patches.shape[1])
    keep = torch.arange(count).expand(len(patches), -1)
    source = torch.arange(patches.shape[1]).clamp(max=count - 1).expand(len(patches), -1)
    return Reduction(patches[:, :count], keep, source)

def _leave(inside, count):
    keep = torch.arange(count).expand(len(inside.patches), -1)
    source = torch.arange(inside.patches.shape[1]).clamp(max=count - 1)
    return Reduction(inside.patches[:, :count], keep, source.expand(len(inside.patches), -1))

leaving = Progressive(_leave, constant, proportional=False)

def wrong_shape(dense):
    return dense.patches

def failing(patches, scores, budget, grid):
    raise KeyError("nothing")

def _stumble(inside, count):
    raise IndexError("here")

stumbling = Progressive(_stumble, constant)
greedy = Progressive(lambda inside, count: _leave(inside, 1), constant)

def too_many(patches, scores, budget, grid):
    n = patches.shape[1]
    index = torch.arange(n).expand(len(patches), -1)
    return Reduction(patches, index, index)
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with a probe; tests copy it before they add rows."""
    folder = tmp_path_factory.mktemp("bench")
    write_images(folder)
    save_checkpoint("dinov3", folder / "backbone")
    execute(small_config(folder, folder / "run"))
    return folder / "run"


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mine") / "my.py"
    path.write_text(PLUGIN)
    return path


def ask(folder: Path, studies: tuple[str, ...] = (), **request: Any) -> Any:
    return compare(saved_config(folder), studies, Request(**request) if request else None)


def test_every_study_runs_and_its_rows_are_in_the_results(folder: Path) -> None:
    bundle = ask(folder, tuple(STUDIES))
    studies = [entry.study for entry in bundle.comparisons]
    assert studies[0] == "scorers"
    assert {name.partition("-")[0] for name in studies} == {"cost", *STUDIES} - {"costs"}
    results = read_results(folder)
    names = [row.name for row in results.rows]
    assert names[: 1 + len(SCORES)] == ["dense", *SCORES], "the paper's rows come first"
    assert len(names) == len(set(names))
    for entry in bundle.comparisons:
        assert {line.row.name for line in entry.lines} <= set(names)
        for line in entry.lines:
            row = line.row
            assert row.images == 20
            assert row.cost > 0
            low, high = line.dense_interval
            assert low <= row.delta_dense <= high
            assert 0 <= row.p_value <= line.p_dense <= 1
            stored = artifacts.load(folder / f"predictions/probe/{row.name}.safetensors")[0]
            assert stored["top5"].shape == (20, 4)
            assert stored["divergence"].shape == (20,)
    labels = {line.row.labels for line in bundle.comparisons[0].lines}
    assert labels == {"", *LABEL_SOURCES}, "every row says whose label it used"
    assert read_bundle(folder) == bundle
    for path in publish(folder, bundle):
        assert path.stat().st_size > 0
    execute(saved_config(folder))
    assert [row.name for row in read_results(folder).rows] == names, "a further run keeps them"


def test_a_row_of_the_bench_equals_the_runs_own(folder: Path) -> None:
    """The product for the true class, put together from words and tables, is the score stage's."""
    with open_run(saved_config(folder)) as run:
        maps = score_maps(run)
        for name in ("tfidf", "redi_mass"):
            stored = run.load(f"scores/{name}")["scores"].float()
            whole = maps.map(Variant(name, "gt"), "probe")
            assert whole is not None
            assert torch.equal(whole, stored)
        made = maps._make_corpus_map(Variant("tfidf", "gt"), "")
        torch.testing.assert_close(
            made, run.load("scores/tfidf")["scores"].float(), atol=1e-3, rtol=0
        )


def test_label_sources_see_what_they_say(folder: Path) -> None:
    with open_run(saved_config(folder)) as run:
        maps = score_maps(run)
        found = {source: maps.map(Variant("tfidf", source), "probe") for source in LABEL_SOURCES}
        labels = run.load("scores/dense")["labels"]
        right = maps.dense_logits("probe").argmax(dim=1) == labels
    gt, predicted = found["gt"], found["predicted"]
    assert gt is not None
    assert predicted is not None
    assert right.any()
    assert torch.equal(gt[right], predicted[right]), "where dense is right, predicted is the truth"
    distinct = {tuple(scores.flatten().tolist()) for scores in found.values() if scores is not None}
    assert len(distinct) >= 5


def test_everything_kept_is_dense_for_every_reducer(folder: Path) -> None:
    names = [name for name in catalogue({}, {}, {}).reducers if name != "word-merging"]
    bundle = ask(folder, reducers=[*names, "word-merging"], scorers=["mass"], keeps=[1.0])
    dense = artifacts.load(folder / "predictions/probe/dense.safetensors")[0]
    assert len(bundle.comparisons[0].lines) == len(names) + 1
    for line in bundle.comparisons[0].lines:
        found = artifacts.load(folder / f"predictions/probe/{line.row.name}.safetensors")[0]
        assert torch.equal(found["top5"], dense["top5"]), line.row.name
        torch.testing.assert_close(found["logits"], dense["logits"], atol=1e-5, rtol=1e-5)


def test_a_users_scorer_and_reducers_need_no_change_in_the_package(
    folder: Path, plugin: Path
) -> None:
    bundle = ask(
        folder,
        scorers=[f"{plugin}:contrast", f"redi_{plugin}:contrast", f"{plugin}:contrast@2"],
        labels=["gt", "predicted"],
        reducers=["prune", f"{plugin}:first", f"{plugin}:leaving"],
        keeps=[0.8],
    )
    rows = [line.row for line in bundle.comparisons[0].lines]
    assert {row.reducer for row in rows} == {"prune", "first", "leaving"}
    assert {(row.scorer, row.labels) for row in rows if row.reducer == "prune"} == {
        ("contrast", ""),
        ("contrast@2", ""),
        ("redi_contrast", "gt"),
        ("redi_contrast", "predicted"),
    }
    with open_run(saved_config(folder)) as run:
        by_hand = run.load("scores/contrast")["scores"]
    assert by_hand.shape == (20, 196)
    assert by_hand.amax(dim=1).tolist() == [1.0] * 20
    names = {row.name for row in rows}
    execute(saved_config(folder))
    kept = {row.name for row in read_results(folder).rows}
    assert names <= kept, "rows of a user's file stay without the file being read"


def test_a_changed_user_file_is_measured_anew(
    folder: Path, plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "own.py"
    mine.write_text(plugin.read_text())
    measured: list[int] = []
    real = evaluate._predict_group

    def counted(run: Any, maps: Any, known: Any, jobs: Any, *more: Any) -> None:
        measured.append(len(jobs))
        real(run, maps, known, jobs, *more)

    monkeypatch.setattr(evaluate, "_predict_group", counted)
    for expected in (1, 1, 2):
        if expected == 2:
            mine.write_text(plugin.read_text() + "# changed\n")
        ask(folder, scorers=["mass"], reducers=[f"{mine}:first"])
        assert len(measured) == expected


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"scorers": ["nothing"]}, "no scorer 'nothing'; known are"),
        ({"scorers": ["mass"], "reducers": ["melt"]}, "no reducer 'melt'; known are"),
        ({"scorers": ["redi_mass"], "labels": ["guess"]}, "Label sources are gt,"),
        ({"scorers": ["mass@9"]}, "this backbone has 3 blocks"),
        ({"scorers": ["rollout@2"]}, "rollout reads every block"),
        (
            {"scorers": ["mass"], "keeps": [0.5], "costs": [0.5]},
            "one of --keep, --tokens and --cost",
        ),
        ({"scorers": ["mass"], "after": [3]}, "--after counts blocks: 0 to 2 here"),
        ({"scorers": ["mass"], "costs": [float("nan")]}, "cannot be met"),
        ({"reducers": ["word-merging"], "after": [1]}, "works before block 1 only"),
        ({"reducers": ["tome"], "costs": [0.01]}, "cannot be met: costs here reach from"),
        ({"reducers": ["prune"]}, "ranks patches by a score: give --scorer"),
        ({"scorers": ["missing.py:name"]}, "There is no file missing.py"),
    ],
)
def test_mistakes_are_one_line_and_lose_nothing(
    folder: Path, request_: dict[str, Any], message: str
) -> None:
    before = (folder / "results.json").read_bytes()
    with pytest.raises(ValueError, match=message):
        ask(folder, **request_)
    assert (folder / "results.json").read_bytes() == before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong_shape", r"scorer 'wrong_shape' failed: .*it must give \[4, 196\] scores"),
        ("failing", "reducer 'failing' failed: KeyError: 'nothing'"),
        ("too_many", "reducer 'too_many' failed: .*it promised 102 tokens, not 196"),
        ("stumbling", "reducer 'stumbling' failed: IndexError: here"),
        ("greedy", "the reducer left 1 tokens, not the"),
    ],
)
def test_what_a_users_function_does_wrong_is_said(
    folder: Path, plugin: Path, name: str, message: str
) -> None:
    own = f"{plugin}:{name}"
    asked: dict[str, Any] = {"scorers": ["mass"], "reducers": [own], "keeps": [0.8]}
    if name == "wrong_shape":
        asked = {"scorers": [own]}
    if name == "too_many":
        del asked["keeps"]
    with pytest.raises(InvalidInput, match=message):
        ask(folder, **asked)


def test_a_stopped_comparison_goes_on_where_it_was(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {"scorers": ["mass", "cls_mean"], "reducers": ["prune", "fuse"]}
    monkeypatch.setattr(evaluate, "GROUP", 2)
    whole = tmp_path / "whole"
    shutil.copytree(folder, whole)
    expected = ask(whole, **asked)
    real, calls = evaluate._predict_group, []

    def stopping(*arguments: Any) -> None:
        calls.append(arguments[-1])
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(*arguments)

    monkeypatch.setattr(evaluate, "_predict_group", stopping)
    with pytest.raises(KeyboardInterrupt):
        ask(folder, **asked)
    assert ask(folder, **asked).comparisons == expected.comparisons
    assert len(calls) == 3
    assert calls[0] != calls[1] == calls[2], "the second group is found again under its name"


def test_against_a_chosen_row(folder: Path) -> None:
    config = saved_config(folder)
    bundle = compare(config, (), Request(scorers=["mass", "random"]), against="random")
    assert bundle is not None
    entry = bundle.comparisons[0]
    assert entry.reference.name == "random"
    own = next(line for line in entry.lines if line.row.name == "random")
    assert (own.delta_reference, own.p_reference, own.spearman) == (0.0, 1.0, 1.0)
    with pytest.raises(ConfigError, match="--against 'nobody' is not among the rows"):
        compare(config, (), Request(scorers=["mass"]), against="nobody")


def test_the_grid_multiplies_labels_only_with_corpus_scores() -> None:
    on = Geometry((14, 14), 1, 192, 64, 12)
    bench = Bench(on, Budget(), catalogue({}, {}, {}), VocabularyConfig(), 4000)
    asked = Request(
        scorers=["mass", "redi_mass"],
        labels=["gt", "none"],
        reducers=["prune", "tome"],
        costs=[0.6],
    )
    rows = grid(bench, asked).variants
    assert [(row.scorer, row.labels, row.reducer) for row in rows] == [
        ("mass", "", "prune"),
        ("redi_mass", "gt", "prune"),
        ("redi_mass", "none", "prune"),
        ("", "", "tome"),
    ]
    for study in (study for studies in STUDIES.values() for study in studies(bench)):
        variants = study.variants
        names = [variant.name(Budget()) for variant in variants]
        assert len(set(names)) == len(set(variants)), "no two rows share a name"
    assert DENSE.name(Budget()) == "dense"


def test_markdown_keeps_the_columns(folder: Path) -> None:
    bundle = ask(folder, scorers=["mass"], reducers=["prune"])
    entry = bundle.comparisons[0]
    sheet = comparison_sheet(entry, read_results(folder).notes["vocabulary"])
    lines = [line for line in to_markdown(sheet).splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1
    assert "Incoming mass, prune" in lines[2]


def test_the_command_line(folder: Path, plugin: Path) -> None:
    command = [sys.executable, "-m", "redi", "compare", str(folder)]
    done = subprocess.run(
        [*command, "--scorer", f"{plugin}:contrast", "--reducer", "prune", "--keep", "0.4"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("[gt] rows look up the true class"), "an oracle is said to be one"
    assert "contrast, prune" in done.stdout
    assert (
        json.loads((folder / "compare.json").read_text())["comparisons"][0]["study"][:5] == "grid-"
    )
    plan = subprocess.run([*command, "--dry-run"], capture_output=True, text=True, check=True)
    assert "ablations" in plan.stdout
    failed = subprocess.run(
        [*command, "--scorer", "nothing"], capture_output=True, text=True, check=False
    )
    assert failed.returncode == 1
    assert failed.stderr.startswith("redi: There is no scorer 'nothing'")
    assert "Traceback" not in failed.stderr
    nowhere = subprocess.run(
        [*command[:-1], str(folder / "nowhere")], capture_output=True, text=True, check=False
    )
    assert "is not a run folder" in nowhere.stderr


def test_work_inside_a_killed_pass_is_not_lost(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the third k-means pass of the ablations: the first two are not made again."""
    begun: list[str] = []
    real = passes.PassRunner.run

    def watched(self: Any, work: Any, key: Any) -> Any:
        begun.append(work.name)
        if work.name == "ablation pass 3" and begun.count("ablation pass 3") == 1:
            raise KeyboardInterrupt
        return real(self, work, key)

    monkeypatch.setattr(passes.PassRunner, "run", watched)
    with pytest.raises(KeyboardInterrupt):
        ask(folder, ("ablations",))
    ask(folder, ("ablations",))
    assert begun.count("ablation pass 1") == begun.count("ablation pass 2") == 1
    assert not (folder / "partial").exists()


def test_only_the_missing_rows_of_a_group_are_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(folder, scorers=["mass"], reducers=["prune", "fuse"])
    forwards: list[str] = []
    real = evaluate.forward

    def counted(backbone: Any, known: Any, variant: Any, *more: Any) -> Any:
        forwards.append(variant.reducer)
        return real(backbone, known, variant, *more)

    monkeypatch.setattr(evaluate, "forward", counted)
    ask(folder, scorers=["mass"], reducers=["prune", "pool", "fuse"])
    assert set(forwards) == {"pool"}


def test_comparisons_whose_rows_have_changed_are_dropped(folder: Path) -> None:
    ask(folder, scorers=["mass"], reducers=["prune"])
    ask(folder, scorers=["mass"], reducers=["fuse"])
    assert len(read_bundle(folder).comparisons) == 2, "an earlier comparison stays"
    config = replace(saved_config(folder), seed=1)
    execute(config)
    compare(config, (), Request(scorers=["mass"], reducers=["pool"]))
    (entry,) = read_bundle(folder).comparisons
    assert [line.row.reducer for line in entry.lines] == ["pool"]


def test_an_image_that_went_missing_leaves_no_broken_scores(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The artefact of a scorer has a row for every image, or it is not written."""
    real = FolderImages.load

    def load(self: FolderImages, index: int) -> Any:
        if index == 3:
            raise ImageError("The disk is gone.")
        return real(self, index)

    with monkeypatch.context() as patch:
        patch.setattr(FolderImages, "load", load)
        with pytest.raises(ImageError, match="It could be decoded when its scores were made"):
            ask(folder, scorers=["col_l2"])
    assert not (folder / "scores" / "col_l2.safetensors").exists()
    shutil.rmtree(folder / "partial")  # as the message says
    ask(folder, scorers=["col_l2"])


def test_both_classifiers_have_their_own_predicted_class(
    finished: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A head of seven classes in another order: the map of "predicted" is made by hand."""
    data = finished.parent
    save_checkpoint("vit_head", tmp_path / "head")
    (tmp_path / "map.tsv").write_text("amber\t2\nblue\t5\ngreen\t0\nred\t6\n")
    config = replace(
        small_config(data, tmp_path / "run"),
        backbone=str(tmp_path / "head"),
        classifier="both",
        class_map=str(tmp_path / "map.tsv"),
    )
    execute(config)
    bundle = compare(config, (), Request(scorers=["tfidf"], labels=["predicted", "posterior"]))
    assert bundle is not None
    assert [entry.classifier for entry in bundle.comparisons] == ["probe", "native"]
    with open_run(config) as run:
        maps = score_maps(run)
        native = run.load("scores/dense")["native_logits"][:, [2, 5, 0, 6]].argmax(dim=1)
        made = maps.map(Variant("tfidf", "predicted"), "native")
        words, table = run.load("scores/words")["words"][:, :1], run.load("tfidf")["table"]
        one_view = replace(Variant("tfidf", "predicted"), corpus=CorpusSettings(views=1))
        first = maps.map(one_view, "native")
    assert made is not None
    assert first is not None
    expected = lookup(table, words[:, 0].long(), native)
    torch.testing.assert_close(first, expected.half().float())


def test_a_grid_without_score_and_reducer_is_refused(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "redi", "compare", str(folder), "--keep", "0.3"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.strip().endswith("--after need --scorer or --reducer.")
