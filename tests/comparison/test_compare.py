"""Comparisons on a small run: every study, the user's own functions, resuming, mistakes."""

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
from redi.attention import ATTENTION_SCORES
from redi.comparison.compare import compare
from redi.comparison.grid import Request
from redi.comparison.studies import STUDIES
from redi.corpus import LABEL_SOURCES
from redi.errors import ConfigError, ImageError, InvalidInput
from redi.images import FolderImages
from redi.pipeline import execute, open_run
from redi.records import artifacts
from redi.records.comparison import read_bundle
from redi.records.results import read_results
from redi.reduction import OPERATOR, REDUCERS, OneShot
from redi.report.compare import WIDE, comparison_sheet, publish
from redi.report.curves import curves_of
from redi.report.sheets import to_markdown
from redi.rows import SCORES, CorpusSettings, Score, Variant
from redi.runs.config import saved_config
from redi.runs.passes import PassRunner
from redi.stages.maps import ScoreMaps
from redi.stages.score import DENSE_PASS, WORDS
from redi.statistics import holm
from redi.tfidf import lookup
from small_run import small_config

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

def leaving_python(dense):
    raise SystemExit(0)

def undefined(dense):
    return dense.patches.sum(dim=-1) * float("nan")

def far_apart(dense):
    return dense.patches.new_tensor([-3e38, 3e38]).repeat(len(dense.patches), dense.patches.shape[1] // 2)

def poisonous(dense):
    for tensor in (dense.attention, dense.query, dense.key, dense.value, dense.patches):
        tensor.fill_(7)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(True)
    dense.indices.clear()
    return dense.patches.new_ones(dense.patches.shape[:2]).cumsum(dim=1)

def poisoned(patches, scores, budget, grid):
    patches.fill_(7)
    scores.zero_()
    return first(patches, scores, budget, grid)

greedy = Progressive(lambda inside, count: _leave(inside, 1), constant)

def too_many(patches, scores, budget, grid):
    n = patches.shape[1]
    index = torch.arange(n).expand(len(patches), -1)
    return Reduction(patches, index, index)
"""


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A finished run with a probe, to which a test may add rows."""
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mine") / "my.py"
    path.write_text(PLUGIN)
    return path


def ask(folder: Path, studies: tuple[str, ...] = (), **request: Any) -> Any:
    return compare(saved_config(folder), studies, Request(**request) if request else None)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the passes over the images that were begun."""
    names: list[str] = []
    run = PassRunner.run

    def spy(self: PassRunner, work: Any, key: Any) -> Any:
        names.append(work.name)
        return run(self, work, key)

    monkeypatch.setattr(PassRunner, "run", spy)
    return names


def evaluations(begun: list[str]) -> list[str]:
    """The passes that measure a group of rows."""
    return [name for name in begun if name.startswith("evaluate")]


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
    labels = {line.row.label_source for line in bundle.comparisons[0].lines}
    assert labels == {"", *LABEL_SOURCES} - {"text"}, "every row says whose label it used"
    points = {row.name for rows in curves_of(results, "probe").values() for row in rows}
    (ablations,) = (entry for entry in bundle.comparisons if entry.study == "ablations")
    changed = {line.row.name for line in ablations.lines} - {ablations.reference.name}
    assert ablations.reference.name in points
    assert len(changed) > 10
    assert not changed & points, "ablations are no points of a curve"
    assert read_bundle(folder) == bundle
    for path in publish(folder):
        assert path.stat().st_size > 0
    execute(saved_config(folder))
    assert [row.name for row in read_results(folder).rows] == names, "a further run keeps them"


def test_a_row_of_the_bench_equals_the_runs_own(folder: Path) -> None:
    """The product for the true class, put together from words and tables, is the score stage's."""
    with open_run(saved_config(folder)) as run:
        maps = ScoreMaps(run)
        for name in ("tfidf", "redi_mass"):
            stored = run.load(f"scores/{name}")["scores"].float()
            whole = maps.map(Variant(Score.parse(name), "gt"), "probe")
            assert whole is not None
            assert torch.equal(whole, stored)
        made = maps.corpus_map(Variant(Score("tfidf"), "gt"), "probe")
        torch.testing.assert_close(made, run.load("scores/tfidf")["scores"].float(), atol=1e-3, rtol=0)


def test_label_sources_see_what_they_say(folder: Path) -> None:
    with open_run(saved_config(folder)) as run:
        maps = ScoreMaps(run)
        sources = [name for name, source in LABEL_SOURCES.items() if not source.uses_text]
        made = {source: maps.map(Variant(Score("tfidf"), source), "probe") for source in sources}
        labels = run.load(DENSE_PASS)["labels"]
        right = maps.dense_logits("probe").argmax(dim=1) == labels
    gt, predicted = made["gt"], made["predicted"]
    assert gt is not None
    assert predicted is not None
    assert right.any()
    assert torch.equal(gt[right], predicted[right]), "where dense is right, predicted is the truth"
    distinct = {tuple(scores.flatten().tolist()) for scores in made.values() if scores is not None}
    assert len(distinct) >= 5


@pytest.mark.parametrize("name", ATTENTION_SCORES)
def test_products_of_all_label_sources_are_rounded_alike(folder: Path, name: str) -> None:
    """Where dense is right, the product for the predicted class is the run's own for the true class, bit for bit."""
    with open_run(saved_config(folder)) as run:
        maps, score = ScoreMaps(run), Score("tfidf", name)
        made = maps.map(Variant(score, "predicted"), "probe")
        right = maps.dense_logits("probe").argmax(dim=1) == run.load(DENSE_PASS)["labels"]
        own = run.load(f"scores/{score.name}")["scores"].float()
    assert made is not None
    assert torch.equal(made[right], own[right])


def test_a_product_with_a_score_of_a_comparison_multiplies_unrounded_maps(folder: Path) -> None:
    """``mass`` of the last block is the run's own ``mass``, so both products are the same."""
    ask(folder, scorers=["redi_mass@3"])
    with open_run(saved_config(folder)) as run:
        made = ScoreMaps(run).map(Variant(Score("tfidf", "mass", 3), "gt"), "probe")
        own = run.load("scores/redi_mass")["scores"].float()
    assert made is not None
    # The dense pass and the scorer sum the attention in another order.
    assert (made == own).float().mean() > 0.99
    torch.testing.assert_close(made, own, atol=1e-3, rtol=0)


def test_everything_kept_is_dense_for_every_reducer(folder: Path) -> None:
    bundle = ask(folder, reducers=[*REDUCERS], scorers=["mass"], keeps=[1.0])
    dense = artifacts.load(folder / "predictions/probe/dense.safetensors")[0]
    assert len(bundle.comparisons[0].lines) == len(REDUCERS) + 1, "and the reference"
    for line in bundle.comparisons[0].lines:
        stored = artifacts.load(folder / f"predictions/probe/{line.row.name}.safetensors")[0]
        assert torch.equal(stored["top5"], dense["top5"]), line.row.name
        torch.testing.assert_close(stored["logits"], dense["logits"], atol=1e-5, rtol=1e-5)


def test_a_users_scorer_and_reducers_need_no_change_in_the_package(folder: Path, plugin: Path) -> None:
    bundle = ask(
        folder,
        scorers=[f"{plugin}:contrast", f"redi_{plugin}:contrast", f"{plugin}:contrast@2"],
        labels=["gt", "predicted"],
        reducers=["prune", f"{plugin}:first", f"{plugin}:leaving"],
        keeps=[0.8],
    )
    rows = [line.row for line in bundle.comparisons[0].lines]
    assert {row.reducer for row in rows} == {"prune", "first", "leaving", OPERATOR}
    assert {(row.scorer, row.label_source) for row in rows if row.reducer == "prune"} == {
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


def test_a_changed_user_file_is_measured_anew(folder: Path, plugin: Path, tmp_path: Path, begun: list[str]) -> None:
    mine = tmp_path / "own.py"
    mine.write_text(plugin.read_text())
    for expected in (1, 1, 2):
        if expected == 2:
            mine.write_text(plugin.read_text() + "# changed\n")
        ask(folder, scorers=["mass"], reducers=[f"{mine}:first"])
        assert len(evaluations(begun)) == expected


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"scorers": ["nothing"]}, "no scorer 'nothing'; choose one of"),
        ({"scorers": ["mass"], "reducers": ["melt"]}, "no reducer 'melt'; choose one of"),
        ({"scorers": ["redi_mass"], "labels": ["guess"]}, "label source must be one of gt,"),
        ({"scorers": ["redi_mass"], "labels": ["text"]}, "this backbone has no embedding for that: use a CLIP or SigL"),
        ({"scorers": ["mass@9"]}, "this backbone has 3 blocks"),
        ({"scorers": ["rollout@2"]}, "rollout reads every block"),
        ({"scorers": ["mass"], "keeps": [0.5], "costs": [0.5]}, "one of --keep, --tokens and --cost"),
        ({"scorers": ["mass"], "after": [3]}, "--after is a number of blocks, here 0 to 2"),
        ({"scorers": ["mass"], "costs": [float("nan")]}, "cannot be met"),
        ({"reducers": ["word-merging"], "after": [1]}, "works before block 1 only"),
        ({"reducers": ["tome"], "costs": [0.01]}, "^tome: A relative cost of .* cannot be met: possible costs range"),
        ({"reducers": ["prune"]}, "ranks patches by a score: give --scorer"),
        ({"scorers": ["missing.py:name"]}, "There is no file missing.py"),
    ],
)
def test_mistakes_are_one_line_and_lose_nothing(folder: Path, request_: dict[str, Any], message: str) -> None:
    before = (folder / "results.json").read_bytes()
    with pytest.raises(ValueError, match=message):
        ask(folder, **request_)
    assert (folder / "results.json").read_bytes() == before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong_shape", r"scorer 'wrong_shape' failed: .*it must give \[4, 196\] scores"),
        ("failing", "reducer 'failing' failed: KeyError: 'nothing'"),
        ("too_many", "reducer 'too_many' failed: it must return 102 tokens, not 196"),
        ("stumbling", "reducer 'stumbling' failed: IndexError: here"),
        ("greedy", r"reducer 'greedy' failed: it must return \d+ tokens, not 1"),
        ("leaving_python", "scorer 'leaving_python' failed: SystemExit: 0"),
        ("undefined", "scorer 'undefined' failed: its scores are not all finite"),
        ("far_apart", "scorer 'far_apart' failed: its scores are too far apart"),
    ],
)
def test_what_a_users_function_does_wrong_is_said(folder: Path, plugin: Path, name: str, message: str) -> None:
    own = f"{plugin}:{name}"
    asked: dict[str, Any] = {"scorers": ["mass"], "reducers": [own], "keeps": [0.8]}
    if name in ("wrong_shape", "leaving_python", "undefined", "far_apart"):
        asked = {"scorers": [own, "col_l2"]}
    if name == "too_many":
        del asked["keeps"]
    before = sorted(folder.rglob("*.safetensors"))
    with pytest.raises(InvalidInput, match=message):
        ask(folder, **asked)
    after = [file for file in sorted(folder.rglob("*.safetensors")) if "partial" not in file.parts]
    assert after == before, "nothing was stored"


def test_a_users_functions_cannot_change_the_rows_beside_them(folder: Path, plugin: Path, tmp_path: Path) -> None:
    """The package's own rows are bit for bit those of a comparison without the user's functions."""
    names = ("scores/col_l2", "scores/feature_norm", "predictions/probe/mass~prune", "predictions/probe/col_l2~prune")
    shutil.copytree(folder, tmp_path / "alone")
    ask(tmp_path / "alone", scorers=["col_l2", "feature_norm", "mass"], reducers=["prune"])
    scorers = [f"{plugin}:poisonous", "col_l2", "feature_norm", "mass"]
    ask(folder, scorers=scorers, reducers=[f"{plugin}:poisoned", "prune"])
    for name in names:
        alone, beside = (
            artifacts.load(run / f"{name}.safetensors")[1]["digest"] for run in (tmp_path / "alone", folder)
        )
        assert alone == beside, name


def test_a_stopped_comparison_goes_on_where_it_was(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request(scorers=["mass", "cls_mean"], reducers=["prune", "fuse"])

    def ask_in_pairs(of: Path) -> Any:
        return compare(saved_config(of), (), request, group_size=2)

    whole = tmp_path / "whole"
    shutil.copytree(folder, whole)
    expected = ask_in_pairs(whole)
    real, groups = PassRunner.run, []

    def stopping(self: PassRunner, work: Any, key: Any) -> Any:
        groups.append(work.name)
        if len(groups) == 2:
            raise KeyboardInterrupt
        return real(self, work, key)

    monkeypatch.setattr(PassRunner, "run", stopping)
    with pytest.raises(KeyboardInterrupt):
        ask_in_pairs(folder)
    assert ask_in_pairs(folder).comparisons == expected.comparisons
    assert len(groups) == 3
    assert groups[0] != groups[1] == groups[2], "the second group is found again under its name"


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


def test_a_grid_of_two_costs_is_compared_at_each_of_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = ask(folder, scorers=["mass"], reducers=["prune", "tome"], costs=[0.6, 0.7], name="Which?")
    assert "evaluate Incoming mass, prune at cost 0.60 and 5 more rows" in capsys.readouterr().err
    for entry, cost in zip(bundle.comparisons, (0.6, 0.7), strict=True):
        assert entry.title == f"Which? (at a cost of {cost})"
        assert entry.reference in [line.row for line in entry.lines]
        assert all(abs(line.row.cost - cost) < 0.02 for line in entry.lines)
        assert [line.p_dense for line in entry.lines] == holm([line.row.p_value for line in entry.lines])
    curves = curves_of(read_results(folder), "probe")
    assert {"prune, Incoming mass": 2, "ToMe": 2}.items() <= {name: len(rows) for name, rows in curves.items()}.items()
    config = saved_config(folder)
    request = Request(scorers=["mass"], reducers=["prune", "tome"], costs=[0.6, 0.7], name="Which?")
    bundle = compare(config, (), request, against="Incoming mass, prune")
    assert bundle is not None
    assert [round(entry.reference.cost, 1) for entry in bundle.comparisons] == [0.6, 0.7], "a title holds at every cost"
    assert len(read_bundle(folder).comparisons) == 2, "the study of this name was replaced"


def test_only_columns_that_are_shown_have_a_footnote(folder: Path) -> None:
    bundle = ask(folder, scorers=["mass"], reducers=["prune"])
    sheet = comparison_sheet(bundle.comparisons[0], read_results(folder).notes)
    explained = {name for note in sheet.notes_without() for name in note.partition(":")[0].split(", ")}
    assert {"Cost", "p KL", "Agree"} <= explained
    assert not {"ρ", "Overlap"} & explained
    narrow = {name for note in sheet.notes_without(WIDE) for name in note.partition(":")[0].split(", ")}
    assert "Cost" in narrow
    assert not set(WIDE) & narrow


def test_markdown_keeps_the_columns(folder: Path) -> None:
    bundle = ask(folder, scorers=["mass"], reducers=["prune"])
    entry = bundle.comparisons[0]
    sheet = comparison_sheet(entry, read_results(folder).notes)
    lines = [line for line in to_markdown(sheet).splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1
    assert any("Incoming mass, prune" in line for line in lines[2:])


def test_the_command_line(folder: Path, plugin: Path) -> None:
    command = [sys.executable, "-m", "redi", "compare", str(folder)]
    done = subprocess.run(
        [*command, "--scorer", f"{plugin}:contrast", "--reducer", "prune", "--keep", "0.4"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "[gt] rows look up the true class" in done.stdout, "an oracle is said to be one"
    assert "contrast, prune" in done.stdout
    assert json.loads((folder / "compare.json").read_text())["comparisons"][0]["study"][:5] == "grid-"
    plan = subprocess.run([*command, "--dry-run"], capture_output=True, text=True, check=True)
    assert "ablations" in plan.stdout
    failed = subprocess.run([*command, "--scorer", "nothing"], capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert failed.stderr.startswith("redi: There is no scorer 'nothing'")
    assert "Traceback" not in failed.stderr
    nowhere = subprocess.run([*command[:-1], str(folder / "nowhere")], capture_output=True, text=True, check=False)
    assert "is not a run folder" in nowhere.stderr


def test_work_inside_a_killed_pass_is_not_lost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in the third k-means pass of the ablations: the first two are not made again."""
    begun: list[str] = []
    real = PassRunner.run

    def watched(self: Any, work: Any, key: Any) -> Any:
        begun.append(work.name)
        if work.name == "ablation pass 3" and begun.count("ablation pass 3") == 1:
            raise KeyboardInterrupt
        return real(self, work, key)

    monkeypatch.setattr(PassRunner, "run", watched)
    with pytest.raises(KeyboardInterrupt):
        ask(folder, ("ablations",))
    ask(folder, ("ablations",))
    assert begun.count("ablation pass 1") == begun.count("ablation pass 2") == 1
    assert not (folder / "partial").exists()


def test_only_the_missing_rows_of_a_group_are_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(folder, scorers=["mass"], reducers=["prune", "fuse"])
    applied: list[OneShot] = []
    real = OneShot.apply

    def counted(self: OneShot, *arguments: Any) -> Any:
        applied.append(self)
        return real(self, *arguments)

    monkeypatch.setattr(OneShot, "apply", counted)
    ask(folder, scorers=["mass"], reducers=["prune", "pool", "fuse"])
    assert set(applied) == {REDUCERS["pool"]}


def test_comparisons_whose_rows_have_changed_are_dropped(folder: Path) -> None:
    ask(folder, scorers=["mass"], reducers=["prune"])
    ask(folder, scorers=["mass"], reducers=["fuse"])
    assert len(read_bundle(folder).comparisons) == 2, "an earlier comparison stays"
    config = replace(saved_config(folder), seed=1)
    execute(config)
    compare(config, (), Request(scorers=["mass"], reducers=["pool"]))
    (entry,) = read_bundle(folder).comparisons
    assert [line.row.reducer for line in entry.lines] == ["pool", OPERATOR], "and the reference"


def test_an_image_that_went_missing_leaves_no_broken_scores(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_both_classifiers_have_their_own_predicted_class(small_data: Path, tmp_path: Path) -> None:
    """A head of seven classes in another order: the map of "predicted" is made by hand."""
    save_checkpoint("vit_head", tmp_path / "head")
    (tmp_path / "map.tsv").write_text("amber\t2\nblue\t5\ngreen\t0\nred\t6\n")
    config = replace(
        small_config(small_data, tmp_path / "run"),
        backbone=str(tmp_path / "head"),
        classifier="both",
        class_map=str(tmp_path / "map.tsv"),
    )
    execute(config)
    bundle = compare(config, (), Request(scorers=["tfidf"], labels=["predicted", "posterior"]))
    assert bundle is not None
    assert [entry.classifier for entry in bundle.comparisons] == ["probe", "native"]
    with open_run(config) as run:
        maps = ScoreMaps(run)
        native = run.load(DENSE_PASS)["native_logits"][:, [2, 5, 0, 6]].argmax(dim=1)
        variant = Variant(Score("tfidf"), "predicted")
        made = maps.map(variant, "native")
        words, table = run.load(WORDS)["words"][:, :1], run.load("tfidf")["table"]
        one_view = replace(variant, corpus=CorpusSettings(views=1))
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
    assert done.stderr.strip().endswith("--name need --scorer or --reducer.")
