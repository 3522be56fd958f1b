"""``redi learn``: every method learns without labels, a stopped training continues, and only fitting files are read."""

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import redi
from families import save_checkpoint
from learned_files import write_learned
from redi.backbone import Backbone, load_backbone
from redi.demo.generator import sample
from redi.errors import ArtifactError, ConfigError, CorpusError, RediError
from redi.images import LabelledImages, open_pictures
from redi.images.folders import FlatImages
from redi.images.loader import ViewDataset
from redi.learning import train
from redi.learning.files import LearnedFile, load_learned, read_training
from redi.learning.teacher import Teacher
from redi.learning.train import learn
from redi.records import artifacts, drafts
from redi.records.learning import LearnConfig
from redi.reduction.learned import LEARNED, Learned
from redi.runs.pictures import decode

DEMO = str(files("redi.demo") / "demo-vit")
IMAGES = 96
FRESH = 64
CLASSES = 4

every = pytest.mark.parametrize("name", LEARNED)
one_line = r"^[^\n]+$"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same drawn pictures twice, in the same order: flat/<number>.png and classes/<class>/<number>.png.

    ``fresh`` has others.
    """
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "flat").mkdir()
    for index in range(IMAGES):
        picture = sample(3, index).image.resize((112, 112))
        picture.save(folder / "flat" / f"{index:03}.png")
        nested = folder / "classes" / f"class{index * CLASSES // IMAGES}"
        nested.mkdir(parents=True, exist_ok=True)
        picture.save(nested / f"{index:03}.png")
    (folder / "fresh").mkdir()
    for index in range(IMAGES, IMAGES + FRESH):
        sample(3, index).image.resize((112, 112)).save(folder / "fresh" / f"{index:03}.png")
    return folder


@pytest.fixture(scope="module")
def demo() -> Backbone:
    return load_backbone(DEMO)


def small(pictures: Path, method: str, **changes: Any) -> LearnConfig:
    """A grid of 6x6, at one cost."""
    config = LearnConfig(
        backbone=DEMO,
        images=str(pictures / "flat"),
        method=method,
        costs=(0.65,),
        limit=64,
        held=24,
        steps=24,
        checks=3,
        batch=16,
        size=96,
        device="cpu",
        workers=0,
    )
    return replace(config, **changes)


def brief(pictures: Path, method: str = "weitop", **changes: Any) -> LearnConfig:
    return small(pictures, method, **{"steps": 6, "limit": 32, "held": 16, **changes})


def parameters_of(learned: LearnedFile) -> dict[str, Tensor]:
    return dict(learned.method.state_dict())


def assert_equal(one: LearnedFile, other: LearnedFile) -> None:
    values = parameters_of(other)
    for name, value in parameters_of(one).items():
        assert torch.equal(value, values[name])
    assert one.digest == other.digest
    assert [check.distances for check in one.training.checks] == [check.distances for check in other.training.checks]


def crops(images: LabelledImages, backbone: Backbone, chosen: list[int]) -> Tensor:
    return decode(ViewDataset(images, backbone.preprocessing, four_views=False, seed=0), chosen, 0)[0]


def distance(config: LearnConfig, learned: Learned, backbone: Backbone, pixels: Tensor) -> float:
    """How far some images are from dense."""
    student = train._Student(config, backbone, pixels, pixels, {}, Path("unused"))
    student.method = learned
    student.held_dense = Teacher(backbone).dense(pixels, 16)
    student._check(None)
    return student.checks[0].mean


#: Steps that take long, and batches that are too large for few pictures.
OWN_PACE: dict[str, dict[str, Any]] = {"a-vit": {"steps": 3}, "protected-learned": {"batch": 8}}


@every
def test_every_method_learns(name: str, demo: Backbone, pictures: Path, tmp_path: Path) -> None:
    """Closer to dense than untrained at the same cost, also on pictures that training and its checks never saw.

    Our own step starts where ``redi.accelerate`` is and has next to nothing to gain here, so for it the test shows
    only that a better state is found and kept.
    """
    config = small(pictures, name, **OWN_PACE.get(name, {}))
    learned = learn(config, demo, tmp_path / "learned.safetensors")
    backbone = demo.at_size(96)
    fresh = crops(open_pictures(str(pictures / "fresh")), backbone, list(range(FRESH)))
    untrained = train._Student(config, backbone, fresh, fresh, {}, Path("unused")).method
    if name != "protected-learned":
        assert distance(config, learned.method, backbone, fresh) < distance(config, untrained, backbone, fresh)
    training = learned.training
    assert (training.images, training.held, training.grid) == (64, 24, (6, 6))
    assert training.untrained.step == 0
    assert training.best.mean < training.untrained.mean, "closer to dense at the same cost"
    assert training.parameters == sum(value.numel() for value in parameters_of(learned).values())
    assert not any(value.requires_grad for value in learned.method.parameters())
    assert not list(tmp_path.glob(".*")), "nothing unfinished is left"


@pytest.mark.parametrize("name", ["dynamicvit", "ia-red2", "patchmerger", "weitop", "protected-learned"])
def test_training_changes_the_parameters_of_the_method_and_nothing_else(
    name: str, demo: Backbone, pictures: Path, tmp_path: Path
) -> None:
    backbone = demo.at_size(96).requires_grad_(False)
    pixels = crops(open_pictures(str(pictures / "fresh")), backbone, list(range(16)))
    student = train._Student(brief(pictures, name, batch=8), backbone, pixels, pixels, {}, tmp_path / "unused")
    student.dense = Teacher(backbone).dense(pixels, 16)
    own, others = student._state(), {key: value.clone() for key, value in backbone.model.state_dict().items()}
    for _ in range(2):
        student._learn_batch()
        student.step += 1
    assert any(not torch.equal(value, own[key]) for key, value in student._state().items())
    for key, value in backbone.model.state_dict().items():
        assert torch.equal(value, others[key])


@every
def test_what_is_kept_is_the_best_state_that_was_seen(
    name: str, demo: Backbone, pictures: Path, tmp_path: Path
) -> None:
    """The file, read again, has the distance that its record says."""
    path = tmp_path / "learned.safetensors"
    config = brief(pictures, name, steps=2, checks=2)
    learn(config, demo, path)
    backbone = demo.at_size(96)
    learned = load_learned(path, backbone)
    images = open_pictures(config.images)
    _, held = train._choose(images, config.limit, config.held)
    pixels = crops(images, backbone, held)
    assert distance(config, learned.method, backbone, pixels) == pytest.approx(learned.training.best.mean, rel=1e-5)


def learn_and_stop(config: LearnConfig, backbone: Backbone, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop after the first look at the held-out images."""
    keep = train._Student._keep

    def keep_and_stop(student: Any) -> None:
        keep(student)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(train._Student, "_keep", keep_and_stop)
        with pytest.raises(KeyboardInterrupt):
            learn(config, backbone, out)


@pytest.mark.parametrize("name", ["dynamicvit", "ia-red2", "patch-slimming"])
def test_a_stopped_training_continues_as_if_it_had_not_been(
    name: str, demo: Backbone, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = brief(pictures, name, costs=(0.65, 0.75))
    whole = learn(config, demo, tmp_path / "whole.safetensors")
    learn_and_stop(config, demo, tmp_path / "stopped.safetensors", monkeypatch)
    assert not (tmp_path / "stopped.safetensors").exists()
    steps: list[int] = []
    batch = train._Student._learn_batch

    def counted(student: Any) -> float | None:
        steps.append(student.step)
        return batch(student)

    monkeypatch.setattr(train._Student, "_learn_batch", counted)
    continued = learn(config, demo, tmp_path / "stopped.safetensors")
    assert min(steps, default=1) > 0, "it does not begin again"
    assert_equal(continued, whole)
    assert not list(tmp_path.glob(".*"))


def test_an_unfinished_training_of_other_settings_is_not_continued(
    demo: Backbone, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "learned.safetensors"
    learn_and_stop(brief(pictures, seed=1), demo, path, monkeypatch)
    assert_equal(learn(brief(pictures), demo, path), learn(brief(pictures), demo, tmp_path / "other.safetensors"))


@pytest.mark.parametrize("name", ["weitop", "ia-red2"])
def test_the_seed_decides_and_nothing_else_does(name: str, demo: Backbone, pictures: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    one = learn(brief(pictures, name), demo, tmp_path / "one.safetensors")
    torch.manual_seed(2)
    same = learn(brief(pictures, name), demo, tmp_path / "same.safetensors")
    assert_equal(one, same)
    other = learn(brief(pictures, name, seed=1), demo, tmp_path / "other.safetensors")
    assert other.digest != one.digest


def test_a_training_leaves_the_global_generator_alone(demo: Backbone, pictures: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    learn(brief(pictures), demo, tmp_path / "learned.safetensors")
    assert torch.equal(torch.rand(3), expected)


def test_class_folders_and_a_flat_folder_give_the_same_parameters(
    demo: Backbone, pictures: Path, tmp_path: Path
) -> None:
    flat = learn(brief(pictures), demo, tmp_path / "flat.safetensors")
    config = brief(pictures, images=str(pictures / "classes"))
    assert len(open_pictures(config.images).class_names) == CLASSES
    classes = learn(config, demo, tmp_path / "classes.safetensors")
    assert_equal(flat, classes)


class Unreadable(Sequence[int]):
    """Labels that can be counted but not read."""

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("a label was read")

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("a label was read")


def test_no_label_is_ever_read(demo: Backbone, pictures: Path, tmp_path: Path) -> None:
    images: Any = FlatImages(pictures / "flat")
    flat = learn(brief(pictures), demo, tmp_path / "flat.safetensors", images)
    images.labels = Unreadable()
    assert_equal(flat, learn(brief(pictures), demo, tmp_path / "unlabelled.safetensors", images))


def test_other_pictures_give_other_parameters(demo: Backbone, pictures: Path, tmp_path: Path) -> None:
    class Mirrored(FlatImages):
        def load(self, index: int) -> Any:
            return super().load(index).rotate(90)

    one = learn(brief(pictures), demo, tmp_path / "one.safetensors")
    other = learn(brief(pictures), demo, tmp_path / "other.safetensors", Mirrored(pictures / "flat"))
    assert other.digest != one.digest
    with pytest.raises(ConfigError, match=r"another training, which differs in: images\. Nothing was written; choose"):
        learn(brief(pictures), demo, tmp_path / "one.safetensors", Mirrored(pictures / "flat"))


def test_a_finished_file_is_not_trained_again(
    demo: Backbone, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "learned.safetensors"
    first = learn(brief(pictures), demo, path)
    content = path.read_bytes()
    monkeypatch.setattr(train._Student, "_learn_batch", lambda student: pytest.fail("it trains again"))
    again = learn(brief(pictures, workers=1, threads=1), demo, path)
    assert_equal(first, again)
    assert again.training == first.training
    assert path.read_bytes() == content


def test_the_file_of_another_training_is_refused_and_kept(demo: Backbone, pictures: Path, finished: Path) -> None:
    content = finished.read_bytes()
    changed: list[tuple[dict[str, Any], str]] = [
        ({"seed": 1}, "seed"),
        ({"steps": 7, "rate": 0.5}, "steps, rate"),
        ({"method": "ia-red2"}, "method, rate, parameters"),
    ]
    for changes, named in changed:
        with pytest.raises(ConfigError, match=rf"differs in: {named}\. Nothing was written; choose another --out\.$"):
            learn(replace(brief(pictures), **changes), demo, finished)
    assert finished.read_bytes() == content
    assert len(list(finished.parent.iterdir())) == 1


@pytest.mark.filterwarnings("ignore:.*fork")
def test_two_trainings_at_once_into_one_file_are_kept_apart(demo: Backbone, pictures: Path, tmp_path: Path) -> None:
    path = tmp_path / "learned.safetensors"
    with drafts.alone(path):
        child = os.fork()
        if child == 0:
            try:
                learn(brief(pictures, seed=1), demo, path)
            except ArtifactError as error:
                os._exit(3 if str(error).startswith(f"Another redi process is working on {path}: wait") else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert not list(tmp_path.iterdir())


def test_a_file_of_the_user_is_neither_replaced_nor_called_damaged(
    demo: Backbone, pictures: Path, tmp_path: Path
) -> None:
    for name in ("weights", "text", "link"):
        path = tmp_path / f"{name}.safetensors"
        if name == "weights":
            save_file({"weights": torch.ones(3)}, path)
        elif name == "text":
            path.write_text("mine")
        else:
            path.symlink_to(tmp_path / "nowhere")
        with pytest.raises(ConfigError, match=one_line) as refused:
            learn(brief(pictures), demo, path)
        assert "exists and was not written by redi" in str(refused.value)
        with pytest.raises(ConfigError, match=one_line) as refused:
            read_training(path)
        assert "elete" not in str(refused.value)
    assert (tmp_path / "text.safetensors").read_text() == "mine"


@pytest.mark.parametrize("place", ["images", "model"])
def test_a_file_inside_the_images_or_the_checkpoint_is_refused(place: str, pictures: Path, tmp_path: Path) -> None:
    folders = {"images": tmp_path / "photos", "model": save_checkpoint("vit_head", tmp_path / "model")}
    shutil.copytree(pictures / "flat", folders["images"])
    before = sorted(folders[place].iterdir())
    with pytest.raises(ConfigError, match=rf"^--out \S+ lies inside the {place} \S+\. Nothing was written; choose"):
        redi.learn(folders["model"], "weitop", folders["images"], out=folders[place] / "model-1.safetensors")
    assert sorted(folders[place].iterdir()) == before


def test_held_out_images_are_none_of_those_to_learn_from(pictures: Path) -> None:
    images = open_pictures(str(pictures / "flat"))
    for limit, held in ((64, 24), (2000, 256), (16, 16)):
        chosen, kept_back = train._choose(images, limit, held)
        assert not set(chosen) & set(kept_back)
        assert len(kept_back) == min(held, IMAGES // 4)
        assert len(chosen) == min(limit, IMAGES - len(kept_back))


def test_mirror_images_are_learned_from_too_but_not_held_out(
    demo: Backbone, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    students = []
    start = train._Student.__post_init__

    def noted(student: Any) -> None:
        start(student)
        students.append(student)

    monkeypatch.setattr(train._Student, "__post_init__", noted)
    learned = learn(brief(pictures, mirror=True), demo, tmp_path / "learned.safetensors")
    assert (learned.training.images, learned.training.held) == (64, 16)
    images, mirrored = students[0].pixels.split(32)
    assert torch.equal(mirrored, images.flip(-1))
    assert not torch.equal(mirrored, images)


# Files.


@pytest.fixture(scope="module")
def finished(demo: Backbone, pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("finished") / "learned.safetensors"
    learn(brief(pictures), demo, path)
    return path


def test_a_file_comes_back_as_it_was_written(finished: Path, demo: Backbone, pictures: Path, tmp_path: Path) -> None:
    learned = load_learned(finished, demo)
    again = learn(brief(pictures), demo, tmp_path / "again.safetensors")
    assert_equal(learned, again)
    training = read_training(finished)
    assert training == learned.training
    assert training.config == brief(pictures)
    assert (training.method, training.measure) == ("weitop", "1 - cosine to dense")
    assert [check.step for check in training.checks] == [0, 2, 4, 6]


def test_a_file_of_another_model_is_refused(finished: Path, tmp_path: Path) -> None:
    other = load_backbone(save_checkpoint("vit_head", tmp_path / "other"))
    with pytest.raises(ConfigError, match=r"^[^\n]*was learned on[^\n]*run `redi learn`[^\n]*$"):
        load_learned(finished, other)


def test_other_weights_of_the_same_kind_give_a_warning(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    backbone = load_backbone(DEMO)
    with torch.no_grad():
        next(iter(backbone.model.parameters())).add_(1)
    assert load_learned(finished, backbone).training.method == "weitop"
    assert "warning" in capsys.readouterr().err


def test_files_that_hold_no_learned_reducer_are_refused(finished: Path, demo: Backbone, tmp_path: Path) -> None:
    path = tmp_path / "learned.safetensors"
    with pytest.raises(ConfigError, match=r"^There is no file [^\n]*`redi learn`\.$"):
        load_learned(path, demo)
    save_file({"weights": torch.ones(3)}, path)
    with pytest.raises(RediError, match=one_line):
        load_learned(path, demo)
    artifacts.save(path, {"weights": torch.ones(3)}, {"stage": "vocabulary"})
    with pytest.raises(ConfigError, match=r"^[^\n]*holds no learned reducer[^\n]*$"):
        load_learned(path, demo)
    content = finished.read_bytes()
    for damaged in (b"", b"no tensors", content[: len(content) // 2], content[:-4] + b"\x00\x01\x02\x03"):
        path.write_bytes(damaged)
        with pytest.raises((ConfigError, ArtifactError), match=one_line):
            load_learned(path, demo)


@pytest.mark.parametrize("grid", [(10**6, 10**6), (2**40, 1), (4096, 4096), (0, 14), (-14, -14)])
@pytest.mark.parametrize("name", ["patch-slimming", "patchmerger", "tokenlearner", "protected-learned"])
def test_a_grid_that_the_parameters_do_not_have_takes_no_memory(
    name: str, grid: tuple[int, int], demo: Backbone, tmp_path: Path
) -> None:
    path = tmp_path / "learned.safetensors"
    write_learned(path, demo, name)
    tensors, manifest = artifacts.load(path)
    manifest["notes"]["training"]["grid"] = grid
    artifacts.save(path, tensors, manifest["key"], **manifest["notes"])
    if name == "protected-learned" and grid == (4096, 4096):  # its parameters do not depend on the grid
        assert load_learned(path, demo).training.grid == grid
        return
    with pytest.raises(ConfigError, match=one_line):
        load_learned(path, demo)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", LEARNED)
def test_parameters_that_are_not_finite_are_refused(name: str, value: float, demo: Backbone, tmp_path: Path) -> None:
    path = tmp_path / "learned.safetensors"
    method = write_learned(path, demo, name).method
    if value == float("inf") and not list(method.parameters()):
        return  # what is counted may be infinite
    tensors, manifest = artifacts.load(path)
    next(iter(tensors.values())).flatten()[0] = value
    artifacts.save(path, tensors, manifest["key"], **manifest["notes"])
    with pytest.raises(ConfigError, match=r"^[^\n]* has parameters that are not finite: run `redi learn` again\.$"):
        load_learned(path, demo)


@pytest.mark.parametrize("checks", [[], [{"step": 0, "loss": None, "distances": {}}]])
def test_a_file_without_a_single_check_is_refused(
    checks: list[Any], finished: Path, demo: Backbone, tmp_path: Path
) -> None:
    tensors, manifest = artifacts.load(finished)
    manifest["notes"]["training"]["checks"] = checks
    path = tmp_path / "learned.safetensors"
    artifacts.save(path, tensors, manifest["key"], **manifest["notes"])
    with pytest.raises(ConfigError, match="holds no learned reducer"):
        load_learned(path, demo)


@pytest.mark.parametrize("change", ["method", "parameters"])
def test_a_file_whose_content_does_not_fit_is_refused(
    change: str, finished: Path, demo: Backbone, tmp_path: Path
) -> None:
    """As a later version might write it: a method that is not known here, or other parameters."""
    tensors, manifest = artifacts.load(finished)
    training = manifest["notes"]["training"]
    if change == "method":
        training["method"] = "of-tomorrow"
    else:
        tensors.popitem()
    path = tmp_path / "learned.safetensors"
    artifacts.save(path, tensors, manifest["key"], training=training)
    with pytest.raises(ConfigError, match=one_line):
        load_learned(path, demo)


def test_a_damaged_unfinished_training_says_which_file_to_delete(
    demo: Backbone, pictures: Path, tmp_path: Path
) -> None:
    path = tmp_path / "learned.safetensors"
    train._partial(path).write_bytes(b"half")
    with pytest.raises(ArtifactError, match=one_line) as refused:
        learn(brief(pictures), demo, path)
    assert str(train._partial(path)) in str(refused.value)


# Settings.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "evit"}, "There is no learned method 'evit'; choose one of"),
        ({"costs": (0.5, 1.0)}, "must lie between 0 and 1"),
        ({"costs": (0.0,)}, "must lie between 0 and 1"),
        ({"costs": (0.1,)}, "cost of 0.1 cannot be met: the lowest possible cost is"),
        ({"limit": 15}, "limit must lie in 16 to"),
        ({"held": 15}, "held must lie in 16 to"),
        ({"steps": 0}, "steps must lie in 1 to"),
        ({"checks": 0}, "checks must lie in 1 to"),
        ({"batch": 0}, "batch must lie in 1 to"),
        ({"workers": -1}, "workers must lie in 0 to"),
        ({"rate": 1.0}, "rate must lie in 0 to 1, without 1"),
        ({"rate": float("nan")}, "rate must be a finite number"),
        ({"costs": (float("nan"),)}, "costs must be a finite number"),
    ],
)
def test_settings_that_cannot_be_met_are_refused_before_any_work(
    changes: dict[str, Any], message: str, demo: Backbone, pictures: Path, tmp_path: Path
) -> None:
    config = replace(brief(pictures), **changes)
    with pytest.raises(ConfigError, match=one_line) as refused:
        learn(config, demo, tmp_path / "learned.safetensors")
    assert message in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_default_costs_that_a_method_cannot_reach_are_left_out(
    demo: Backbone, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = brief(pictures, "patchmerger", costs=(), steps=1, checks=1)
    training = learn(config, demo, tmp_path / "learned.safetensors").training
    assert training.config.costs == (0.65, 0.75)
    assert "learning for costs of 0.65 and 0.75" in capsys.readouterr().err


def test_too_few_images_are_refused(demo: Backbone, pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "few").mkdir()
    for file in sorted((pictures / "flat").iterdir())[:63]:
        (tmp_path / "few" / file.name).symlink_to(file)
    config = brief(pictures, images=str(tmp_path / "few"))
    with pytest.raises(CorpusError, match=r"^[^\n]*63 images, too few to learn from: give 64 or more\.$"):
        learn(config, demo, tmp_path / "learned.safetensors")


def test_more_checks_than_steps_and_batches_larger_than_the_data_are_no_obstacle(
    demo: Backbone, pictures: Path, tmp_path: Path
) -> None:
    config = brief(pictures, steps=2, checks=9, batch=500)
    training = learn(config, demo, tmp_path / "learned.safetensors").training
    assert [check.step for check in training.checks][-1] == 2


@pytest.mark.parametrize("name", ["dynamicvit", "ia-red2", "patchmerger"])
def test_batches_of_one_image_learn_finite_parameters(
    name: str, demo: Backbone, pictures: Path, tmp_path: Path
) -> None:
    config = brief(pictures, name, steps=2, checks=1, batch=1)
    learned = learn(config, demo, tmp_path / "learned.safetensors")
    assert all(value.isfinite().all() for value in parameters_of(learned).values())


@pytest.mark.parametrize("name", ["patchmerger", "dynamicvit", "protected-learned"])
def test_a_cost_that_the_dense_prefix_pass_meets_is_no_obstacle(name: str, pictures: Path, tmp_path: Path) -> None:
    """A last block for the prefix alone saves so much that no token has to go."""
    backbone = load_backbone(save_checkpoint("vit_head", tmp_path / "head"))
    config = brief(pictures, name, costs=(0.97,), size=48)
    learned = learn(config, backbone, tmp_path / "learned.safetensors")
    assert learned.training.measure == "KL from dense"
    assert learned.training.best.mean < 1e-5
