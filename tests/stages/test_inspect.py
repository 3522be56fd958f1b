"""Any image inspected live: the same numbers as in the run, other images, mistakes."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from rich.console import Console

from redi.attention import ATTENTION_SCORES, incoming_mass, scores_of
from redi.backbone import Backbone, load_backbone
from redi.backbone.watch import Watch
from redi.cli import main
from redi.errors import ArtifactError, ConfigError, ImageError
from redi.records import artifacts
from redi.records.explained import Closeness
from redi.report.explorer import Explorer
from redi.report.inspection import print_inspection, write_picture
from redi.rows import PRODUCTS, SCORES
from redi.runs.config import saved_config
from redi.stages.inspect import inspect_alone, inspect_in_run
from small_run import files_of


def picture_of(run: Path, name: str) -> Path:
    return Path(saved_config(run).val) / name


def test_an_image_of_the_run_gives_the_numbers_of_the_run(seen_run: Path) -> None:
    """Given its true class: views, words, scores, roles and answers of the stages, from one call."""
    explorer = Explorer(seen_run)
    for number in (0, 8, 19):
        expected = explorer.explain(number, "probe")
        folder = explorer.names[number].split("/")[0]
        explained = inspect_in_run(picture_of(seen_run, explorer.names[number]), seen_run, folder, "cpu")
        assert explained.label_source == "given"
        assert explained.looked_up == expected.looked_up
        assert list(explained.views) == list(expected.views)
        assert torch.equal(explained.words, expected.words)
        assert torch.equal(explained.aligned, expected.aligned)
        for row in SCORES[1:]:
            torch.testing.assert_close(explained.scores[row], expected.scores[row], atol=1e-3, rtol=0)
        agreeing = [
            explained.fates[row].roles == expected.fates[row].roles
            for row in SCORES[1:]
            if torch.equal(explained.scores[row], expected.scores[row])
        ]
        assert agreeing
        assert all(agreeing)
        for row in ("dense", *SCORES[1:]):
            assert explained.guesses[row][0].name == expected.guesses[row][0].name
            assert explained.guesses[row][0].logit == pytest.approx(expected.guesses[row][0].logit, abs=2e-2)


def test_any_other_image_is_looked_up_for_the_predicted_class(
    seen_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / r"holiday [bold] $\frac$.png"
    Image.radial_gradient("L").resize((300, 180)).save(file)
    explained = inspect_in_run(file, seen_run, device="cpu")
    assert explained.label_source == "predicted"
    assert explained.looked_up == explained.guesses["dense"][0].name
    assert set(explained.scores) == {"tfidf", *ATTENTION_SCORES, *PRODUCTS}
    print_inspection(explained, "redi_mass")
    printed = " ".join(capsys.readouterr().out.split())
    assert "which the dense pass ranks first among the run's classes" in printed
    assert r"Scores of holiday [bold] $\frac$.png" in printed
    path = write_picture(explained, "redi_cls_max", tmp_path / "seen.png")
    with Image.open(path) as drawn:
        assert drawn.width == 2160


def test_an_image_far_from_the_corpus_is_warned_about(
    seen_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = artifacts.load_named(seen_run, "validation/words")[0]["closeness"]
    lowest = int(stored.argmin())  # the image of the run that is closest to a warning
    own = inspect_in_run(picture_of(seen_run, Explorer(seen_run).names[lowest]), seen_run, device="cpu")
    assert own.closeness is not None
    assert own.closeness.value == pytest.approx(stored[lowest].item(), abs=1e-5)
    print_inspection(own, "redi_mass")
    assert "warning" not in capsys.readouterr().out
    file = tmp_path / "strange.png"
    Image.effect_noise((200, 200), 90).save(file)
    strange = inspect_in_run(file, seen_run, device="cpu")
    print_inspection(strange, "redi_mass")
    shown = " ".join(capsys.readouterr().out.split())
    assert "warning: strange.png is unlike the images of this run" in shown
    assert f"but {stored.min():.3f} or more" in shown


def test_one_image_in_a_hundred_of_the_corpus_is_far() -> None:
    validation = torch.linspace(0.5, 0.9, 199)  # with 199 images, 2 / 200 lie below the second lowest
    assert Closeness(0.7, validation).limit == validation[1]
    generator = torch.Generator().manual_seed(0)
    samples = torch.rand(4000, 200, generator=generator)
    far = [Closeness(row[0].item(), row[1:]).is_far for row in samples]
    assert sum(far) / len(far) == pytest.approx(0.01, abs=0.005)


def test_without_a_corpus_the_attention_scores_and_their_roles(
    tmp_path: Path, dinov3: Backbone, checkpoint: Path
) -> None:
    file = Path(os.fsdecode(os.fsencode(tmp_path) + rb"/one $\frac \xff.png"))
    with file.open("wb") as target:
        Image.effect_noise((150, 130), 60).save(target, "PNG")
    explained = inspect_alone(file, str(checkpoint), "cpu")
    with (tmp_path / "said").open("w", encoding="utf-8") as strict:
        print_inspection(explained, "redi_mass", Console(file=strict))
    backbone = load_backbone(checkpoint)
    with Image.open(file) as image:
        tokens = backbone.embed(backbone.preprocessing(image)[None])
    watch = Watch(lambda attention: attention.clone(), blocks=(backbone.depth - 1,))
    backbone.encode(tokens, watch=(watch,))
    mass = incoming_mass(watch.value(backbone.depth - 1), backbone.prefix)[0]
    torch.testing.assert_close(explained.scores["mass"], mass, atol=2e-3, rtol=0)
    assert list(explained.scores) == scores_of(backbone.has_cls)
    assert explained.looked_up == ""
    assert [explained.fates["mass"].roles.count(role) for role in range(3)] == [98, 49, 49]
    assert bool(explained.guesses) == (backbone.head is not None)
    write_picture(explained, "redi_mass", tmp_path / "two.png")
    assert (tmp_path / "two.png").stat().st_size > 10_000


def test_classes_are_found_by_folder_title_or_its_first_part(seen_run: Path, tmp_path: Path) -> None:
    file = picture_of(seen_run, Explorer(seen_run).names[6])
    names = tmp_path / "names.tsv"
    names.write_text("blue\tBlue one, Caeruleus\nred\tred one\n")
    for wanted in ("blue", "BLUE", "Blue one, Caeruleus", "blue one"):
        explained = inspect_in_run(file, seen_run, wanted, "cpu", names)
        assert explained.looked_up == "Blue one, Caeruleus"
    with pytest.raises(ConfigError, match=r"no class 'gren'\. Did you mean green"):
        inspect_in_run(file, seen_run, "gren", "cpu")


def test_mistakes_are_one_line(seen_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    with pytest.raises(ImageError, match="does not exist"):
        inspect_in_run(tmp_path / "absent.jpg", seen_run, device="cpu")
    (tmp_path / "text.jpg").write_text("no picture")
    with pytest.raises(ImageError, match="not an image"):
        inspect_in_run(tmp_path / "text.jpg", seen_run, device="cpu")
    (tmp_path / "loop.jpg").symlink_to("loop.jpg")
    with pytest.raises(ImageError, match="Too many levels of symbolic links"):
        inspect_in_run(tmp_path / "loop.jpg", seen_run, device="cpu")
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(ImageError, match="not a regular file"):
        inspect_in_run(tmp_path / "pipe.jpg", seen_run, device="cpu")
    with pytest.raises(ConfigError, match="not a run folder"):
        inspect_in_run(tmp_path / "text.jpg", tmp_path, device="cpu")
    for arguments, said in (
        (["inspect", "a.png"], "Give either --run RUN or --backbone NAME."),
        (["inspect", "a.png", "--run", "x", "--backbone", "y"], "Give either --run"),
        (["inspect", "a.png", "--backbone", "y", "--val", "z"], "--class, --names, --scorer, --train and --val need"),
        (["inspect", "a.png", "--run", "y", "--scorer", "mass"], "--scorer must be a product"),
        (["figures", str(tmp_path)], f"{tmp_path} is not a run folder"),
        (["report", str(tmp_path)], f"{tmp_path} is not a run folder"),
    ):
        monkeypatch.setattr("sys.argv", ["redi", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 1
        printed = capsys.readouterr().err
        assert printed.startswith(f"redi: {said}")
        assert printed.count("\n") == 1
    explained = inspect_in_run(picture_of(seen_run, Explorer(seen_run).names[6]), seen_run, "", "cpu")
    with pytest.raises(ConfigError, match="must be a file in a folder that exists"):
        write_picture(explained, "redi_mass", tmp_path / "absent" / "a.png")
    with pytest.raises(ConfigError, match=r"must end in \.png or \.pdf or \.svg"):
        write_picture(explained, "redi_mass", tmp_path / "a.docx")


@pytest.mark.parametrize("out", ["photo.png", "link.png", "hard.png", "folder", "folder/photo.jpg", "name"])
def test_a_picture_never_replaces_a_photo(
    small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], out: str
) -> None:
    monkeypatch.chdir(tmp_path)
    photo = tmp_path / "photo.png"
    Image.radial_gradient("L").save(photo)
    (tmp_path / "link.png").symlink_to(photo)
    (tmp_path / "hard.png").hardlink_to(photo)
    (tmp_path / "folder").mkdir()
    before = files_of(tmp_path)
    options = ["--backbone", str(small_data / "backbone"), "--device", "cpu", "--out", out]
    monkeypatch.setattr("sys.argv", ["redi", "inspect", "photo.png", *options])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 1
    assert capsys.readouterr().err.startswith(f"redi: --out {out} ")
    assert files_of(tmp_path) == before


def test_a_picture_is_not_written_into_the_data_of_the_run(
    seen_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(saved_config(seen_run).train) / "blue"
    monkeypatch.chdir(folder)
    before = files_of(folder)
    monkeypatch.setattr("sys.argv", ["redi", "inspect", "000.jpg", "--run", str(seen_run), "--device", "cpu"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 1
    assert "--out 000-redi.png lies inside the training data" in capsys.readouterr().err
    assert files_of(folder) == before


def test_a_changed_checkpoint_is_refused(seen_run: Path, tmp_path: Path) -> None:
    shutil.copytree(seen_run, tmp_path / "run")
    shutil.copytree(Path(saved_config(seen_run).backbone), tmp_path / "backbone")
    text = (tmp_path / "run" / "config.toml").read_text()
    old = saved_config(seen_run).backbone
    artifacts.write_text(tmp_path / "run" / "config.toml", text.replace(old, str(tmp_path / "backbone")))
    file = picture_of(seen_run, Explorer(seen_run).names[6])
    inspect_in_run(file, tmp_path / "run", device="cpu")
    settings = tmp_path / "backbone" / "config.json"
    settings.write_text(settings.read_text().replace('"layerscale_value"', '"was"'))
    with pytest.raises(ArtifactError, match="has changed since"):
        inspect_in_run(file, tmp_path / "run", device="cpu")


def test_an_image_behind_a_link_in_the_validation_folder_keeps_its_views(seen_run: Path, tmp_path: Path) -> None:
    explorer = Explorer(seen_run)
    images = Path(saved_config(seen_run).val)
    number = len(explorer) - 1
    for name in explorer.names:
        link = tmp_path / "val" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(images / name)
    shutil.copytree(seen_run, tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace(f'"{images}"', f'"{tmp_path / "val"}"'))
    for file in (tmp_path / "val" / explorer.names[number], images / explorer.names[number]):
        explained = inspect_in_run(file, tmp_path / "run", device="cpu")
        own = file.is_relative_to(tmp_path)
        assert (list(explained.views) == list(explorer.views(number))) == own
