"""``redi dense`` from end to end: rows, statistics, resume after a kill, refusals, the command and its page."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import redi.segmentation.bench as bench_module
from families import save_checkpoint
from redi.backbone import load_backbone
from redi.cli import app
from redi.errors import ArtifactError, ConfigError, CorpusError
from redi.records.dense import DenseConfig, DenseRecord, load_row, load_scenes, read_dense, row_name, write_dense
from redi.reduction import PROGRESSIVE
from redi.report.dense import class_sheet, dense_sheets, draw_dense, print_dense
from redi.report.dense_page import build_dense_report, class_colours, page_data
from redi.report.dense_scene import draw_scene
from redi.segmentation.bench import measure_dense
from redi.segmentation.measures import mean_iou
from redi.segmentation.rows import encode_dense, encode_row, plan_row, plan_rows, setting_at
from redi.statistics import paired_mean_test
from scenes import CLASSES, VOID_VALUE, write_part, write_scenes

COSTS = (0.7, 0.85)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scenes, a small backbone, and a finished bench. Not to be changed: copy it."""
    folder = tmp_path_factory.mktemp("dense")
    write_scenes(folder / "data")
    save_checkpoint("dinov2", folder / "backbone")
    measure_dense(configuration(folder, folder / "out"))
    return folder


def configuration(folder: Path, out: Path, **changes: Any) -> DenseConfig:
    data = folder / "data"
    config = DenseConfig(
        str(folder / "backbone"),
        str(data / "train"),
        str(data / "val"),
        str(out),
        costs=COSTS,
        rows=("accelerate", "tome"),
        steps=20,
        repeats=2,
        device="cpu",
        workers=0,
    )
    return replace(config, **changes)


def recorded(calls: list[str]) -> Any:
    """:func:`encode_row`, with a list of the rows that it was called for."""

    def encode(backbone: Any, plan: Any, *rest: Any) -> Any:
        calls.append(str(plan))
        return encode_row(backbone, plan, *rest)

    return encode


@pytest.fixture
def record(ground: Path) -> DenseRecord:
    return read_dense(ground / "out")


def test_rows_are_dense_then_every_row_with_both_ways_to_restore(record: DenseRecord) -> None:
    names = [row_name("dense", "", 1)]
    for cost in COSTS:
        names += [row_name(row, restore, cost) for row in ("accelerate", "tome") for restore in ("residual", "copy")]
    assert [row.name for row in record.rows] == names
    assert record.references == {"0.7": "accelerate~residual~0.7", "0.85": "accelerate~residual~0.85"}
    assert record.classes == list(CLASSES)
    assert record.void == VOID_VALUE
    assert record.images == 5
    assert [(entry.images, entry.input, entry.grid) for entry in record.inputs] == [
        (3, (48, 64), (6, 8)),
        (2, (48, 48), (6, 6)),
    ]


def test_dense_agrees_with_itself_and_rows_keep_within_their_cost(record: DenseRecord) -> None:
    assert record.dense.agreement == 100
    assert record.dense.cosine == 1
    assert record.dense.tokens == (3 * 48 + 2 * 36) / 5
    for row in record.rows[1:]:
        assert row.analytic <= row.cost
        assert row.agreement < 100
        assert row.tokens < record.dense.tokens
        assert row.timing is not None
        assert row.timing.speedup is not None
        assert row.timing.memory_mb is not None
    assert record.reference(0.85).cosine > record.reference(0.7).cosine


def test_statistics_are_those_of_the_stored_images(ground: Path, record: DenseRecord) -> None:
    row = next(row for row in record.rows if row.name == "tome~copy~0.7")
    stored, reference = load_row(ground / "out", row.name), load_row(ground / "out", "accelerate~residual~0.7")
    assert row.miou == pytest.approx(mean_iou(stored["counts"].sum(0)).item())
    assert row.agreement == pytest.approx(stored["agreement"].mean().item())
    assert row.to_dense is not None
    assert row.to_dense.miou == pytest.approx(row.miou - record.dense.miou)
    assert row.to_dense.miou_interval[0] <= row.to_dense.miou_interval[1]
    assert row.to_reference is not None
    assert row.to_reference.cosine == pytest.approx(row.cosine - record.reference(0.7).cosine)
    alone = paired_mean_test(stored["agreement"], reference["agreement"])
    assert row.to_reference.p_agreement is not None
    assert alone <= row.to_reference.p_agreement <= min(3 * alone, 1) + 1e-12  # three tests at this cost
    assert record.reference(0.7).to_reference is None


def test_a_row_is_what_the_backbone_gives(ground: Path, record: DenseRecord) -> None:
    """The stored cosine and tokens of one scene, computed again without the bench."""
    backbone = load_backbone(ground / "backbone")
    pixels = backbone.preprocessing.normalise(load_scenes(ground / "out")["picture.0"][None])
    plan = plan_row("accelerate", 0.7, [replace(backbone.geometry, grid=(6, 8))])
    with torch.inference_mode():
        dense, restored = encode_dense(backbone, pixels), encode_row(backbone, plan, pixels)
        only_copy = encode_row(backbone, plan, pixels, ("copy",))
    assert torch.equal(restored.tokens["copy"], only_copy.tokens["copy"])
    for restore in ("residual", "copy"):
        stored = load_row(ground / "out", f"accelerate~{restore}~0.7")
        cosine = torch.cosine_similarity(dense, restored.tokens[restore], dim=-1).mean().item()
        assert stored["cosine"][0].item() == pytest.approx(cosine, abs=1e-5)
        assert torch.equal(stored["groups.0"].long(), restored.source[0])


def test_the_same_command_computes_nothing_again(ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    shutil.copytree(ground / "out", out)
    for name in ("encode_dense", "encode_row", "fit_head", "time_rows"):
        monkeypatch.setattr(bench_module, name, None)
    again = measure_dense(configuration(ground, out))
    assert again.rows == read_dense(ground / "out").rows


def test_a_killed_bench_continues_with_the_row_it_was_in(
    ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, calls = tmp_path / "out", list[str]()

    def killed(backbone: Any, plan: Any, *rest: Any) -> Any:
        calls.append(str(plan))
        if len(calls) == 4:  # the second batch of the second row
            raise KeyboardInterrupt
        return encode_row(backbone, plan, *rest)

    monkeypatch.setattr(bench_module, "encode_row", killed)
    with pytest.raises(KeyboardInterrupt):
        measure_dense(configuration(ground, out))
    assert {path.stem for path in (out / "rows").iterdir()} == {
        "dense",
        "accelerate~residual~0.7",
        "accelerate~copy~0.7",
    }
    assert not (out / "dense.json").exists()
    calls.clear()
    monkeypatch.setattr(bench_module, "encode_row", recorded(calls))
    for name in ("encode_dense", "fit_head"):
        monkeypatch.setattr(bench_module, name, None)
    again = measure_dense(configuration(ground, out))
    assert "accelerate at cost 0.7" not in calls
    expected = read_dense(ground / "out").rows
    assert [replace(row, timing=None) for row in again.rows] == [replace(row, timing=None) for row in expected]


def test_a_kill_among_the_training_tokens_loses_one_batch(
    ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def killed(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return encode_dense(*given)

    monkeypatch.setattr(bench_module, "encode_dense", killed)
    with pytest.raises(KeyboardInterrupt):
        measure_dense(configuration(ground, tmp_path / "out"))
    assert len(list((tmp_path / "out" / "training").iterdir())) == 1
    calls += [1, 1]
    again = measure_dense(configuration(ground, tmp_path / "out"))
    assert len(calls) == 4 + 1 + 2  # the missing training batch, then the two validation batches
    assert not (tmp_path / "out" / "training").exists()
    assert again.rows[0].miou == read_dense(ground / "out").rows[0].miou


def test_other_settings_make_only_what_depends_on_them(
    ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    shutil.copytree(ground / "out", out)
    monkeypatch.setattr(bench_module, "fit_head", None)
    calls: list[str] = []
    monkeypatch.setattr(bench_module, "encode_row", recorded(calls))
    more = measure_dense(configuration(ground, out, costs=(0.7, 0.9), rows=("accelerate",)))
    assert set(calls) == {"accelerate at cost 0.9"}
    assert more.costs == [0.7, 0.9]
    monkeypatch.undo()
    longer = measure_dense(configuration(ground, out, steps=25, rows=("accelerate",)))
    assert longer.head.steps == 25


@pytest.mark.parametrize("part", ["backbone", "train", "val"])
def test_the_folder_of_another_bench_is_refused(ground: Path, tmp_path: Path, part: str) -> None:
    out = tmp_path / "out"
    shutil.copytree(ground / "out", out)
    if part == "backbone":
        other = save_checkpoint("dinov2_registers", tmp_path / "other")
    else:
        other = write_part(tmp_path / "other", 9, 3)
        shutil.copy(ground / "data" / "classes.txt", other)
    before = (out / "dense.json").read_bytes()
    with pytest.raises(ArtifactError, match=f"belongs to another {part} than"):
        measure_dense(configuration(ground, out, **{part: str(other)}))
    assert (out / "dense.json").read_bytes() == before


def test_a_damaged_row_is_named(ground: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(ground / "out", out)
    (out / "rows" / "tome~copy~0.7.safetensors").write_bytes(b"x")
    with pytest.raises(ArtifactError, match=r"tome~copy~0\.7\.safetensors is damaged"):
        measure_dense(configuration(ground, out))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"costs": (1.5,)}, "must lie between 0 and 1"),
        ({"size": (1, 2, 3)}, "--size is a shorter side"),
        ({"steps": 0}, "steps must lie in 1 to"),
        ({"rows": ("nonsense",)}, "There is no row 'nonsense'"),
        ({"costs": (0.01,)}, "No row reaches its cost"),
        ({"void": 1}, "--void 1 is the number of a class"),
        ({"train": "nowhere"}, "--train: nowhere has no folder images"),
    ],
)
def test_bad_settings_are_one_line_and_write_nothing(
    ground: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises((ConfigError, CorpusError), match=message) as error:
        measure_dense(configuration(ground, tmp_path / "out", **change))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_names_file_of_another_length_is_one_line(ground: Path, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("ground\nsubject\n")
    with pytest.raises(CorpusError, match="has the label 2, but there are 2 class names"):
        measure_dense(configuration(ground, tmp_path / "out", names=str(tmp_path / "names.txt")))


def test_a_folder_of_the_user_is_left_alone(ground: Path, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match="was not made by redi"):
        measure_dense(configuration(ground, tmp_path))
    with pytest.raises(ConfigError, match="lies inside the training scenes"):
        measure_dense(configuration(ground, ground / "data" / "train" / "out"))


def test_default_rows_leave_out_what_is_the_same_and_what_cannot_be_reached(ground: Path) -> None:
    on = [replace(load_backbone(ground / "backbone").geometry, grid=(6, 8))]
    plans, left_out = plan_rows((), (0.7,), on)
    same = setting_at(0.7).reducer == PROGRESSIVE["protected"]
    assert ("protected" in {plan.row for plan in plans}) != same
    assert {"accelerate", "tome", "pitome-released"} <= {plan.row for plan in plans}
    _, left_out = plan_rows(("accelerate", "tome"), (0.7, 0.2), on)
    assert all("cost 0.2" in reason for reason in left_out)


def test_the_record_is_read_back_as_it_was(record: DenseRecord, tmp_path: Path) -> None:
    write_dense(tmp_path, record)
    assert read_dense(tmp_path) == record


def test_the_tables_have_every_row_and_class(record: DenseRecord) -> None:
    first, second = dense_sheets(record)
    assert [row[0] for row in first.rows][:2] == ["Dense", "redi.accelerate, residual"]
    assert len(first.rows) == len(second.rows) == 5
    assert all(len(row) == len(first.columns) for row in first.rows)
    assert [row[0] for row in class_sheet(record).rows] == list(CLASSES)
    assert len(draw_dense(record).axes) == 2


def test_intervals_over_few_images_are_said_to_be_narrow(ground: Path, record: DenseRecord, tmp_path: Path) -> None:
    """In the record, in the terminal and on the page; not from 30 images on."""
    warning = "5 images are few: the 95 % intervals of mIoU are too narrow"
    assert warning in record.definitions["interval"]
    console = Console(record=True, width=300)
    print_dense(record, console)
    assert warning in console.export_text()
    shutil.copytree(ground / "out", tmp_path / "out")
    assert warning in build_dense_report(tmp_path / "out").read_text()
    assert not any("few" in note for sheet in dense_sheets(replace(record, images=30)) for note in sheet.notes)


def test_the_page_holds_the_scenes_and_asks_for_nothing(ground: Path, record: DenseRecord, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(ground / "out", out)
    hostile = "<script>alert(1)</script>"
    write_dense(out, replace(record, classes=[hostile, *record.classes[1:]]))
    page = build_dense_report(out).read_text(encoding="utf-8")
    assert hostile not in page
    assert "default-src 'none'" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "{{" not in page
    text = page.partition('<script id="data" type="application/json">')[2].partition("</script>")[0]
    data = json.loads(text)
    assert data["classes"][0]["name"] == hostile
    assert [scene["name"] for scene in data["scenes"]] == record.shown
    assert set(data["scenes"][0]["maps"]) == {row.name for row in record.rows}
    assert set(data["scenes"][0]["groups"]) == {f"{row}~{cost:g}" for row in ("accelerate", "tome") for cost in COSTS}
    assert data["scenes"][0]["grid"] == [6, 8]
    assert data == json.loads(json.dumps(page_data(out, read_dense(out))))


def test_classes_have_different_colours() -> None:
    assert len(set(class_colours(60))) == 60
    assert class_colours(3) == class_colours(60)[:3]


def test_the_page_needs_no_model(ground: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(ground / "out", out)
    source = (
        "import sys\nfrom pathlib import Path\nfrom redi.report.dense_page import build_dense_report\n"
        "build_dense_report(Path(sys.argv[1]))\nassert not {'transformers', 'timm'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", source, str(out)], check=True, timeout=120)


def test_the_command_measures_the_demos_backbone(tmp_path: Path) -> None:
    data = write_scenes(tmp_path / "data", 3, 2)
    arguments = ["dense", str(files("redi.demo") / "demo-vit"), "--train", str(data / "train"), "--val"]
    arguments += [str(data / "val"), "--out", str(tmp_path / "out"), "--cost", "0.75", "--row", "accelerate"]
    arguments += ["--size", "64", "--steps", "5", "--repeats", "1", "--workers", "0", "--device", "cpu"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "Dense prediction at cost 0.75" in result.output
    assert (tmp_path / "out" / "report" / "index.html").is_file()
    assert read_dense(tmp_path / "out").config.size == (64,)
    figure = draw_scene(tmp_path / "out", 0, tmp_path / "scene.png")
    assert (tmp_path / "scene.png").is_file()
    titles = [axes.get_title() for axes in figure.axes]
    (tokens,) = (title for title in titles if title.endswith("tokens"))
    (name,) = {row.name for row in read_dense(tmp_path / "out").rows if row.restore == "residual"}
    groups = load_row(tmp_path / "out", name)["groups.0"]
    assert tokens == f"{len(groups)} patches, {len(groups.unique())} tokens"


def test_the_command_answers_bad_input_in_one_line(tmp_path: Path) -> None:
    code = "import sys; from redi.cli import main; sys.argv[0] = 'redi'; main()"
    backbone = str(files("redi.demo") / "demo-vit")
    command = [
        sys.executable,
        "-c",
        code,
        "dense",
        backbone,
        "--train",
        "a",
        "--val",
        "b",
        "--out",
        str(tmp_path / "o"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "redi: --train: a has no folder images: it must hold images/ and labels/.\n"
    assert not (tmp_path / "o").exists()
