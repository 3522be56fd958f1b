"""The benchmark at equal cost: its work can be shared and continued, and nothing changes."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from families import save_model, scrambled
from learned_files import write_learned
from redi.backbone import load_backbone
from redi.records import artifacts
from redi.reduction import REDUCERS

FOLDER = Path(__file__).parents[1] / "benchmarks"
Call = Callable[..., str]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the script with some options; the result is what it prints."""

    def run(*options: object) -> str:
        monkeypatch.syspath_prepend(str(FOLDER))
        monkeypatch.setattr(sys, "argv", ["equal_cost.py", *map(str, options)])
        runpy.run_path(str(FOLDER / "equal_cost.py"), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.fixture
def measure(call: Call, small_data: Path, tmp_path: Path) -> Call:
    """Measure a few rows on the ten images of two classes, in batches of four."""
    options = ["--backbone", small_data / "head", "--images", small_data / "val", "--class-map", small_data / "map.tsv"]
    options += ["--classes", "even", "--batch-size", 4]

    def run(out: str, *more: object) -> str:
        return call(*options, "--out", tmp_path / out, "--cost", 0.65, *more)

    return run


def test_shards_and_rows_of_several_files_give_the_same_table(call: Call, measure: Call, tmp_path: Path) -> None:
    whole = measure("whole", "--rows", "accelerate,protected,tome,prune")
    for part in (1, 2):
        measure(f"own-{part}", "--rows", "accelerate,protected", "--shard", f"{part}/2")
    measure("peers", "--rows", "tome,prune")
    files = [tmp_path / name for name in ("own-2", "peers", "own-1")]
    merged = call(*files, "--figure", tmp_path / "figure.png")
    assert "10 of 10 images" in whole
    assert merged in whole
    assert merged.count("| ToMe | 0.6") == 1
    assert merged.count("| redi.accelerate | 0.65 | KL |") == 1, "our own row beside the best peer"
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    with pytest.raises(SystemExit, match="has 5 of 10 images: give the files of all shards"):
        call(*files[:2])


def test_a_file_that_is_not_complete_is_continued(measure: Call, tmp_path: Path) -> None:
    measure("file", "--rows", "tome")
    whole, manifest = artifacts.load(tmp_path / "file")
    begun = {name: values[:4] for name, values in whole.items()}
    artifacts.save(tmp_path / "file", begun, manifest["key"], **manifest["notes"])
    printed = measure("file", "--rows", "tome")
    assert "8 of 10 images\n10 of 10 images\n" in printed
    assert "4 of 10 images" not in printed
    again, _ = artifacts.load(tmp_path / "file")
    assert all(torch.equal(again[name], values) for name, values in whole.items())
    with pytest.raises(SystemExit, match="holds other rows, images or weights"):
        measure("file", "--rows", "protected")


def test_a_limit_takes_images_of_all_classes_and_not_the_first(measure: Call, tmp_path: Path) -> None:
    measure("file", "--rows", "tome", "--limit", 5)
    stored, _ = artifacts.load(tmp_path / "file")
    assert stored["images"].tolist() == [0, 2, 4, 11, 13], "of 0 to 4 and 10 to 14"


def test_every_row_has_the_shortcut_if_the_head_reads_the_prefix_alone(
    call: Call, small_data: Path, tmp_path: Path
) -> None:
    """So peers remove less for the same cost."""
    backbone = load_backbone(save_model(scrambled("vit_head", num_labels=4), tmp_path / "vit"))
    classes = sorted(folder.name for folder in (small_data / "val").iterdir())
    (tmp_path / "map.tsv").write_text("".join(f"{name}\tLABEL_{k}\n" for k, name in enumerate(classes)))
    options = ["--backbone", tmp_path / "vit", "--images", small_data / "val", "--class-map", tmp_path / "map.tsv"]
    options += ["--rows", "accelerate,tome,prune", "--cost", 0.65, "--limit", 2, "--out", tmp_path / "file"]
    printed = call(*options)
    rows = artifacts.load(tmp_path / "file")[1]["key"]["rows"]
    on, tome = backbone.geometry, REDUCERS["tome"]
    wanted = tome.extent_for_cost(0.65, on, prefix_only=True)
    assert rows["0.65/tome"] == repr(wanted)
    assert wanted != tome.extent_for_cost(0.65, on)
    assert "| ToMe | 0.65" in printed
    with pytest.raises(SystemExit, match="has a head of its own: leave out --train"):
        call(*options, "--train", small_data / "train")


def test_a_backbone_without_a_head_is_read_by_a_probe(call: Call, small_data: Path, tmp_path: Path) -> None:
    options = ["--backbone", small_data / "backbone", "--images", small_data / "val", "--batch-size", 4]
    options += ["--rows", "accelerate,tome", "--cost", 0.75, "--out", tmp_path / "file"]
    with pytest.raises(SystemExit, match="has no head to classify with: train a probe with --train FOLDER"):
        call(*options)
    printed = call(*options, "--train", small_data / "train")
    assert "| redi.accelerate | 0.7" in printed
    assert "| ToMe | 0.7" in printed


def test_learned_reducers_are_rows_and_points_of_a_curve(
    measure: Call, small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    backbone = load_backbone(small_data / "head")
    for seed in (1, 2):
        write_learned(tmp_path / "adavit.safetensors", backbone, "adavit", seed)
        rows = measure(f"odd-{seed}", "--learned", tmp_path / "adavit.safetensors", "--rows", "tome,adavit")
        assert rows.count("| AdaViT, learned | 0.6") == 1
    points = [f"{100 * seed}={tmp_path / f'odd-{seed}'}" for seed in (1, 2)]
    monkeypatch.setattr(sys, "argv", ["learning_curve.py", *points, "--figure", str(tmp_path / "curve.png")])
    runpy.run_path(str(FOLDER / "learning_curve.py"), run_name="__main__")
    table = capsys.readouterr().out
    assert table.startswith("| row | cost | 100 | 200 |")
    cells = {line.split(" | ")[0]: line.rstrip(" |").split(" | ")[2:] for line in table.splitlines()}
    assert len(set(cells["| ToMe"])) == 1, "it does not learn"
    assert len(set(cells["| AdaViT, learned"])) == 2
    assert (tmp_path / "curve.png").stat().st_size > 5_000
