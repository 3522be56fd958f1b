"""Configuration files, overrides and class maps."""

from dataclasses import replace
from math import inf, nan
from pathlib import Path

import pytest

from redi.errors import ConfigError
from redi.images.classes import head_classes
from redi.reduction import Budget
from redi.runs.config import ProbeConfig, RunConfig, overlay, read_config, to_toml

FULL = RunConfig(backbone="b", train="t", val='quotes " and ü', out="o")


def test_a_saved_configuration_reads_back_the_same(tmp_path: Path) -> None:
    config = replace(FULL, budget=Budget(0.3, 0.1), probe=ProbeConfig(learning_rate=1e-5))
    (tmp_path / "run.toml").write_text(to_toml(config))
    assert read_config(tmp_path / "run.toml") == config


def test_a_byte_order_mark_is_no_part_of_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('backbone = "b"\n', encoding="utf-8-sig")
    assert read_config(tmp_path / "run.toml").backbone == "b"


def test_shipped_configurations_are_valid() -> None:
    files = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))
    assert len(files) >= 3
    for file in files:
        config = read_config(file).checked()
        assert config.vocabulary.n_words == 512
        text = file.read_text()
        assert "redi run --config" in text, "every configuration opens with its command"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bakbone = 'x'", "unknown key 'bakbone'; known are .*backbone"),
        ("[vocabulary]\nwords = 3", r"\[vocabulary\]: unknown key 'words'"),
        ("seed = 'one'", "seed must be of type int, not 'one'"),
        ("vocabulary = 3", r"must be a table, \[vocabulary\]"),
        ("[budget]\nkeep = 0.9\nmerge = 0.9", "keep . merge must be at most 1"),
        ("seed = ", "not valid TOML"),
        ("seed = true", "seed must be of type int"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_config(tmp_path / "run.toml")


def test_missing_and_impossible_settings_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--val is missing"):
        replace(FULL, val="").checked()
    with pytest.raises(ConfigError, match="classifier must be one of probe, native, both"):
        replace(FULL, classifier="svm").checked()
    with pytest.raises(ConfigError, match=r"resize must be one of nearest, box, bilinear, .*, not 'sharp'"):
        replace(FULL, resize="sharp").checked()
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match="--out must not contain a null character"):
        replace(FULL, out="a\0b").checked()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("size", -1),
        ("seed", -1),
        ("seed", 2**32),
        ("vocabulary.n_words", 0),
        ("vocabulary.n_words", 40_000),
        ("vocabulary.n_passes", 0),
        ("analysis.n_words", 40_000),
        ("analysis.sample", 0),
        ("analysis.typical", 0),
        ("analysis.typical", 100_000),
        ("probe.epochs", -1),
        ("probe.min_steps", -1),
        ("probe.batch_size", 0),
        ("probe.batch_size", 10**30),
        ("probe.learning_rate", -1.0),
        ("probe.learning_rate", 1e30),
        ("probe.learning_rate", 0.0),
        ("probe.weight_decay", -1e-9),
        ("runtime.batch_size", 0),
        ("runtime.batch_size", 10**12),
        ("runtime.workers", -1),
        ("runtime.workers", 10**6),
        ("runtime.threads", -1),
        ("runtime.threads", 10**6),
        ("runtime.chunk", 0),
        ("runtime.save_every", -1.0),
        ("runtime.patience", 0.0),
        ("runtime.patience", 1e300),
        ("budget.spatial", 1e30),
    ],
)
def test_a_number_outside_its_range_is_refused_by_name(name: str, value: float) -> None:
    *table, field = name.split(".")
    changes = {table[0]: {field: value}} if table else {field: value}
    with pytest.raises(ConfigError, match=f"{field} must ") as raised:
        overlay(FULL, changes, "options").checked()
    assert "\n" not in str(raised.value)


def test_a_probe_without_a_step_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one step"):
        replace(FULL, probe=ProbeConfig(epochs=0, min_steps=0)).checked()
    assert replace(FULL, probe=ProbeConfig(epochs=0, min_steps=5)).checked()


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999", "1" + "0" * 400])
@pytest.mark.parametrize(
    "name", ["probe.learning_rate", "probe.weight_decay", "budget.keep", "budget.spatial", "runtime.patience"]
)
def test_a_number_that_is_not_finite_is_refused(tmp_path: Path, name: str, value: str) -> None:
    table, field = name.split(".")
    (tmp_path / "run.toml").write_text(f"[{table}]\n{field} = {value}\n")
    with pytest.raises(ConfigError, match=f"{field} must be a finite number"):
        read_config(tmp_path / "run.toml")


@pytest.mark.parametrize("value", [nan, inf])
def test_a_number_that_is_not_finite_is_refused_in_python_too(value: float) -> None:
    with pytest.raises(ConfigError, match=r"probe\.learning_rate must be a finite number"):
        replace(FULL, probe=ProbeConfig(learning_rate=value)).checked()


def test_integers_are_taken_where_a_fraction_is_meant() -> None:
    assert overlay(FULL, {"budget": {"keep": 1, "merge": 0}}, "options").budget.keep == 1.0


def test_folders_are_matched_to_the_head_by_name() -> None:
    head = ["tench, Tinca tinca", "Great_White shark", "eel"]
    assert head_classes(["eel", "great white shark"], head) == ([2, 1], "by name")
    assert head_classes(["Tinca tinca"], head)[0] == [0]
    assert head_classes(["cardigan", "Cardigan"], ["Cardigan", "cardigan"])[0] == [1, 0]


def test_names_that_are_not_unique_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 classes called 'crane'"):
        head_classes(["crane"], ["crane", "eel", "crane"])
    with pytest.raises(ConfigError, match="Several folders match the head's class 'eel'"):
        head_classes(["eel", "EEL"], ["eel", "tench"])
    with pytest.raises(ConfigError, match="neither names nor order"):
        head_classes(["eel", "n02"], ["tench", "eel"])


def test_folders_are_matched_by_order_only_where_the_counts_agree() -> None:
    classes, how = head_classes(["n01", "n02"], ["tench", "eel"])
    assert classes == [0, 1]
    assert "sorted order" in how
    with pytest.raises(ConfigError, match=r"3 classes and none is called 'n01'.*--class-map"):
        head_classes(["n01", "n02"], ["tench", "eel", "cock"])


@pytest.mark.parametrize("text", ["n01\teel\nn02\t0\n", '{"n01": "EEL", "n02": 0}'])
def test_a_class_map_decides(tmp_path: Path, text: str) -> None:
    file = tmp_path / "map.txt"
    file.write_text(text)
    assert head_classes(["n01", "n02"], ["tench", "eel"], file) == ([1, 0], "by map.txt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n01\teel\n", "does not name the folder 'n02'"),
        ("n01\teel\nn02\twhale\n", "'whale', which the head lacks"),
        ("n01\teel\nn02\t7\n", "'7', which the head lacks"),
        ("n01 eel\n", "cannot be read"),
    ],
)
def test_mistakes_in_a_class_map_are_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "map.txt"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        head_classes(["n01", "n02"], ["tench", "eel"], file)
