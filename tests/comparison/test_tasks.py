"""Retrieval and localisation on a small run: their records, whose labels they read, their reports, mistakes."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.nn.functional import normalize
from typer.testing import CliRunner

import redi
from families import save_checkpoint
from redi.attention import ATTENTION_SCORES, AttentionScore, mass_of
from redi.backbone import load_backbone
from redi.budget import Budget
from redi.cli import app
from redi.comparison import embedding
from redi.comparison.compare import compare
from redi.comparison.embedding import CHOOSERS, MERGED, Seen, embed_side, image_features, limited, stored_vectors
from redi.comparison.ground import Ground
from redi.comparison.retrieval import retrieval_rows, retrieval_sides
from redi.comparison.tasks import TaskOptions, possible_tasks
from redi.corpus import LABEL_SOURCES
from redi.cost import Geometry
from redi.errors import ConfigError, InvalidInput
from redi.images.masks import mask_file
from redi.pipeline import open_run
from redi.records import artifacts
from redi.records.localisation import earlier_localisation, write_localisation
from redi.records.retrieval import CLASSIFIER_LABELS, GALLERY_LABELS, KNN, MAP, NO_LABELS, earlier_retrieval
from redi.reduction import OPERATOR, Extent
from redi.report.build import build_report
from redi.report.compare import publish
from redi.report.figures import write_figures
from redi.retrieval import maxsim
from redi.rows import DENSE, Catalogue, CorpusSettings, Score, Variant
from redi.runs.config import saved_config
from redi.runs.folder import Run
from redi.runs.passes import PassRunner
from redi.stages.evaluate import forward
from redi.stages.maps import ScoreMaps
from redi.stages.score import scored_images

STUDIES = ["retrieval", "localisation"]


def write_masks(run: Path, masks: Path) -> None:
    """A square on every validation image, at a place that differs between images."""
    root = Path(saved_config(run).val)
    for number, file in enumerate(sorted(root.glob("*/*.jpg"))):
        mask = Image.new("1", (144, 120))
        left = 20 + 3 * number
        mask.paste(1, (left, 30, left + 50, 80))
        path = mask_file(masks, file.relative_to(root).as_posix())
        path.parent.mkdir(parents=True, exist_ok=True)
        mask.save(path)


@pytest.fixture(scope="module")
def measured(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with both tasks, and its masks beside it. Not to be written to."""
    folder = tmp_path_factory.mktemp("tasks")
    shutil.copytree(finished, folder / "run")
    write_masks(folder / "run", folder / "masks")
    compare(saved_config(folder / "run"), STUDIES, options=TaskOptions(folder / "masks"))
    return folder / "run"


@pytest.fixture
def folder(measured: Path, tmp_path: Path) -> Path:
    shutil.copytree(measured, tmp_path / "run")
    return tmp_path / "run"


def ground_of(run: Run) -> Ground:
    catalogue = Catalogue(has_cls=run.backbone.has_cls)
    return Ground(run.backbone.geometry, Extent(run.config.budget), catalogue, run.config.vocabulary, 28)


def embed_again(folder: Path, labels: str) -> dict[str, torch.Tensor]:
    """Everything that is stored of both sides, made again with the labels of one split permuted, or of none."""
    shutil.rmtree(folder / "retrieval")
    with open_run(saved_config(folder)) as run, torch.no_grad():
        images: Any = {"train": run.training, "val": run.validation}.get(labels)
        if images is not None:
            images.labels = [(label + 1) % 4 for label in images.labels]
        for side in retrieval_sides(run, retrieval_rows(ground_of(run))):
            embed_side(run, side, Catalogue())
    return stored_of(folder)


def stored_of(folder: Path) -> dict[str, torch.Tensor]:
    files = sorted((folder / "retrieval").glob("*.safetensors"))
    return {f"{file.stem}/{name}": tensor for file in files for name, tensor in artifacts.load(file)[0].items()}


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


def test_nothing_of_a_query_depends_on_its_label(folder: Path) -> None:
    before = stored_of(folder)
    assert before.keys() > {"queries-features/dense", "queries-patches/mass", "gallery-patches/tfidf~gallery"}
    assert not changed(before, embed_again(folder, "val"))


def test_a_gallery_row_depends_on_the_gallerys_labels_only_if_it_says_so(folder: Path) -> None:
    """So the test of the queries would notice a label."""
    before = stored_of(folder)
    assert changed(before, embed_again(folder, "train")) == {
        "gallery-features/redi_mass",
        "gallery-patches/tfidf~gallery",
    }


def test_the_side_of_the_queries_refuses_every_source_that_reads_labels(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = seen_of(folder, monkeypatch)
    assert seen.labels is None
    for name, source in LABEL_SOURCES.items():
        if source.uses_truth:
            with pytest.raises(InvalidInput, match="label of a query is not known"):
                seen.map(Score("tfidf"), name)


def seen_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Seen:
    """What the dense pass tells about the first batch of queries."""
    caught: list[Seen] = []

    def spy(seen: Seen) -> torch.Tensor:
        caught.append(seen)
        return seen.attention["mass"]

    monkeypatch.setitem(CHOOSERS, "mass", replace(CHOOSERS["mass"], map=spy))
    shutil.rmtree(folder / "retrieval")
    with open_run(saved_config(folder)) as run, torch.no_grad():
        embed_side(run, retrieval_sides(run, retrieval_rows(ground_of(run)))[1], Catalogue())
    return caught[0]


def test_scores_are_those_of_the_run_with_one_view(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = seen_of(folder, monkeypatch)
    count = len(seen.indices)
    with open_run(saved_config(folder)) as run:
        maps = ScoreMaps(run)
        assert list(seen.indices) == scored_images(run)[:count]
        one_view = CorpusSettings(views=1)
        for source in ("none", "predicted", "posterior"):
            for score in (Score("tfidf"), Score("tfidf", "mass")):
                expected = maps.map(Variant(score, source, corpus=one_view), "probe")
                assert expected is not None
                torch.testing.assert_close(seen.map(score, source), expected[:count], atol=2e-3, rtol=0)
        for score in (Score(local="mass"), Score(local="random")):
            expected = maps.map(Variant(score), "probe")
            assert expected is not None
            torch.testing.assert_close(seen.map(score), expected[:count], atol=1e-3, rtol=0)


def test_features_are_those_of_the_frozen_backbone(measured: Path) -> None:
    stored = stored_of(measured)
    with open_run(saved_config(measured), writing=False) as run, torch.no_grad():
        backbone, maps = run.backbone, ScoreMaps(run)
        (batch,) = run.dataset(run.validation).batches([[0, 1, 2]], workers=0)
        tokens = backbone.embed(backbone.preprocessing.normalise(batch.pixels[:, 0]))
        normed = backbone.final_norm(backbone.encode(tokens))
        expected = torch.stack([normed[:, 0], normed[:, backbone.prefix :].mean(dim=1)], dim=1)
        dense = stored["queries-features/dense"][:3].float()
        torch.testing.assert_close(dense, normalize(expected, dim=-1), atol=1e-3, rtol=0)
        variant = ground_of(run).row(Score(local="mass"))
        scores = maps.map(variant, "probe")
        assert scores is not None
        final = forward(backbone, Catalogue(), variant, scores[:3], {0: tokens})
        reduced = stored["queries-features/mass"][:3].float()
        torch.testing.assert_close(reduced, image_features(backbone, final.hidden), atol=1e-3, rtol=0)
        patches = normalize(normed[:, backbone.prefix :], dim=-1)
        best = patches[0, scores[0].argsort(descending=True, stable=True)[0]]
        torch.testing.assert_close(stored["queries-patches/mass"][0, 0].float(), best, atol=1e-3, rtol=0)


def test_retrieval_reads_a_new_attention_score(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a toy that is the mass of the first block, which only a pass that watches all blocks can give."""
    before = stored_of(folder)
    toy = AttentionScore(
        "Toy", "toy", lambda means, rows, prefix: mass_of(means[0], prefix), every_block=True, needs_cls=False
    )
    with open_run(saved_config(folder)) as run, torch.no_grad():
        rows = retrieval_rows(ground_of(run))
        monkeypatch.setitem(ATTENTION_SCORES, "toy", toy)
        variants = [ground_of(run).row(Score(local=name)) for name in ("toy", "mass")]
        side = replace(retrieval_sides(run, rows)[1], variants=variants, name="toys")
        embed_side(run, side, Catalogue())
    stored = stored_of(folder)
    mass = before["queries-features/mass"]
    torch.testing.assert_close(stored["toys-features/mass"], mass, atol=1e-3, rtol=0)
    assert (stored["toys-features/toy"] - mass).abs().max() > 0.01


def test_the_record_of_retrieval_says_whose_labels_each_row_uses(measured: Path) -> None:
    record = earlier_retrieval(measured)
    assert record is not None
    assert (record.gallery, record.queries, record.classes, record.left_out) == (28, 20, 4, 0)
    assert record.neighbours == 7, "as many as a class has images"
    assert [line.feature for line in record.lines[:: len(record.lines) // 2]] == ["CLS", "patch mean"]
    labels = {line.row: line.labels for line in record.lines}
    used = {CLASSIFIER_LABELS: {"redi_mass~predicted", "redi_mass~posterior"}, GALLERY_LABELS: {"redi_mass"}}
    for source, rows in used.items():
        assert {row for row, own in labels.items() if own == source} == rows
    free = {row for row, own in labels.items() if own == NO_LABELS}
    assert free >= {DENSE, "random", "mass", "redi_mass~none"}
    assert record.absent == ["redi.accelerate", "ToMe"], "three blocks are too few to reach the operator's cost"
    for line in record.lines:
        assert set(line.measures) == {KNN, "R@1", "R@10", MAP}
        assert all(0 <= value <= 100 for value in line.measures.values())
        assert line.measures["R@1"] <= line.measures["R@10"]
        assert bool(line.to_dense) == (line.row != DENSE)
        assert bool(line.to_reference) == (line.row != "mass")
        for paired in (*line.to_dense.values(), *line.to_reference.values()):
            assert paired.interval[0] <= paired.delta + 1e-9
            assert paired.delta <= paired.interval[1] + 1e-9
    dense, mass = (next(line for line in record.lines if line.row == row) for row in (DENSE, "mass"))
    assert mass.to_dense[MAP].delta == pytest.approx(mass.measures[MAP] - dense.measures[MAP], abs=1e-4)
    assert {(line.chooser, line.labels) for line in record.index if line.labels != NO_LABELS} == {
        ("tfidf~gallery", GALLERY_LABELS)
    }
    assert {line.vectors for line in record.index} == {1, 2, 4, 8, 16, 32}


def test_rows_are_at_the_cost_of_the_operator(measured: Path) -> None:
    with open_run(saved_config(measured), writing=False) as run:
        ground = replace(ground_of(run), on=Geometry((14, 14), 1, 384, 64, 12))
    rows = retrieval_rows(ground)
    assert [row.gallery.reducer for row in rows if row.gallery.reducer != OPERATOR] == ["", "pool", "protected", "tome"]
    for row in rows[1:]:
        cost = ground.catalogue.reducers[row.gallery.reducer].cost(row.gallery.extent, ground.on)
        assert cost == pytest.approx(ground.operator_cost(), abs=0.02)
        assert not getattr(LABEL_SOURCES.get(row.query.label_source), "uses_truth", False)


def test_measures_of_the_index_equal_a_loop(measured: Path) -> None:
    """mAP of the index, from what is stored, with plain Python."""
    stored, record = stored_of(measured), earlier_retrieval(measured)
    assert record is not None
    sizes = [1, 2, 4, 8, 16, 32]
    for chooser, size in (("mass", 4), (MERGED, 8), ("tfidf~gallery", 2)):
        of_query = CHOOSERS[chooser].of_query or chooser
        queries = stored_vectors(stored[f"queries-patches/{of_query}"].float(), of_query, sizes, size)
        gallery = stored_vectors(stored[f"gallery-patches/{chooser}"].float(), chooser, sizes, size)
        assert queries.shape[1] == gallery.shape[1] == size
        precisions = []
        for query, scores in enumerate(maxsim(queries, gallery).tolist()):
            order = sorted(range(28), key=lambda k: -scores[k])
            ranks = [rank for rank, image in enumerate(order, start=1) if image // 7 == query // 5]
            precisions.append(sum(found / rank for found, rank in enumerate(ranks, start=1)) / 7)
        (line,) = (line for line in record.index if (line.chooser, line.vectors) == (chooser, size))
        assert line.measures[MAP] == pytest.approx(100 * sum(precisions) / 20, abs=1e-3)


def test_the_record_of_localisation_has_every_source_and_its_curve(measured: Path) -> None:
    record = earlier_localisation(measured)
    assert record is not None
    assert (record.images, record.left_out, record.reference) == (20, 0, "Incoming mass")
    rows = {line.row: line for line in record.lines}
    assert rows.keys() >= {"random", "centre", "mass", "tfidf", "redi_mass", "tfidf~none", "redi_mass~other"}
    assert {line.label_source for line in record.lines} == {"", "gt", "predicted", "posterior", "none", "other"}
    for line in record.lines:
        assert len(line.curve) == len(record.thresholds) == 101
        assert line.curve[0] == pytest.approx(record.whole, abs=1e-4), "at 0 a map covers everything"
        assert max(line.curve) == pytest.approx(line.best_iou)
        assert line.curve[record.thresholds.index(line.threshold)] == pytest.approx(line.best_iou)
        assert line.iou <= line.best_iou + 1e-6 <= record.ceiling + 1e-5
        assert (line.iou_to_reference is None) == (line.row == "mass")


def test_localisation_does_not_depend_on_the_runs_budget(folder: Path, measured: Path) -> None:
    config = replace(saved_config(folder), budget=Budget(0.25, 0.25))
    compare(config, ["localisation"], options=TaskOptions(measured.parent / "masks"))
    here, there = earlier_localisation(folder), earlier_localisation(measured)
    assert here is not None
    assert there is not None
    assert here.lines == there.lines


def test_nothing_is_embedded_twice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: PassRunner, work: Any, key: Any) -> Any:
        raise AssertionError(work.name)

    monkeypatch.setattr(PassRunner, "run", fail)
    before = earlier_retrieval(folder)
    compare(saved_config(folder), ["retrieval"])
    after = earlier_retrieval(folder)
    assert before is not None
    assert after is not None
    assert after.lines == before.lines
    assert after.index == before.index


def test_of_a_large_gallery_some_images_of_each_class_are_taken(folder: Path) -> None:
    compare(saved_config(folder), ["retrieval"], options=TaskOptions(gallery=9, queries=4))
    record = earlier_retrieval(folder)
    assert record is not None
    assert (record.gallery, record.queries, record.neighbours) == (8, 4, 2)
    assert limited([0, 0, 1, 1, 1, 0], [0, 1, 2, 4, 5], 4) == [0, 1, 2, 4]
    assert limited([0, 0, 1, 1], [0, 1, 2, 3], 4) == [0, 1, 2, 3]
    assert limited([0, 1, 2], [0, 1, 2], 2) == [0, 1, 2], "at least one of each class"


def test_a_query_whose_class_the_gallery_lacks_is_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = embedding.limited

    def without_red(labels: Any, indices: Any, most: int) -> list[int]:
        return [index for index in own(labels, indices, most) if len(labels) == 20 or labels[index] != 3]

    monkeypatch.setattr("redi.comparison.retrieval.limited", without_red)
    compare(saved_config(folder), ["retrieval"])
    record = earlier_retrieval(folder)
    assert record is not None
    assert (record.gallery, record.queries, record.left_out, record.classes) == (21, 15, 5, 3)
    assert "5 queries are left out" in (publish(folder)[0].parent / "compare.md").read_text()


def test_without_a_class_token_the_patch_mean_is_the_only_feature(tmp_path: Path, pixels: torch.Tensor) -> None:
    backbone = load_backbone(save_checkpoint("siglip", tmp_path))
    assert not backbone.has_cls
    hidden = backbone.encode(backbone.embed(pixels))
    expected = normalize(backbone.final_norm(hidden)[:, backbone.prefix :].mean(dim=1), dim=-1)
    torch.testing.assert_close(image_features(backbone, hidden), expected[:, None])


def test_tables_and_curves_are_in_every_report(folder: Path) -> None:
    written = {path.name for path in publish(folder)}
    assert {"retrieval.json", "retrieval.png", "localisation.json", "localisation.png"} <= written
    text = (folder / "compare.md").read_text()
    titles = (
        "Retrieval with CLS",
        "Retrieval with patch mean",
        "Patch index, mAP",
        "Patch index with tests",
        "Localis",
    )
    for title in titles:
        assert f"### {title}" in text
    assert "| REDI, mass [gallery's class] | own |" in text
    page = build_report(folder).read_text()
    for title in titles:
        assert f"<summary>{title}" in page
    figures = {path.name for path in write_figures(folder)}
    assert {
        "retrieval.pdf",
        "localisation.pdf",
        "retrieval-cls.tex",
        "retrieval-index.md",
        "localisation.tex",
    } <= figures


def test_a_record_of_an_earlier_state_of_the_run_is_not_shown(folder: Path) -> None:
    record = earlier_localisation(folder)
    assert record is not None
    write_localisation(folder, replace(record, digests={"train": "another"}))
    written = {path.name for path in publish(folder)}
    assert "localisation.json" not in written
    assert "retrieval.json" in written
    assert "### Localisation" not in (folder / "compare.md").read_text()


def test_python_returns_the_tables_and_the_curve_that_were_asked_for(folder: Path) -> None:
    result = redi.compare(folder, "retrieval", gallery=28)
    assert [sheet.title.partition(",")[0] for sheet in result.sheets()] == [
        "Retrieval with CLS",
        "Retrieval with patch mean",
        "Patch index",
        "Patch index with tests",
    ]
    assert [axes.get_title() for axes in result.plot().axes] == ["R@1", "R@10", "mAP"]
    with pytest.raises(ConfigError, match="gallery must be of type int"):
        redi.compare(folder, "retrieval", gallery="all")


def test_without_a_study_localisation_needs_masks(folder: Path, tmp_path: Path) -> None:
    assert possible_tasks(folder, TaskOptions()) == ["retrieval"]
    assert possible_tasks(folder, TaskOptions(tmp_path)) == STUDIES
    (folder / "images" / "val-masks").mkdir(parents=True)
    assert possible_tasks(folder, TaskOptions()) == STUDIES


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--study localisation", "needs masks of the objects, and this run has none: name their folder with --masks"),
        ("--study localisation --masks nowhere", "--masks nowhere is not a folder"),
        ("--study scorers --masks .", "--masks is for --study localisation"),
        ("--study scorers --gallery 10", "--gallery is for --study retrieval"),
        ("--study localisation --masks {empty}", "has no mask: there is no"),
    ],
)
def test_mistakes_are_one_line(folder: Path, tmp_path: Path, options: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    before = (folder / "localisation.json").read_bytes()
    arguments = options.format(empty=tmp_path / "empty").split()
    result = CliRunner().invoke(app, ["compare", str(folder), *arguments])
    assert result.exit_code != 0
    assert message in re.sub(r"\s+", " ", str(result.exception))
    assert "\n" not in str(result.exception)
    assert (folder / "localisation.json").read_bytes() == before


def test_a_plan_measures_nothing(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(folder / "retrieval")
    write_masks(folder, tmp_path / "masks")
    assert compare(saved_config(folder), STUDIES, dry_run=True, options=TaskOptions(tmp_path / "masks")) is None
    printed = capsys.readouterr().out
    assert "8 rows and a patch index: about 28 gallery images, 20 queries" in printed
    assert "no forward pass" in printed
    assert not (folder / "retrieval").exists()
