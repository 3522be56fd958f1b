"""Where results may be written: not over the user's files, not over the inputs."""

import errno
import json
from pathlib import Path

import pytest

from redi.errors import ArtifactError, ConfigError
from redi.records import drafts
from redi.records.outputs import (
    MARK,
    RUN,
    TUNED,
    mark_run,
    recorded_identity,
    require_apart,
    require_file,
    require_no_link,
    require_own,
    require_own_runs,
    require_run,
)


@pytest.mark.parametrize("name", ["notes.txt", ".bashrc", "partial", "config.toml", "results.json", ".run.json"])
def test_a_folder_with_anything_but_our_marker_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(ConfigError, match=rf"is not empty and was not made by redi: it holds {name}"):
        require_own(tmp_path)
    with pytest.raises(ConfigError, match="is not a run folder"):
        require_run(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"name": "other"}', "[" * 100_000, "\xff"])
def test_a_marker_of_another_program_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / RUN.file).write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"holds run\.json and no run\.json of ours"):
        require_own(tmp_path)


def test_a_marker_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **_options: object) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    mark_run(tmp_path, {})
    monkeypatch.setattr(Path, "read_text", refuse)
    for check in (require_run, require_own, recorded_identity):
        with pytest.raises(ArtifactError, match=r"run\.json cannot be read: Permission denied\.$"):
            check(tmp_path)


def test_a_folder_inside_a_run_is_no_link(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "report").symlink_to(tmp_path / "photos")
    (tmp_path / "figures").symlink_to(tmp_path / "nowhere")
    for name in ("report", "figures"):
        with pytest.raises(ConfigError, match=rf"{name} is a link to another place\. Nothing was written"):
            require_no_link(tmp_path / name)
    require_no_link(tmp_path / "photos")
    require_no_link(tmp_path / "new")


def test_new_empty_and_own_folders_are_free(tmp_path: Path) -> None:
    require_own(tmp_path / "new")
    require_own(tmp_path)
    (tmp_path / ".lock").touch()
    drafts._name(tmp_path / "run.json").write_text("half of")
    require_own(tmp_path)  # as a run leaves it that is killed before it writes its marker
    mark_run(tmp_path, {})
    (tmp_path / "anything").touch()
    require_own(tmp_path)
    require_run(tmp_path)


def test_a_lock_that_holds_something_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("somebody else's")
    with pytest.raises(ConfigError, match=r"it holds \.lock"):
        require_own(tmp_path)


def test_each_kind_of_folder_has_its_own_marker(tmp_path: Path) -> None:
    mark_run(tmp_path, {})
    with pytest.raises(ConfigError, match=r"no tune\.json of ours"):
        require_own(tmp_path, TUNED)


def test_a_folder_of_runs_holds_nothing_else(tmp_path: Path) -> None:
    require_own_runs(tmp_path / "new", ["table.md"])
    mark_run(tmp_path / "one", {})
    (tmp_path / "two").mkdir()
    (tmp_path / "table.md").touch()
    require_own_runs(tmp_path, ["table.md"])
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").touch()
    with pytest.raises(ConfigError, match=r"photos is not empty and was not made by redi: it holds a\.jpg"):
        require_own_runs(tmp_path, ["table.md"])
    (tmp_path / "a.txt").touch()
    with pytest.raises(ConfigError, match=r"is not a folder of runs: it holds a\.txt"):
        require_own_runs(tmp_path, ["table.md"])


def test_what_a_run_was_made_from_is_read_back(tmp_path: Path) -> None:
    assert recorded_identity(tmp_path) == {}
    mark_run(tmp_path, {"train": "0f"})
    assert recorded_identity(tmp_path) == {"train": "0f"}
    (tmp_path / RUN.file).write_text('{"identity": 7}')
    with pytest.raises(ArtifactError, match=r"run\.json is damaged: choose another --out"):
        recorded_identity(tmp_path)


@pytest.mark.parametrize(
    ("out", "relation"),
    [
        ("data/train", "is"),
        ("data/train/", "is"),
        ("data/../data/train", "is"),
        ("data/train/red/run", "lies inside"),
        ("data", "contains"),
        (".", "contains"),
        ("link", "is"),
        ("link/run", "lies inside"),
        ("far/run", "lies inside"),
    ],
)
def test_a_place_that_touches_an_input_is_refused(tmp_path: Path, out: str, relation: str) -> None:
    train = tmp_path / "data" / "train"
    (train / "red").mkdir(parents=True)
    (tmp_path / "link").symlink_to(train)
    (tmp_path / "far").symlink_to(train / "red")
    with pytest.raises(ConfigError, match=rf"^--out .* {relation} the training data .*choose another --out\.$"):
        require_apart(tmp_path / out, [("the training data", train)])


def test_places_beside_an_input_and_the_demos_own_pictures_are_free(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    for out in ("run", "training", "train-run"):
        require_apart(tmp_path / out, [("the data", tmp_path / "train")])
    require_apart(tmp_path / "demo", [("the data", tmp_path / "demo" / "images" / "train")])


def test_a_file_for_results_is_no_folder_no_input_and_has_its_suffix(tmp_path: Path) -> None:
    photo = tmp_path / "p.png"
    photo.touch()
    (tmp_path / "link.png").symlink_to(photo)
    (tmp_path / "hard.png").hardlink_to(photo)
    for same in ("p.png", "link.png", "hard.png"):
        with pytest.raises(ConfigError, match="is also an input"):
            require_file(tmp_path / same, (".png",), [photo])
    with pytest.raises(ConfigError, match=r"is a folder: name a file that ends in \.png or \.pdf"):
        require_file(tmp_path, (".png", ".pdf"))
    with pytest.raises(ConfigError, match=r"must end in \.png"):
        require_file(tmp_path / "p.jpg", (".png",))
    with pytest.raises(ConfigError, match="in a folder that exists"):
        require_file(tmp_path / "absent" / "a.png", (".png",))
    require_file(tmp_path / "new.PNG", (".png",), [photo])


def test_a_record_replaces_only_a_record_of_its_kind(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    require_file(file, (".json",), replaces=("rows",))
    file.write_text(json.dumps({"rows": []}))
    require_file(file, (".json",), replaces=("rows",))
    file.write_text(json.dumps({"dependencies": []}))
    with pytest.raises(ConfigError, match="exists and was not written by redi"):
        require_file(file, (".json",), replaces=("rows",))
    file.write_text("")  # which mktemp makes
    require_file(file, (".json",), replaces=("rows",))


@pytest.mark.parametrize("place", ["begin", "end"])
def test_a_picture_or_a_model_replaces_only_one_with_our_mark(tmp_path: Path, place: str) -> None:
    file, far = tmp_path / "a.svg", bytes(200_000)
    require_file(file, (".svg",))
    for content in (b"<svg/>", far + MARK.encode() + far):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match=r"^\S+ exists and was not written by redi, .*another name\.$"):
            require_file(file, (".svg",))
    file.write_bytes(MARK.encode() + far if place == "begin" else far + MARK.encode())
    require_file(file, (".svg",))
    file.write_bytes(b"")  # which mktemp makes
    require_file(file, (".svg",))


def test_a_link_that_leads_nowhere_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "a.png").symlink_to(tmp_path / "nowhere")
    for replaces in ((), ("rows",)):
        with pytest.raises(ConfigError, match="exists and was not written by redi"):
            require_file(tmp_path / "a.png", (".png",), replaces=replaces)


def test_what_a_killed_process_left_is_no_file_of_the_user(tmp_path: Path) -> None:
    drafts._name(tmp_path / "table.md").write_text("half of")
    require_own_runs(tmp_path, ["table.md"])
