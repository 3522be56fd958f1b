"""Records as JSON: every type comes back as it was, and a wrong file is one sentence."""

import dataclasses
import inspect
import json
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

import redi.records
from redi.budget import Budget
from redi.cost import CostRow
from redi.errors import ArtifactError, ConfigError
from redi.records.audit import Alike, AuditClass, AuditRecord, AuditWord
from redi.records.comparison import Bundle, Comparison, Line, Rankings
from redi.records.dense import DenseConfig, DenseRecord, DenseRow, Difference, HeadNotes, InputNotes
from redi.records.deployed import Deployed
from redi.records.diagnosis import Diagnosis, DiagnosisRow
from redi.records.learning import Check, LearnConfig, Training
from redi.records.localisation import Localisation, LocalisationLine
from redi.records.paired import Paired
from redi.records.reading import build, read_record, write_record
from redi.records.results import (
    Data,
    Environment,
    Notes,
    ProbeNotes,
    Results,
    Row,
    VocabularyNotes,
    read_results,
    write_results,
)
from redi.records.retrieval import IndexLine, Retrieval, RetrievalLine
from redi.records.setting import SecondLook, Setting, TunedModel
from redi.records.timing import BenchResult, Overhead, Spread, Timing
from redi.records.tuning import Calibration, Point, Steps, TuneConfig, Tuned
from redi.records.words import WordNotes
from redi.reduction import Extent
from redi.reduction.schedule import Shape
from redi.rows import Codebook, CorpusSettings, Score, Variant
from redi.statistics import ZipfFit

CORPUS = CorpusSettings(Codebook(n_words=64, start="random"), views=2, mean_weight=0.5)
ROW = Row(
    name="redi_mass",
    classifier="probe",
    scorer="redi_mass@4",
    label_source="gt",
    reducer="kmc",
    budget=Budget(0.25, 0.5),
    after=2,
    schedule=[],
    corpus=CORPUS,
    tokens=58,
    cost=0.4,
    top1=71.5,
    top5=90.0,
    top1_interval=(70.0, 73.0),
    delta_dense=-1.5,
    delta_interval=(-2.0, -1.0),
    p_value=0.125,
    images=200,
    agreement=95.0,
    divergence=0.03125,
)
PROGRESSIVE = dataclasses.replace(ROW, budget=None, corpus=None, schedule=[196, 150, 98], after=0)
DATA = {"train": "a/train", "val": "b/ü", "train_images": 28, "val_images": 20, "classes": 4, "seed": 3, "size": 112}
ENVIRONMENT = Environment(
    redi="1",
    torch="2",
    transformers="5",
    timm="",
    python="3",
    system="Linux",
    machine="x86_64",
    cores=2,
    threads=1,
    device="cpu",
    processes=2,
)
NOTES = Notes(
    **DATA,  # type: ignore[arg-type]
    backbone="here",
    resize="bicubic",
    budget=Budget(),
    attention_scores=["mass", "rollout"],
    native_classes="by name",
    vocabulary=VocabularyNotes(16, 3, [0.5, 0.625], [1, 0]),
    probe=ProbeNotes(50, 0.25, 28),
    skipped_train=[("blue/000.jpg", "cannot be decoded")],
    skipped_val=[],
    object_coverage=None,
)
LINE = Line(ROW, 0.5, (-1.0, 1.0), 0.0, (-0.5, 0.5), 1.0, None, None, 0.75)
TIMING = Timing(
    row="prune",
    batch=8,
    dtype="bf16",
    mode="eager",
    scoring=True,
    median_ms=4.0,
    low_ms=3.0,
    high_ms=5.0,
    speedup=None,
    speedup_low=None,
    speedup_high=None,
    predicted=1.5,
    memory_mb=None,
    compile_seconds=None,
    tokens=107,
    note="no dense row",
)
POINT = Point(
    cost=0.65,
    schedule=(196, 150, 98),
    speedup=Spread(1.25, 1.5, 1.75),
    accuracy=None,
    agreement=99.0,
    divergence=0.01,
    drop=1.0,
    drop_bound=1.5,
    needed=80,
)
DIFFERENCE = Difference(-1.5, (-2.0, -1.0), -0.5, (-0.75, -0.25), -4.0, -0.125, 0.5, 0.25)
DENSE = DenseRow(
    row="dense",
    restore="",
    cost=1.0,
    analytic=1.0,
    tokens=850.0,
    schedule=(),
    miou=60.0,
    accuracy=90.0,
    agreement=100.0,
    cosine=1.0,
    class_iou=[60.0, None],
    to_dense=None,
    to_reference=None,
)
SHAPE = Shape(1, 3, 1.25)
DIAGNOSED = DiagnosisRow(
    backbone="one",
    classifier="native",
    score="mass",
    images=20,
    tokens=(201, 107),
    dense=80.0,
    attention=70.0,
    attention_delta=-10.0,
    attention_p=0.5,
    hybrid=75.0,
    hybrid_delta=-5.0,
    hybrid_interval=(-7.0, -3.0),
    hybrid_p=0.25,
    gain=5.0,
    gain_interval=(3.0, 7.0),
    gain_p=0.125,
)
PAIRED = Paired(-1.5, (-2.0, -1.0), 0.25)
LOCALISED = LocalisationLine(
    row="tfidf~none",
    title="TF-IDF [none]",
    label_source="none",
    pointing=75.0,
    iou=40.0,
    ranked_iou=39.0,
    best_iou=41.0,
    threshold=0.25,
    curve=[10.0, 41.0],
    pointing_to_reference=PAIRED,
    iou_to_reference=None,
)
AUDITED = AuditWord(7, 0.5, 0.25, 0.75, 0.125, 0.5, 0.25, 1.0, 12.0, 6.5, "fixed place", "top left")
RECORDS = [
    Results([ROW, PROGRESSIVE], [CostRow("tokens", 201.0, 107.0)], NOTES, ENVIRONMENT, {"train": "0f"}),
    dataclasses.replace(NOTES, object_coverage={"mass": 55.5}),
    Bundle(
        [Comparison("scorers", "Scores", "probe", ROW, [LINE, dataclasses.replace(LINE, spearman=0.5, overlap=60.0)])],
        [Rankings(["mass", "tfidf"], "probe", [[1.0, 0.5], [0.5, 1.0]], [[100.0, 60.0], [60.0, 100.0]])],
    ),
    WordNotes({"block3": ZipfFit(-0.75, 0.5, 12)}, {"redi_mass": 0.25}),
    Diagnosis([DIAGNOSED], {"one": "hub/one"}, Data(**DATA)),  # type: ignore[arg-type]
    BenchResult([TIMING], {"cores": 2, "nested": {"mkl": True}}, [Overhead(8, "fp32", "eager", 1.0, 0.5, 1.5)]),
    Training(
        method="spvit",
        model=TunedModel("vit", 3, 32, 8, "0f"),
        grid=(6, 6),
        images=64,
        held=16,
        parameters=9,
        steps=2,
        seconds=1.5,
        measure="KL from dense",
        checks=[Check(0, None, {"0.65": 0.5}), Check(2, 0.25, {"0.65": 0.4})],
        config=LearnConfig("here", "there", "spvit", costs=(0.65,)),
    ),
    Tuned(
        points=[POINT, dataclasses.replace(POINT, accuracy=75.0), dataclasses.replace(POINT, cosine=0.5)],
        chosen=None,
        setting=Setting(0.7, SHAPE, 0.5, 2, TunedModel("vit", 3, 32, 8, "0f"), SecondLook(0.4, 0.1), "by far", "dense"),
        calibration=Calibration(SHAPE, 0.65, 9, Shape(0, 3, 1.0), (0.1, 0.2), (0.15, 0.25)),
        dense_accuracy=None,
        images=64,
        allowed=5.0,
        config=TuneConfig("here", "there", costs=(0.5, 0.75)),
        environment=ENVIRONMENT,
        steps=Steps(5, 9, 0.55, 8, Spread(1.0, 1.125, 1.25)),
    ),
    Deployed([TIMING], ENVIRONMENT),
    DenseRecord(
        rows=[
            DENSE,
            dataclasses.replace(DENSE, row="tome", restore="copy", cost=0.5, schedule=(850, 425), timing=TIMING),
            dataclasses.replace(DENSE, to_dense=DIFFERENCE, to_reference=DIFFERENCE),
        ],
        references={"0.5": "tome~copy~0.5"},
        classes=["road", "sky"],
        void=255,
        images=101,
        shown=["a", "b"],
        inputs=[InputNotes(101, (360, 480), (350, 476), (25, 34))],
        head=HeadNotes(1500, 8, 0.002, 0.0001, 0, 4, 0.25, 367),
        left_out=["atc at cost 0.5: it cannot be met"],
        definitions={"miou": "mean IoU"},
        config=DenseConfig("here", "train", "val", "out", size=(350, 476), void=11),
        environment=ENVIRONMENT,
    ),
    Retrieval(
        lines=[RetrievalLine("mass", "Mass", "none", "CLS", 0.5, {"mAP": 50.0}, {"mAP": PAIRED}, {})],
        index=[IndexLine("mass", "Mass", "none", 4, {"mAP": 50.0}, {"mAP": PAIRED})],
        absent=["ToMe"],
        reference="Mass",
        index_reference="Mass",
        classifier="probe",
        gallery=28,
        queries=20,
        left_out=0,
        classes=4,
        neighbours=7,
        temperature=0.07,
        search="torch",
        digests={"train": "0f"},
        environment=ENVIRONMENT,
    ),
    Localisation(
        lines=[LOCALISED],
        reference="Mass",
        ceiling=80.0,
        whole=10.0,
        thresholds=[0.0, 1.0],
        classifier="probe",
        images=20,
        left_out=1,
        masks="val-masks",
        digests={"train": "0f"},
        environment=ENVIRONMENT,
    ),
    AuditRecord(
        classes=[AuditClass("amber", 7, 6.5, True, [AUDITED], [Alike(0, 0.25, [7, 3])])],
        order=[0],
        limit=6.0,
        block=2,
        depth=3,
        n_words=16,
        grid=(14, 14),
        attention=["mass", "cls_mean"],
        images=28,
        head=[],
        columns=[],
        definitions={"mass": "share"},
    ),
    Setting(),
    Variant(Score.parse("redi_mass@4"), "gt", "prune", Extent(Budget(0.25, 0.0), 1, (196, 98)), CORPUS),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_as_it_was(tmp_path: Path, record: Any) -> None:
    """Equal, and of the same types throughout: tuples are no lists, None is None, 1.0 is no 1."""
    path = write_record(tmp_path / "record.json", record)
    again = read_record(path, type(record), "redi run")
    assert again == record
    assert repr(again) == repr(record)


def test_the_examples_hold_every_type_of_record() -> None:
    modules = [import_module(f"redi.records.{module.name}") for module in pkgutil.iter_modules(redi.records.__path__)]
    types = {
        kind
        for module in modules
        for _, kind in inspect.getmembers(module, dataclasses.is_dataclass)
        if kind.__module__ == module.__name__
        and module.__name__ not in ("redi.records.explained", "redi.records.texts")  # which hold tensors, no JSON
    }
    assert types
    assert types <= {type(part) for record in RECORDS for part in parts(record)}


def parts(value: Any) -> Iterator[Any]:
    """A value and everything in it."""
    yield value
    if dataclasses.is_dataclass(value):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for entry in value:
            yield from parts(entry)


def test_a_whole_number_is_read_where_a_fraction_is_meant() -> None:
    cost = build(CostRow, {"quantity": "tokens", "dense": 2, "reduced": 1})
    assert isinstance(cost.dense, float)
    assert build(Spread, [1, 2, 3]) == Spread(1.0, 2.0, 3.0)
    assert isinstance(build(Spread, [1, 2, 3]).low, float)


def test_fields_with_a_default_may_be_missing() -> None:
    assert build(Setting, {"cost": 0.5}) == Setting(0.5)
    assert build(VocabularyNotes, {"n_words": 16, "n_passes": 3}) == VocabularyNotes(16, 3)


def test_a_complete_record_misses_no_field(tmp_path: Path) -> None:
    file = tmp_path / "setting.json"
    file.write_text('{"cost": 0.5, "protection": 0.5}')
    assert read_record(file, Setting, "redi tune") == Setting(0.5, None, 0.5)
    with pytest.raises(ArtifactError, match="model is missing"):
        read_record(file, Setting, "redi tune", complete=True)


def changed(content: Any, path: tuple[str | int, ...], value: Any) -> Any:
    """The content of a file with one entry replaced, or added."""
    place = content
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return content


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (("surprise",), 1, "surprise is not known"),
        (("rows", 0, "surprise"), 1, "surprise is not known"),
        (("rows", 0, "tokens"), "many", "'many' is not of type int"),
        (("rows", 0, "tokens"), True, "True is not of type int"),
        (("rows", 0, "tokens"), 1.5, "1.5 is not of type int"),
        (("rows", 0, "tokens"), None, "None is not of type int"),
        (("rows", 0, "cost"), False, "False is not of type float"),
        (("rows", 0, "name"), ["mass"], r"\['mass'\] is not of type str"),
        (("rows", 0, "top1_interval"), [1.0, 2.0, 3.0], "argument 2 is longer"),
        (("rows", 0, "top1_interval"), 7, "7 is not of type list"),
        (("rows", 0, "budget", "keep"), 1.5, "keep and merge must be fractions from 0 to 1"),
        (("rows", 0, "budget"), [], r"\[\] is not of type dict"),
        (("rows", 0), {}, "missing"),
        (("rows",), "prune", "'prune' is not of type list"),
        (("rows",), {}, "{} is not of type list"),
        (("digests",), ["train"], r"\['train'\] is not of type dict"),
        (("notes", "attention_scores"), "mass", "'mass' is not of type list"),
        (("notes", "skipped_val"), ["ab"], "'ab' is not of type list"),
        (("notes",), None, "None is not of type dict"),
    ],
)
def test_what_does_not_fit_is_one_sentence(
    tmp_path: Path, path: tuple[str | int, ...], value: Any, reason: str
) -> None:
    results = RECORDS[0]
    assert isinstance(results, Results)
    file = write_results(tmp_path, results)
    file.write_text(json.dumps(changed(json.loads(file.read_text()), path, value)))
    with pytest.raises(ArtifactError, match=rf"results\.json cannot be read as a result of `redi run`: .*{reason}"):
        read_results(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", '"text"', "{}", '{"rows": []}', "\ud800"])
def test_a_file_of_something_else_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "results.json").write_bytes(text.encode("utf-8", errors="surrogatepass"))
    with pytest.raises(ArtifactError, match=r"results\.json cannot be read as a result of `redi run`: ") as raised:
        read_results(tmp_path)
    assert "\n" not in str(raised.value)


def test_a_missing_file_names_the_command_that_writes_it(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"There is no results\.json in .*: run `redi run` first"):
        read_results(tmp_path)
    (tmp_path / "results.json").mkdir()
    with pytest.raises(ArtifactError, match=r"cannot be read as a result of `redi run`: .*directory"):
        read_results(tmp_path)


def test_a_huge_value_in_the_wrong_place_is_shown_in_short() -> None:
    with pytest.raises(TypeError, match="is not of type int") as raised:
        build(int, ["word"] * 10_000)
    assert len(str(raised.value)) < 200


def test_a_setting_that_cannot_be_read_is_a_mistake_in_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "setting.json"
    with pytest.raises(ConfigError, match=r"There is no setting\.json"):
        Setting.load(file)
    Setting(0.5, SHAPE).save(file)
    assert Setting.load(file) == Setting(0.5, SHAPE)
    file.write_text('{"cost": 2}')
    with pytest.raises(ConfigError, match="cost must lie above 0, up to 1, not at 2"):
        Setting.load(file)


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_a_number_that_is_not_finite_is_neither_written_nor_read(tmp_path: Path, value: float) -> None:
    results = RECORDS[0]
    assert isinstance(results, Results)
    file = write_results(tmp_path, results)
    before = file.read_text()
    spoilt = dataclasses.replace(results, rows=[ROW, dataclasses.replace(ROW, delta_interval=(-2.0, value))])
    with pytest.raises(ArtifactError, match=r"not written: its rows\.1\.delta_interval\.1 is not a finite number"):
        write_results(tmp_path, spoilt)
    assert file.read_text() == before
    file.write_text(json.dumps(changed(json.loads(before), ("rows", 0, "top1"), value)))
    with pytest.raises(ArtifactError, match="is not a finite number"):
        read_results(tmp_path)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"rows": 1' + "0" * 5000 + "}"])
def test_a_file_that_no_parser_survives_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(ArtifactError, match=r"results\.json cannot be read as a result of `redi run`"):
        read_results(tmp_path)
