"""The label source ``text`` on a small run: whose embeddings it uses, what it keeps, what it never reads."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import redi
from redi.backbone.text import TEMPLATES, TextTower
from redi.cli import app
from redi.comparison.compare import compare
from redi.comparison.grid import Request
from redi.corpus import LABEL_SOURCES, corpus_map, tfidf_term
from redi.errors import ConfigError, RediError
from redi.pipeline import execute, open_run
from redi.records import artifacts
from redi.records.results import read_results
from redi.records.texts import read_texts
from redi.rows import Score, Variant
from redi.runs.config import saved_config
from redi.runs.passes import PassRunner
from redi.stages.maps import ScoreMaps
from redi.stages.score import DENSE_PASS
from redi.stages.text import text_probabilities
from redi.views import stored_views
from small_run import COLOURS, VAL, files_of, small_config, write_images
from towers import library_logits, make_towers, save_image_tower, save_towers

KEPT = "text.safetensors"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, a whole CLIP and SigLIP, the image tower of that CLIP, and its embeddings of the class names."""
    folder = tmp_path_factory.mktemp("towers")
    write_images(folder)
    save_towers("clip", folder / "clip")
    save_towers("siglip", folder / "siglip")
    save_image_tower(folder / "vision")
    redi.text(folder / "clip", folder / "train", out=folder / KEPT, device="cpu")
    return folder


@pytest.fixture(scope="module")
def finished_runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Finished runs without text, by the folder of their backbone. To be copied."""
    runs = {}
    for name in ("clip", "siglip", "vision"):
        runs[name] = tmp_path_factory.mktemp(f"run-{name}")
        execute(replace(small_config(data, runs[name]), backbone=str(data / name)))
    return runs


@pytest.fixture
def run_of(finished_runs: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    def copied(name: str) -> Path:
        shutil.copytree(finished_runs[name], tmp_path / name)
        return tmp_path / name

    return copied


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the passes over the images, and "prompts" for every class name that a text tower embedded."""
    names: list[str] = []
    run, embed = PassRunner.run, TextTower.embed

    def spy(self: PassRunner, work: Any, key: Any) -> Any:
        names.append(work.name)
        return run(self, work, key)

    def spy_on_prompts(self: TextTower, prompts: Any) -> Any:
        names.append("prompts")
        return embed(self, prompts)

    monkeypatch.setattr(PassRunner, "run", spy)
    monkeypatch.setattr(TextTower, "embed", spy_on_prompts)
    return names


def ask(folder: Path, *studies: str, text: Path | None = None, dry_run: bool = False, **request: Any) -> Any:
    grid = Request(**{"scorers": ["redi_mass"], "labels": ["text"], **request})
    return compare(saved_config(folder), studies, None if studies else grid, dry_run=dry_run, text=text)


def row_of(bundle: Any) -> Any:
    return next(line.row for line in bundle.comparisons[0].lines if line.row.label_source == "text")


def probabilities(folder: Path) -> Tensor:
    with open_run(saved_config(folder)) as run:
        return text_probabilities(run)


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_a_whole_model_names_its_classes_itself(run_of: Callable[[str], Path], name: str) -> None:
    folder = run_of(name)
    row = row_of(ask(folder))
    assert (row.name, row.title) == ("redi_mass~text", "REDI, mass [text]")
    kept = read_texts(folder / KEPT)
    assert (kept.classes, kept.names, kept.templates) == (list(COLOURS), list(COLOURS), list(TEMPLATES))
    with open_run(saved_config(folder)) as run:
        assert kept.checkpoint == run.identity["backbone"]
    labels = torch.arange(len(COLOURS)).repeat_interleave(VAL)
    right = probabilities(folder).argmax(dim=1) == labels
    assert read_results(folder).notes.zero_shot == 100 * right.double().mean().item()


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_with_one_prompt_the_probabilities_are_those_of_transformers_own_model(
    data: Path, run_of: Callable[[str], Path], name: str
) -> None:
    folder = run_of(name)
    ask(folder, text=redi.text(data / name, data / "train", out=folder.parent / KEPT, template="a {}.").file)
    with open_run(saved_config(folder)) as run:
        preprocessing, images = run.backbone.preprocessing, run.validation
        crops = [preprocessing.cut(images.load(index), None)[1] for index in range(len(images.labels))]
        made = text_probabilities(run)
    prompts = [f"a {colour}." for colour in COLOURS]
    logits = library_logits(name, make_towers(name), preprocessing.normalise(torch.cat(crops)), prompts)
    torch.testing.assert_close(made, logits.softmax(dim=1), atol=1e-4, rtol=1e-4)
    assert made.max() > 0.4, "far from uniform, or nothing is seen"


def write_names(file: Path, *more: str) -> Path:
    file.write_text("\n".join([*COLOURS, *more]) + "\n")
    return file


def test_the_row_looks_up_the_table_of_all_classes(run_of: Callable[[str], Path]) -> None:
    folder = run_of("clip")
    ask(folder)
    with open_run(saved_config(folder)) as run:
        made = ScoreMaps(run).corpus_map(Variant(Score("tfidf"), "text"), "probe")
        term, words = tfidf_term(run.load("tfidf")), run.load("validation/words")
        views = [stored_views(*pair) for pair in zip(words["boxes"], words["flips"], strict=True)]
        weights = torch.zeros(20, term.table.shape[1])
        for image, row in enumerate(text_probabilities(run)):
            for label, probability in enumerate(row):
                weights[image] += probability * term.table[label]
        torch.testing.assert_close(made, corpus_map(term, weights, words["words"], views))


def test_a_file_serves_a_run_with_the_image_tower_alone(
    data: Path, run_of: Callable[[str], Path], begun: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    alone, whole = run_of("vision"), run_of("clip")
    row = row_of(ask(alone, text=data / KEPT))
    assert "prompts" not in begun, "no text tower is needed"
    assert "was not made from the run's own checkpoint" in capsys.readouterr().err
    assert row == row_of(ask(whole))
    assert torch.equal(probabilities(alone), probabilities(whole))
    begun.clear()
    assert row_of(ask(alone)) == row, "the run has kept the embeddings"
    assert begun == []


def test_nothing_is_made_twice(run_of: Callable[[str], Path], begun: list[str]) -> None:
    folder = run_of("clip")
    first = ask(folder)
    assert begun == ["prompts", "image embeddings", "evaluate 1 rows from redi_mass~text"]
    begun.clear()
    before = files_of(folder)
    assert ask(folder).comparisons == first.comparisons
    assert begun == []
    kept = {name: content for name, content in files_of(folder).items() if name.endswith("safetensors")}
    assert kept.items() <= before.items()
    names = [row.name for row in read_results(folder).rows]
    execute(saved_config(folder))
    assert [row.name for row in read_results(folder).rows] == names, "a further run keeps the row"


def test_another_file_means_other_predictions(data: Path, run_of: Callable[[str], Path], begun: list[str]) -> None:
    folder = run_of("clip")
    ask(folder, text=data / KEPT)
    prediction = folder / "predictions/probe/redi_mass~text.safetensors"
    first = artifacts.read_manifest(prediction)
    other = redi.text(data / "clip", data / "train", out=folder.parent / KEPT, template="the {}").file
    begun.clear()
    ask(folder, text=other)
    assert begun == ["evaluate 1 rows from redi_mass~text"]
    second = artifacts.read_manifest(prediction)
    assert first is not None
    assert second is not None
    assert first["key"]["scores"]["texts"] != second["key"]["scores"]["texts"]
    assert first["key"]["scores"]["embeddings"] == second["key"]["scores"]["embeddings"]
    assert read_texts(folder / KEPT).templates == ["the {}"]


def test_no_label_is_read(run_of: Callable[[str], Path]) -> None:
    """Images that are labelled otherwise have the same probabilities and the same maps."""
    folder = run_of("clip")
    ask(folder)
    with open_run(saved_config(folder)) as run:
        variant = Variant(Score("tfidf", "mass"), "text")
        before, made = ScoreMaps(run).map(variant, "probe"), text_probabilities(run)
        load = run.load

        def shuffled(name: str) -> dict[str, Tensor]:
            stored = load(name)
            return {**stored, "labels": stored["labels"].flip(0)} if "labels" in stored else stored

        run.load = shuffled  # type: ignore[method-assign]
        assert not torch.equal(run.load(DENSE_PASS)["labels"], load(DENSE_PASS)["labels"])
        after = ScoreMaps(run).map(variant, "probe")
        assert before is not None
        assert after is not None
        assert torch.equal(before, after)
        assert torch.equal(made, text_probabilities(run))


def test_the_study_of_scores_has_text_once_the_run_has_it(data: Path, run_of: Callable[[str], Path]) -> None:
    folder = run_of("clip")
    sources = {line.row.label_source for line in ask(folder, "scorers").comparisons[0].lines}
    assert sources == {"", *LABEL_SOURCES} - {"text"}
    bundle = ask(folder, "scorers", text=data / KEPT)
    assert {line.row.label_source for line in bundle.comparisons[0].lines} == {"", *LABEL_SOURCES}
    result = redi.compare(folder, "scorers", workers=0)
    top1 = read_results(folder).notes.zero_shot
    assert result.sheets()[0].columns == ("Score", "no corpus", *LABEL_SOURCES)
    assert f"whose Top-1 is {top1:.1f} %." in " ".join(str(result).split())


@pytest.mark.parametrize(
    ("name", "file", "message"),
    [
        ("vision", None, r"has no text tower that can be loaded.*Write the embeddings.*pass the file with --text\.$"),
        ("clip", "nothing", r"^There is no file .*nothing: write the embeddings .* with `redi text`"),
        ("clip", "train/red/000.jpg", "holds no embeddings of class names, or is damaged"),
        ("clip", "some.safetensors", r"has no embedding of the class 'amber' \(1 of 4 are missing\)"),
        ("siglip", KEPT, "has embeddings of 24 numbers, and those of this backbone's images have 32"),
    ],
)
def test_mistakes_are_one_line_and_lose_nothing(
    data: Path, run_of: Callable[[str], Path], name: str, file: str | None, message: str
) -> None:
    names = data / "some"
    names.write_text("blue\ngreen\nred\n")
    redi.text(data / "clip", names=names, out=data / "some.safetensors")
    folder = run_of(name)
    before = files_of(folder)
    for dry_run in (True, False):
        with pytest.raises(RediError, match=message) as caught:
            ask(folder, text=None if file is None else data / file, dry_run=dry_run)
        assert "\n" not in str(caught.value)
    assert files_of(folder) == before


def test_a_file_that_no_row_needs_is_a_mistake(data: Path, run_of: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="--text is for rows with --labels text and for --study scorers"):
        ask(run_of("clip"), text=data / KEPT, labels=["gt"])


def test_a_plan_embeds_nothing(
    run_of: Callable[[str], Path], begun: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_of("clip")
    before = files_of(folder)
    assert ask(folder, dry_run=True) is None
    assert "2 rows, 1 of them still to be measured" in capsys.readouterr().out
    assert begun == []
    assert files_of(folder) == before


def test_numbers_of_wordnet_are_not_names(data: Path, tmp_path: Path) -> None:
    for split in ("train", "val"):
        shutil.copytree(data / split, tmp_path / split)
        (tmp_path / split / "amber").rename(tmp_path / split / "n01440764")
    config = replace(small_config(tmp_path, tmp_path / "run"), backbone=str(data / "clip"))
    execute(config)
    with pytest.raises(ConfigError, match=r"The class 'n01440764' has no name .* `redi text` with --names FILE"):
        ask(tmp_path / "run")
    (tmp_path / "names").write_text("n01440764\tamber, a resin\n")
    texts = redi.text(data / "clip", tmp_path / "train", tmp_path / "names", out=tmp_path / KEPT)
    assert texts.texts.names == ["blue", "green", "amber", "red"]
    assert row_of(ask(tmp_path / "run", text=texts.file)).label_source == "text"


# The command --------------------------------------------------------------------------------------


def test_the_command_writes_what_compare_reads(data: Path, run_of: Callable[[str], Path], tmp_path: Path) -> None:
    folder, file = run_of("vision"), tmp_path / KEPT
    words = ["text", str(data / "clip"), "--train", str(data / "train"), "--out", str(file)]
    result = CliRunner().invoke(app, [*words, "--template", "a {}.", "--template", "the {}."])
    assert result.exit_code == 0, (result.output, result.exception)
    assert "4 classes, 2 prompts each, scale 99.5." in result.output
    assert f"written: {file}" in result.output
    assert read_texts(file).templates == ["a {}.", "the {}."]
    words = ["compare", str(folder), "--scorer", "redi_mass", "--labels", "text", "--text", str(file), "--workers", "0"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, (result.output, result.exception)
    assert "REDI, mass [text]" in result.output
    assert "zero-shot probabilities" in result.output


def test_the_closest_names_are_shown(data: Path, tmp_path: Path) -> None:
    result = redi.text(data / "clip", names=write_names(data / "names", "Blue"), out=tmp_path / KEPT)
    first, second, cosine = result.closest()[0]
    assert {first, second} == {"blue", "Blue"}
    assert cosine == pytest.approx(1)
    assert len(result.closest()) == 10
    assert "blue" in str(result)
    assert result.plot() is not None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give --train DIR, --names FILE or both"),
        ({"train": "train", "out": "text.json"}, r"must end in \.safetensors"),
        ({"train": "train", "out": "mine.safetensors"}, "exists and was not written by redi"),
        ({"train": "train", "out": "clip/text.safetensors"}, "lies inside the model clip"),
        ({"train": "train", "out": "train/red/text.safetensors"}, "lies inside the training data train"),
        ({"train": "train", "template": "a photo"}, "The template 'a photo' has no {}"),
        ({"names": "nothing"}, "nothing cannot be read"),
        ({"train": "nothing"}, "nothing"),
        ({"train": "train", "backbone": "vision"}, "has no text tower that can be loaded"),
    ],
    ids=str,
)
def test_what_the_command_refuses(
    data: Path, settings: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data)
    shutil.copy("clip/model.safetensors", "mine.safetensors")
    before = files_of(data)
    with pytest.raises(RediError, match=message) as caught:
        redi.text(**{"backbone": "clip", "out": "new.safetensors", **settings})
    assert "\n" not in str(caught.value)
    assert files_of(data) == before
