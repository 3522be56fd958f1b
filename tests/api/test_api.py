"""The functions of Python behind the commands, and how their results show themselves."""

import shutil
from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

import redi
from families import make_model
from redi.api.results import Shown
from redi.errors import ConfigError, RediError
from redi.images import load_image
from small_run import small_config

FUNCTIONS = ("run", "compare", "text", "tune", "export", "inspect", "bench")


def assert_shown(result: Shown, *words: str) -> None:
    """The words are in the text and in the HTML, and the plot is a figure."""
    html = result._repr_html_()
    assert html.startswith("<table>")
    assert html == result.table()._repr_html_()
    assert str(result) == str(result.table()) == repr(result)
    for word in words:
        assert word in str(result)
        assert word in html
    assert isinstance(result.plot(), Figure)


def test_no_module_hides_a_function() -> None:
    for module in walk_packages(redi.__path__, "redi."):
        if module.name != "redi.__main__":
            import_module(module.name)
    for name in FUNCTIONS:
        assert getattr(redi, name) is getattr(redi.api, name)
        assert callable(getattr(redi, name))


def test_run_compare_and_inspect(finished: Path, small_data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    config = small_config(small_data, folder)
    run = redi.run(
        config.backbone,
        Path(config.train),
        config.val,
        folder,
        words=config.vocabulary.n_words,
        passes=config.vocabulary.n_passes,
        workers=0,
        config=folder / "config.toml",
    )
    assert run.folder == folder
    assert_shown(run, "Table 1", "Table 3", f"{run.results.row('dense', 'probe').top1:.2f}")
    comparison = redi.compare(run, scorer=["mass", "redi_mass"], reducer="prune", keep=0.5, workers=0)
    assert {line.row.scorer for line in comparison.bundle.comparisons[0].lines} == {"mass", "redi_mass"}
    assert all(path.exists() for path in comparison.written)
    assert_shown(comparison, "Incoming mass")
    image = next(Path(config.val).rglob("*.jpg"))
    inspection = redi.inspect(image, run, device="cpu", out=tmp_path / "picture.png")
    assert load_image(tmp_path / "picture.png").width > 1000
    inspection.save(tmp_path / "picture.png")  # it is our own
    Image.new("RGB", (9, 9)).save(tmp_path / "mine.png")
    with pytest.raises(ConfigError, match="exists and was not written by redi"):
        inspection.save(tmp_path / "mine.png")
    assert load_image(tmp_path / "mine.png").width == 9
    assert_shown(inspection, "Scores of", "Top-5")


def test_tune_export_and_bench_take_live_models(small_data: Path, tmp_path: Path) -> None:
    model = make_model("vit_head")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    tuned = redi.tune(model, small_data / "val", cost=0.7, calibration=8, check=12, batch_size=4, repeats=1, workers=0)
    assert tuned.written == ()
    assert_shown(tuned, "Speed-up", tuned.verdict[:12])
    assert {path.name for path in tuned.save(tmp_path)} >= {"tune.json", "curve.png"}
    faster = redi.accelerate(model, 0.7, tuned.setting)
    exported = redi.export(faster, tmp_path / "model.onnx", batch_size=2)
    assert exported.file.stat().st_size == exported.exported.bytes
    assert_shown(exported, "pixel_values 2x3x", "model.onnx")
    redi.export(faster, tmp_path / "model.onnx", batch_size=1)  # an earlier export is replaced
    (tmp_path / "mine.onnx").write_text("mine")
    (tmp_path / "mine.json").write_text("{}")
    for replace_it in (
        lambda: redi.export(faster, tmp_path / "mine.onnx"),
        lambda: exported.measure(tmp_path / "mine.json"),
        lambda: tuned.setting.save(tmp_path / "mine.json"),
        lambda: redi.bench(faster, out=tmp_path / "mine.json"),
    ):
        with pytest.raises(ConfigError, match=r"^\S+ exists and was not written by redi, .*another name\.$"):
            replace_it()
    assert (tmp_path / "mine.onnx").read_text() + (tmp_path / "mine.json").read_text() == "mine{}"
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "setting.json").write_text("mine")
    with pytest.raises(ConfigError, match=r"was not made by redi: it holds setting\.json"):
        tuned.save(tmp_path / "folder")
    speed = redi.bench(faster, reducer="prune", batch_size=2, dtype="fp32", mode="eager", repeats=1, seconds=1)
    assert speed.record.environment["backbone"] == "Accelerated"
    assert_shown(speed, "Batch 2, FP32", "prune")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(ConfigError, match="already has a cost, a reducer and a size"):
        redi.export(faster, tmp_path / "other.onnx", cost=0.5)


def test_names_of_the_users_files_are_escaped(small_data: Path, tmp_path: Path) -> None:
    image = next((small_data / "val").rglob("*.jpg"))
    hostile = tmp_path / "<img src=x onerror=alert(1)>\x1b[2J.jpg"
    shutil.copy(image, hostile)
    html = redi.inspect(hostile, backbone=small_data / "backbone", device="cpu")._repr_html_()
    assert "Scores of &lt;img src=x onerror=alert(1)&gt;" in html
    assert "<img" not in html
    assert "\x1b" not in html


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: redi.run("b", "t", "v", "o", wordz=3), "unknown key 'wordz'"),
        (lambda: redi.run("b", "t", "v"), "--out is missing"),
        (lambda: redi.tune("b", "i", speed=3), "There is no setting 'speed'; known are batch_size, calibration"),
        (lambda: redi.tune("b", "i", check="many"), "check must be of type int, not 'many'"),
        (lambda: redi.tune("b", "i", max_drop="one"), "max_drop must be of type float, not 'one'"),
        (lambda: redi.dense("b", "t", "v", "o", void="x"), "void must be of type int, not 'x'"),
        (lambda: redi.dense("b", "t", "v", "o", void=True), "void must be of type int, not True"),
        (lambda: redi.dense("b", "t", "v", "o", void=[0, 255]), r"void must be of type int, not \[0, 255\]"),
        (lambda: redi.dense("b", "t", "v", "o", cost=[0.5, "x"]), "cost must be of type float, not 'x'"),
        (lambda: redi.dense("b", "t", "v", "o", size="large"), "size must be of type int, not 'large'"),
        (lambda: redi.dense("b", "t", "v", "o", row=3), "row must be of type str, not 3"),
        (lambda: redi.dense("b", "t", "v", "o", names=3), "names must be of type str, not 3"),
        (lambda: redi.bench(reducer="melt"), "There is no reducer 'melt'"),
        (lambda: redi.compare("nowhere", scorer="mass"), "nowhere is not a run folder"),
        (lambda: redi.RunResult(Path("nowhere")), "nowhere is not a run folder"),
        (lambda: redi.inspect("a.png"), "Give either --run RUN or --backbone NAME"),
    ],
)
def test_mistakes_are_one_line(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(ConfigError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


#: Values of every type that an argument could have by mistake.
WRONG = ("a", [1], {"a": 1}, (0.5,), 1j, b"x", object(), torch.ones(2), float("nan"), True, -1, 1.5)


def keyword(function: Callable[..., object], name: str, *others: object) -> Callable[[Any], object]:
    """A call of the function that gives a value by this name."""
    return lambda value: function(*others, **{name: value})


def small_accelerate(**arguments: Any) -> Any:
    return redi.accelerate(make_model("vit_head"), **arguments)


TUNED = (
    "max_drop min_agreement cost calibration check class_map size resize task batch_size repeats device workers threads"
)
ACCELERATED = "cost setting reducer task tokens adaptive images"
EXPORTED = "cost setting reducer size batch_size image"
#: Calls by what they give. A text names a file that is not there.
CALLS: dict[str, Callable[[Any], object]] = {
    "accelerate(model)": redi.accelerate,
    **{f"accelerate({name}=)": keyword(small_accelerate, name) for name in ACCELERATED.split()},
    "load_backbone(name)": redi.load_backbone,
    "load_backbone(revision=)": keyword(redi.load_backbone, "revision", "owner/model"),
    "tune(model)": lambda value: redi.tune(value, "nowhere"),
    "tune(images)": lambda value: redi.tune("nowhere", value),
    **{f"tune({name}=)": keyword(redi.tune, name, "nowhere", "nowhere") for name in TUNED.split()},
    "export(model)": redi.export,
    "inspect(image)": lambda value: redi.inspect(value, backbone="nowhere"),
    "compare(run)": redi.compare,
    "learn(out=)": keyword(redi.learn, "out", "nowhere", "dynamicvit", "nowhere"),
    "text(out=)": keyword(redi.text, "out", "nowhere", "nowhere"),
    "bench(out=)": keyword(redi.bench, "out"),
    **{f"export({name}=)": keyword(redi.export, name, "nowhere") for name in EXPORTED.split()},
    **{f"Setting({entry.name}=)": keyword(redi.Setting, entry.name) for entry in fields(redi.Setting)},
    **{f"Budget({entry.name}=)": keyword(redi.Budget, entry.name) for entry in fields(redi.Budget)},
}
#: Of these values, those that are right.
RIGHT = {"Setting(outside=)": ("a",), "Setting(protection=)": (1.5,), "Budget(spatial=)": (-1, 1.5)}


@pytest.mark.usefixtures("unchecked")
def test_numbers_of_numpy_are_numbers() -> None:
    half, four = np.array([0.5], np.float32)[0], np.array([4])[0]
    assert redi.Setting(half, steps=four) == redi.Setting(0.5, steps=4)
    assert type(redi.Setting(half).cost) is float
    assert small_accelerate(cost=np.float32(0.75)).cost() <= 0.75


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.usefixtures("unchecked")
def test_an_argument_of_a_wrong_type_is_one_line(call: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for value in WRONG:
        if any(type(value) is type(right) and value == right for right in RIGHT.get(call, ())):
            CALLS[call](value)
            continue
        with pytest.raises(RediError) as caught:
            CALLS[call](value)
        assert "\n" not in str(caught.value), value
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: redi.run("b", "t", "v", "o", seed=2**64), "seed"),
        (lambda: redi.dense("b", "t", "v", "o", size=100_000), "size"),
        (lambda: redi.dense("b", "t", "v", "o", seed=2**64), "seed"),
        (lambda: redi.learn("b", "dynamicvit", "i", checks=10**30), "checks"),
        (lambda: redi.learn("b", "dynamicvit", "i", seed=2**64), "seed"),
        (lambda: redi.tune("b", "i", check=10**30), "check"),
        (lambda: redi.bench(batch_size=10**7), "batch_sizes"),
        (lambda: redi.export("b", batch_size=10**7), "batch_size"),
        (lambda: redi.export("b", size=10**7), "size"),
    ],
)
def test_numbers_have_bounds_in_python_too(
    call: Callable[[], Any], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(redi.RediError, match=rf"^{name} must lie in .*, not at .*\.$"):
        call()
    assert not list(tmp_path.iterdir())
