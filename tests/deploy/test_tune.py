"""``redi tune``: parts that share no image, a curve, and a choice that can be trusted."""

import json
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from families import save_checkpoint
from redi.backbone import Backbone, load_backbone
from redi.backbone.own_input import load_with_own_input
from redi.cli import main
from redi.demo.generator import sample
from redi.deploy import Accelerated, Setting, accelerate
from redi.deploy.calibrate import calibrate
from redi.deploy.readout import ImageReadout, Readout
from redi.deploy.sample import load_sample
from redi.deploy.tune import choose, describe_outside, tune
from redi.errors import ConfigError, CorpusError, ImageError, InvalidInput
from redi.images import open_pictures
from redi.images.folders import FlatImages
from redi.records.timing import Spread
from redi.records.tuning import Calibration, Point, TuneConfig, Tuned
from redi.reduction.schedule import Shape
from redi.report.numbers import against_dense
from redi.report.tune import draw_curve, tune_sheet, verdict
from redi.statistics import paired_mean_test
from small_run import files_of

IMAGES = 48


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Drawn scenes: flat/*.png without classes, classes/LABEL_<0..6>/*.png, three/LABEL_<0..2>/*.png."""
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "flat").mkdir()
    for index in range(IMAGES):
        picture = sample(3, index).image.resize((128, 128))
        picture.save(folder / "flat" / f"{index:03}.png")
        for name, count in (("classes", 7), ("three", 3)):
            nested = folder / name / f"LABEL_{index % count}"
            nested.mkdir(parents=True, exist_ok=True)
            picture.save(nested / f"{index:03}.png")
    return folder


@pytest.fixture(scope="module")
def headed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier whose processor cuts crops of 48 px: a grid of 6x6."""
    folder = save_checkpoint("vit_head", tmp_path_factory.mktemp("vit_head"))
    sizes = {"size": {"shortest_edge": 56}, "crop_size": {"height": 48, "width": 48}}
    (folder / "preprocessor_config.json").write_text(json.dumps(sizes))
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint("dinov2", tmp_path_factory.mktemp("dinov2"))


def small(model: Path, images: Path, **changes: object) -> TuneConfig:
    config = TuneConfig(str(model), str(images), calibration=12, costs=(0.6, 0.9), workers=0)
    return replace(config, repeats=2, batch=6, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def tuned(headed: Path, pictures: Path) -> Tuned:
    return tune(small(headed, pictures / "classes"))


def test_labels_of_class_folders_are_those_of_the_head(tuned: Tuned, headed: Path) -> None:
    assert (tuned.measure, tuned.images) == ("accuracy", IMAGES - 12)
    assert tuned.dense_accuracy is not None
    for point in tuned.points:
        assert point.accuracy == pytest.approx(tuned.dense_accuracy - point.drop)
        assert point.drop < point.drop_bound
    cheap, dear = tuned.points
    assert 0.55 < cheap.cost <= 0.6
    assert dear.cost < 0.9
    assert dear.schedule == (36, 36, 36), "of the crop's grid: the last block, for the prefix only, saves enough"
    assert dear.divergence is not None
    assert cheap.divergence is not None
    assert dear.divergence < cheap.divergence, "less is lost where less is removed"
    assert (tuned.setting.shape, tuned.setting.task) == (tuned.calibration.shape, "classify")


def test_accuracy_is_counted_on_the_checked_images(tuned: Tuned, headed: Path, pictures: Path) -> None:
    """The test counts once more, on the pictures of the same part, in crops of the processor's size."""
    backbone = load_with_own_input(headed)
    part = load_sample(open_pictures(str(pictures / "classes")), backbone, 12, 1000).check
    assert part.labels is not None
    model = accelerate(backbone, setting=replace(tuned.setting, cost=0.6))
    with torch.no_grad():
        logits = model(backbone.preprocessing.normalise(part.pixels)).logits
    right = (logits.argmax(dim=1) == part.labels).float().mean().item()
    assert tuned.points[0].accuracy == pytest.approx(100 * right)


@pytest.mark.parametrize("folder", ["flat", "three", "classes"])
def test_a_model_without_a_head_decides_by_the_nearest_image(
    encoder: Path, pictures: Path, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned = tune(small(encoder, pictures / folder))
    assert tuned.measure == ("accuracy" if folder == "three" else "agreement")
    assert tuned.images == IMAGES - 2 * 12
    if folder == "classes":
        said = capsys.readouterr().err
        assert "12 images of 6 classes, but the images to check on have 7" in said
    if folder != "three":
        assert all(point.drop == pytest.approx(100 - point.agreement) for point in tuned.points)


def test_size_threads_and_the_callers_backbone(headed: Path, pictures: Path) -> None:
    backbone, before = load_backbone(headed), torch.get_num_threads()
    tuned = tune(small(headed, pictures / "flat", size=64, threads=before + 1), backbone)
    assert 36 < tuned.points[1].schedule[0] <= 64, "a grid of 8x8"
    assert tuned.environment.threads == before + 1
    assert torch.get_num_threads() == before
    assert backbone.preprocessing.size == 112


def test_the_filter_of_the_images(headed: Path, pictures: Path) -> None:
    backbone = load_backbone(headed)
    smooth = tune(small(headed, pictures / "classes", resize="box", size=48), backbone)
    sharp = tune(small(headed, pictures / "classes", size=48), backbone)
    assert smooth.points[0].divergence != sharp.points[0].divergence
    assert backbone.preprocessing.resample.name == "BICUBIC"
    with pytest.raises(InvalidInput, match="no resize filter 'sharp'"):
        tune(small(headed, pictures / "classes", resize="sharp"), backbone)


def test_folders_that_the_head_does_not_know_serve_for_agreement(
    headed: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, name in enumerate(("cats", "dogs")):
        (tmp_path / name).mkdir()
        for file in sorted((pictures / "flat").iterdir())[number::2]:
            (tmp_path / name / file.name).symlink_to(file)
    assert tune(small(headed, tmp_path)).measure == "agreement"
    assert "labels are not used" in capsys.readouterr().err


def test_parts_share_no_image(encoder: Path, pictures: Path) -> None:
    backbone = load_backbone(encoder)
    drawn = load_sample(open_pictures(str(pictures / "flat")), backbone, 12, 1000)
    parts = [drawn.bank.pixels, drawn.calibration.pixels, drawn.check.pixels]
    assert [len(part) for part in parts] == [12, 12, IMAGES - 24]
    everything = torch.cat(parts).flatten(1)
    assert len(everything.unique(dim=0)) == IMAGES


def test_few_images_leave_half_to_check_on(headed: Path, encoder: Path, pictures: Path) -> None:
    images = open_pictures(str(pictures / "flat"))
    assert len(load_sample(images, load_backbone(headed), 500, 1000).check.pixels) == IMAGES // 2
    drawn = load_sample(images, load_backbone(encoder), 500, 1000)
    counts = [len(part.pixels) for part in (drawn.bank, drawn.calibration, drawn.check)]
    assert counts == [12, 12, 24]


def test_too_few_or_too_damaged_images_are_refused(headed: Path, pictures: Path, tmp_path: Path) -> None:
    for file in sorted((pictures / "flat").iterdir())[:10]:
        (tmp_path / file.name).symlink_to(file)
    with pytest.raises(CorpusError, match="too few"):
        tune(small(headed, tmp_path))
    for number in range(30):
        (tmp_path / f"broken{number}.png").write_bytes(b"no picture")
    with pytest.raises(CorpusError, match="30 of 40 images cannot be decoded, more than 10%"):
        tune(small(headed, tmp_path))


def test_damaged_images_are_missing_from_every_part(headed: Path, pictures: Path) -> None:
    class Damaged(FlatImages):
        def load(self, index: int) -> Image.Image:
            if index in (0, 1, 2):
                raise ImageError("broken")
            return super().load(index)

    # Two of the 32 chosen images are damaged.
    drawn = load_sample(Damaged(pictures / "flat"), load_backbone(headed), 40, 8)
    assert [len(part.pixels) for part in (drawn.calibration, drawn.check)] == [22, 8]


def test_what_a_folder_leaves_out_is_said(
    headed: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in (pictures / "flat").iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "unfetched.png").symlink_to("nowhere")
    load_sample(open_pictures(str(tmp_path)), load_backbone(headed), 40, 8)
    assert "left out: links that lead nowhere, 1 (unfetched.png)" in capsys.readouterr().err


def test_a_folder_is_flat_only_if_nothing_else_is_in_it(pictures: Path, tmp_path: Path) -> None:
    assert len(open_pictures(str(pictures / "flat")).labels) == IMAGES
    assert not open_pictures(str(pictures / "flat")).class_names
    (tmp_path / "cats").mkdir()
    for place in (tmp_path / "cover.png", tmp_path / "cats" / "one.png"):
        place.symlink_to(pictures / "flat" / "000.png")
    assert open_pictures(str(tmp_path)).class_names == ["cats"]
    with pytest.raises(CorpusError, match="cannot be read"):
        open_pictures("~nobody-of-this-name")


def point(cost: float, bound: float, speedup: float) -> Point:
    quartiles = Spread(speedup - 0.005, speedup, speedup + 0.1)
    return Point(cost, (5, 5), quartiles, None, 100.0, 0.1, drop=bound - 0.2, drop_bound=bound, needed=900)


def test_the_cheapest_setting_is_recommended_whose_bound_and_all_before_it_are_allowed() -> None:
    points = [point(0.5, 3.0, 1.6), point(0.6, 0.5, 1.4), point(0.7, 0.2, 1.2), point(0.9, 0.1, 1.1)]
    assert choose(points, 0.5) == (1, 0.5)
    assert choose(points, 0.1) == (3, 0.1)
    assert choose(points, 5.0) == (0, 3.0)
    lucky = [point(0.5, 0.1, 1.6), point(0.6, 0.5, 1.4), point(0.7, 0.2, 1.2)]
    assert choose(lucky, 0.3) == (2, 0.2), "a setting after one that fails is not tested"
    slow = [point(0.5, 0.0, 0.9), point(0.6, 0.0, 1.0), point(0.7, 0.0, 1.01)]
    assert choose(slow, 1.0) == (2, 0.0), "nothing that was measured slower than dense"


def test_without_a_recommendation_the_best_measured_setting_is_chosen() -> None:
    points = [point(0.5, 9.0, 1.6), point(0.6, 4.0, 1.4), point(0.7, 4.0, 1.2), point(0.9, 2.0, 0.9)]
    assert choose(points, 1.0) == (1, 4.0), "the cheapest of equal ones that are faster"
    assert choose([*points, point(0.95, 6.0, 1.01)], 1.0) == (1, 6.0), "an unlucky one before it does not matter"
    assert choose([point(0.6, 0.5, 1.3), point(0.9, 2.0, 0.9)], 1.0) == (0, 2.0), "it is not recommended either"
    assert choose([point(0.6, 0.1, 0.9)], 1.0) == (None, 0.0), "dense"


def test_wrong_recommendations_are_rare() -> None:
    """A short run of the simulation, at a true drop just above the tolerance."""
    shares = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "tune_coverage.py"))["shares"]
    by_bound, by_measured, _ = shares(true_drop=1.02, images=1000, tunings=150)
    assert by_bound <= 0.05 < 0.4 < by_measured
    assert shares(true_drop=1.02, images=1000, tunings=20, gradual=True)[2] > 0.9, "good settings are still found"


def test_a_setting_is_always_written_and_says_what_it_is_worth(
    tuned: Tuned, headed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tuned.setting.cost == (1.0 if tuned.chosen is None else (0.6, 0.9)[tuned.chosen])
    assert bool(tuned.setting.outside) == (tuned.chosen is not None), "36 images cannot show a loss of at most 1 point"
    outside = describe_outside(9.04, 9.04, 1.0, "accuracy (36 images)")
    assert outside == "up to 9.0 points of accuracy (36 images) may be lost, 1 allowed"
    assert "at a higher cost up to 2.0 points" in describe_outside(0.5, 2.0, 1.0, "accuracy")
    assert not describe_outside(0.5, 0.9, 1.0, "accuracy")
    tuned = replace(tuned, setting=replace(tuned.setting, outside=outside))
    written = tuned.write(tmp_path / "out")
    assert [path.name for path in written] == ["tune.json", "setting.json"]
    capsys.readouterr()
    assert accelerate(headed, setting=written[1]).setting == tuned.setting
    assert capsys.readouterr().err == f"warning: this setting is outside the tolerance: {outside}\n"
    accelerate(headed, setting=written[1], cost=0.7)
    assert not capsys.readouterr().err, "no tolerance was checked for the user's own cost"
    record = json.loads(written[0].read_text())
    assert [entry["cost"] for entry in record["points"]] == [one.cost for one in tuned.points]


def test_the_verdict_and_the_curve(tuned: Tuned, tmp_path: Path) -> None:
    recommended = replace(tuned, chosen=1, setting=replace(tuned.setting, cost=0.9, outside=""))
    outside = replace(recommended, setting=replace(tuned.setting, cost=0.9, outside="up to 5.0 points"))
    for number, each in enumerate((recommended, outside, replace(tuned, chosen=None))):
        draw_curve(each, tmp_path / f"{number}.png")
        with Image.open(tmp_path / f"{number}.png") as picture:
            assert picture.width > 600
    sheet = tune_sheet(recommended)
    assert len(sheet.rows) == 2
    assert sheet.strong == {(1, column) for column in range(len(sheet.columns))}
    assert not tune_sheet(outside).strong
    assert "Recommended: cost 0.9" in verdict(recommended)
    faster = replace(tuned.points[0], cost=0.59, speedup=Spread(1.2, 1.3, 1.4))
    cheaper = [replace(faster, needed=2345), replace(faster, cost=0.7, needed=4567), tuned.points[1]]
    assert "Cost 0.59 would need some 2,345 images" in verdict(replace(recommended, points=cheaper[::2], chosen=1))
    assert "Cost 0.70 would need some 4,567 images" in verdict(replace(recommended, points=cheaper, chosen=2))
    never = [cheaper[0], replace(cheaper[1], needed=None), cheaper[2]]
    assert "would need" not in verdict(replace(recommended, points=never, chosen=2)), "0.70 stops the sequence"
    assert "Outside the tolerance, but the best measured: cost 0.9" in verdict(outside)
    for said in (verdict(recommended), verdict(outside)):
        assert f", {against_dense(tuned.points[1].speedup)}" in said
    never = [replace(one, needed=None) for one in tuned.points]
    assert verdict(replace(outside, points=never)).endswith("up to 5.0 points."), "no number of images is enough"
    assert "no setting is faster on this machine" in verdict(replace(tuned, chosen=None))


def test_fewer_images_than_the_tolerance_needs_are_said_before_the_work(
    headed: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tune(small(headed, pictures / "flat", max_drop=0.5, min_agreement=90.0, calibration=400))
    said = capsys.readouterr().err
    assert "warning: --max-drop is not used: accuracy needs labels that fit, so --min-agreement 90 decides\n" in said
    assert "24 to calibrate on instead of 400 (half of all 48 are for the check), 24 to check on" in said
    assert "warning: --min-agreement 90 needs 34 images to check on if no decision changes" in said
    assert said.index("needs 34") < said.index("calibrating") < said.index("checking dense") < said.index("timing")


def test_a_class_map_that_cannot_be_used_is_refused(headed: Path, encoder: Path, pictures: Path) -> None:
    for model, folder, reason in ((headed, "flat", "flat has no classes"), (encoder, "three", "the model has no head")):
        with pytest.raises(ConfigError, match=f"--class-map cannot be used: .*{reason}"):
            tune(small(model, pictures / folder, class_map="map.tsv"))


def calibrated(dense: Accelerated, readout: Readout, images: Tensor, others: Tensor) -> Calibration:
    return calibrate(dense, readout, images, others, cost=0.7)


class Preferring(ImageReadout):
    """Its logits stray further from dense, the fewer tokens the first block removes."""

    def __init__(self, gain: float) -> None:
        self.gain = gain

    def read(self, model: Accelerated, pixels: Tensor, title: str = "") -> Tensor:  # noqa: ARG002
        generator = torch.Generator().manual_seed(int(pixels.sum()))
        noise = torch.rand(len(pixels), generator=generator)
        first, *_, last = model.schedule(model.grid)
        stray = 0.0 if last == 196 else 1 + self.gain * first / 196 + 0.3 * noise
        return torch.stack([torch.zeros(len(pixels)), torch.as_tensor(stray).expand(len(pixels))], 1)


def test_calibration_moves_the_shape_towards_what_strays_least(dinov3: Backbone) -> None:
    dense = Accelerated(dinov3, Setting(cost=1.0, task="classify"))
    images, others = torch.randint(0, 255, (2, 40, 3, 8, 8), dtype=torch.uint8)
    moved = calibrated(dense, Preferring(5.0), images, others)
    assert (moved.shape.start, moved.shape.hold) == (0.0, 0.9), "the search tries no earlier shape"
    assert (moved.seen[0] < moved.seen[1], moved.unseen[0] < moved.unseen[1]) == (True, True)
    same = calibrated(dense, Preferring(0.0), images, others)
    assert same.shape == same.default == Shape(0, 2), "without a clear gain nothing moves"


def test_calibration_that_does_not_hold_elsewhere_is_not_used(dinov3: Backbone) -> None:
    class Fickle(Preferring):
        def read(self, model: Accelerated, pixels: Tensor, title: str = "") -> Tensor:
            self.gain = 5.0 if pixels[0, 0, 0, 0] == 0 else -0.5
            return super().read(model, pixels, title)

    dense = Accelerated(dinov3, Setting(cost=1.0))
    images, others = torch.randint(1, 255, (2, 40, 3, 8, 8), dtype=torch.uint8)
    images[0, 0, 0, 0] = 0
    fickle = calibrated(dense, Fickle(0.0), images, others)
    assert fickle.seen[0] < fickle.seen[1]
    assert fickle.unseen[0] >= fickle.unseen[1]
    assert fickle.shape == fickle.default


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_drop": -1.0}, "max_drop must lie"),
        ({"max_drop": float("nan")}, "max_drop must be"),
        ({"min_agreement": 101.0}, "min_agreement must lie"),
        ({"costs": (0.5, 1.0)}, "cost"),
        ({"batch": 0}, "batch must lie"),
        ({"task": "segment"}, "--task must be classify or dense, not 'segment'"),
        ({"calibration": 3}, "calibration must lie in 8 to"),
    ],
)
def test_impossible_requests_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(TuneConfig("model", "images"), **changes).checked()  # type: ignore[arg-type]


def test_paired_means() -> None:
    first = torch.rand(400)
    assert paired_mean_test(first, first) == 1.0
    assert paired_mean_test(first + 0.1, first) < 1e-6
    noise = torch.randn(400)
    assert paired_mean_test(first + noise - noise.mean(), first) == pytest.approx(1.0)
    t = 1.965927 * noise.std() / 20  # twenty is the root of 400
    assert paired_mean_test(first + noise - noise.mean() + t, first) == pytest.approx(0.05, abs=1e-4)
    assert paired_mean_test(first[:1] + 1, first[:1]) == 1.0


def test_the_commands(tuned: Tuned, headed: Path, pictures: Path, tmp_path: Path) -> None:
    """From the images to the ONNX file, as the README does it."""

    def redi(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "redi", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=200)

    options = ("--calibration", "12", "--cost", "0.7", "--repeats", "1", "--workers", "0", "--min-agreement", "0")
    tuned.write(tmp_path / "tuned")  # the folder of an earlier call is our own
    done = redi("tune", headed, "--images", pictures / "flat", *options)
    assert done.returncode == 0, done.stderr
    assert "points of agreement lost" in " ".join(done.stdout.split())
    assert {file.name for file in (tmp_path / "tuned").iterdir()} == {"tune.json", "setting.json", "curve.png"}
    done = redi("export", headed, "--setting", "tuned/setting.json", "--batch-size", "2")
    assert done.returncode == 0, done.stderr
    assert "pixel_values 2x3x48x48 -> logits" in done.stdout
    assert not done.stderr
    assert (tmp_path / "model.onnx").exists()


def test_mistakes_are_one_line(
    headed: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    images = ("--images", pictures / "flat")
    Path("model.onnx").touch()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "setting.json").write_text("mine")
    (headed / "own.onnx").touch()
    wrong = {
        ("tune", headed, "--images", "nowhere"): "no folder nowhere",
        ("tune", headed, *images, "--cost", "0.01"): "cannot be met",
        ("tune", headed, *images, "--class-map", "map.tsv", "--workers", "0"): "flat has no classes. Leave it out",
        ("tune", headed, *images, "--out", pictures / "flat" / "000.png"): "lies inside the images",
        ("tune", headed, *images, "--out", pictures / "flat"): "is the images",
        ("tune", headed, *images, "--out", pictures): "contains the images",
        ("tune", headed, *images, "--out", headed / "tuned"): "lies inside the model",
        ("tune", headed, *images, "--out", "mine"): "is not empty and was not made by redi: it holds setting.json",
        ("tune", headed, *images, "--out", "model.onnx"): "cannot be written to",
        ("export", headed, "--out", headed / "own.onnx"): "is also an input",
        ("export", headed, "--setting", "none.json"): "no none.json",
        ("export", headed, "--out", "no/where.onnx"): "folder that exists",
        ("export", headed, "--size", "50"): "multiple of the patch size",
    }
    for arguments, message in wrong.items():
        monkeypatch.setattr(sys, "argv", ["redi", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 1, arguments
        said = capsys.readouterr().err
        assert message in said
        assert len(said.splitlines()) == 1, said
    assert files_of(tmp_path / "mine") == {"setting.json": b"mine"}
