"""Drafts: exclusive, unpredictable, following no link, cleared away when their process is gone, made in one place."""

import ast
import os
import stat
from pathlib import Path

import pytest

import redi
from redi.errors import ArtifactError
from redi.records import drafts

ROOT = Path(redi.__file__).parent
#: Calls that make a temporary file or rename a file. With one argument, ``replace`` is that of a path, not of a text.
MAKERS = {"mkstemp", "mkdtemp", "NamedTemporaryFile", "TemporaryFile", "SpooledTemporaryFile", "getpid"}
RENAMES = {"rename", "renames", "move", "replace"}

forking = pytest.mark.filterwarnings("ignore:.*fork")  # of a process with threads, which later versions of Python note


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_draft_takes_the_place_of_its_target(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    target.write_text("old")
    with drafts.draft(target) as place:
        assert place.parent == tmp_path
        assert drafts.is_draft(place, "a.json")
        place.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert names(tmp_path) == ["a.json"]


def write_half(target: Path, failure: type[BaseException]) -> None:
    with drafts.draft(target) as place:
        place.write_text("half")
        raise failure


def test_a_failure_leaves_the_target_and_no_draft(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("old")
    for kind in (RuntimeError, KeyboardInterrupt):
        with pytest.raises(kind):
            write_half(tmp_path / "a.json", kind)
    assert names(tmp_path) == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "old"


def test_two_drafts_of_one_target_are_two_files_and_neither_clears_the_other(tmp_path: Path) -> None:
    target = tmp_path / "m.onnx"
    with drafts.draft(target) as one:
        one.write_text("one")
        with drafts.draft(target) as other:
            assert one != other
            assert one.read_text() == "one"
            other.write_text("other")
        drafts.clear(tmp_path)
        assert one.read_text() == "one", "its process still writes"
    assert (names(tmp_path), target.read_text()) == (["m.onnx"], "one")


@forking
def test_another_process_does_not_clear_a_live_draft_but_that_of_a_killed_one(tmp_path: Path) -> None:
    target = tmp_path / "m.onnx"
    with drafts.draft(target) as mine:
        child = os.fork()
        if child == 0:
            try:
                os.close(0)
                with drafts.draft(target) as its:
                    its.write_text("of the child")
                    drafts.clear(tmp_path)
                    os._exit(0 if mine.exists() else 1)  # killed with its draft
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(names(tmp_path)) == 2
        drafts.clear(tmp_path)
        assert names(tmp_path) == [mine.name]
        mine.write_text("mine")
    assert target.read_text() == "mine"


def test_the_next_draft_clears_what_a_killed_process_left_of_the_same_target(tmp_path: Path) -> None:
    drafts._name(tmp_path / "m.onnx").write_text("half")
    other = drafts._name(tmp_path / "other.onnx")
    other.write_text("half")
    with drafts.draft(tmp_path / "m.onnx") as place:
        place.write_text("whole")
    assert names(tmp_path) == sorted(["m.onnx", other.name])


def test_names_cannot_be_known_beforehand(tmp_path: Path) -> None:
    assert len({drafts._name(tmp_path / "a").name for _ in range(50)}) == 50


def test_planted_links_and_files_are_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the names that drafts had, and under the very name that a draft draws."""
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "out").mkdir()
    target = tmp_path / "out" / "m.onnx"
    planted = [f".m.onnx.{os.getpid()}", ".m.onnx.draft", ".m.onnx.redi-" + "0" * 16]
    for name in planted:
        (tmp_path / "out" / name).symlink_to(precious)
    monkeypatch.setattr(drafts, "token_hex", lambda _: "0" * 16)
    with pytest.raises(FileExistsError), drafts.draft(target):
        pass
    monkeypatch.undo()
    with drafts.draft(target) as place:
        place.write_text("new")
    assert (precious.read_text(), target.read_text()) == ("mine", "new")
    assert set(planted) <= set(names(tmp_path / "out"))


def test_a_target_that_is_a_link_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "a.json").symlink_to(tmp_path / "precious")
    with drafts.draft(tmp_path / "a.json") as place:
        place.write_text("new")
    assert (tmp_path / "precious").read_text() == "mine"
    assert not (tmp_path / "a.json").is_symlink()
    assert (tmp_path / "a.json").read_text() == "new"


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_a_new_file_has_the_permissions_of_any_other(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        with drafts.draft(tmp_path / "a.json") as place:
            place.write_text("new")
        (tmp_path / "usual").write_text("")
    finally:
        os.umask(before)
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a.json", "usual")}
    assert len(modes) == 1


def test_only_the_names_of_drafts_are_cleared(tmp_path: Path) -> None:
    halves = [drafts._name(tmp_path / name) for name in ("run.json", "scores/mass.safetensors", "report/index.html")]
    others = [".lock", ".bashrc", ".notes.1", ".draft.json.7", ".a.redi-12", ".redi-" + "0" * 16, "a.redi-" + "0" * 16]
    for path in (*halves, *(tmp_path / name for name in others)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text")
    folder = drafts._name(tmp_path / "folder")
    folder.mkdir()
    drafts.clear(tmp_path)
    assert not any(path.exists() for path in halves)
    assert all((tmp_path / name).exists() for name in others)
    assert folder.is_dir(), "that of a model that is being saved"
    drafts.clear(tmp_path / "missing")


@forking
def test_one_process_at_a_time_works_on_a_file_and_the_lock_ends_with_it(tmp_path: Path) -> None:
    target = tmp_path / "a.safetensors"

    def tries(kill: bool) -> int:
        child = os.fork()
        if child == 0:
            try:
                with drafts.alone(target):
                    if kill:
                        os._exit(9)
                os._exit(0)
            except ArtifactError as error:
                os._exit(1 if str(error).startswith(f"Another redi process is working on {target}: wait") else 2)
            finally:
                os._exit(3)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    with drafts.alone(target):
        assert tries(kill=False) == 1
    assert tries(kill=True) == 9
    assert names(tmp_path) == [".a.safetensors.lock"]
    assert tries(kill=False) == 0
    assert names(tmp_path) == []


def test_a_lock_follows_no_link_and_removes_no_file_of_the_user(tmp_path: Path) -> None:
    lock = tmp_path / ".a.lock"
    lock.symlink_to(tmp_path / "elsewhere")
    refused = pytest.raises(ArtifactError, match=r"^\S+\.a\.lock cannot be locked: .*Choose another --out\.$")
    with refused, drafts.alone(tmp_path / "a"):
        pass
    assert not (tmp_path / "elsewhere").exists()
    lock.unlink()
    lock.write_text("mine")
    with drafts.alone(tmp_path / "a"):
        pass
    assert lock.read_text() == "mine"


def test_a_folder_is_drafted_by_one_process_at_a_time(tmp_path: Path) -> None:
    refused = pytest.raises(ArtifactError, match=r"^Another redi process is saving to \S+: wait for it\.$")
    one, other = (drafts.folder_draft(tmp_path, "config.json") for _ in range(2))
    with one, refused, other:
        pass
    assert names(tmp_path) == []


def temporaries(source: str) -> list[str]:
    """The calls of a module that make a temporary file beside another, or rename a file."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    found = []
    for call in calls:
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        on = call.func.value if isinstance(call.func, ast.Attribute) else None
        of_os = isinstance(on, ast.Name) and on.id in ("os", "shutil")
        renames = name in RENAMES and on is not None and (of_os or len(call.args) == 1) and not call.keywords
        beside = name == "TemporaryDirectory" and bool(call.args or call.keywords)
        if name in MAKERS or renames or beside:
            found.append(f"{name} in line {call.lineno}")
    return found


@pytest.mark.parametrize(
    "line",
    ["os.replace(a, b)", "a.replace(b)", "a.rename(b)", "shutil.move(a, b)", "mkstemp()", "TemporaryDirectory(dir=a)"],
)
def test_a_temporary_elsewhere_is_noticed(line: str) -> None:
    assert temporaries(line)
    assert not temporaries('a.replace("b", "c")\nreplace(a, b=c)\nTemporaryDirectory()')


def test_no_other_module_makes_a_temporary_or_renames_a_file() -> None:
    """A folder in the system's own place for temporary files is no draft: nothing in it is renamed."""
    modules = [file for file in ROOT.rglob("*.py") if file.name != "drafts.py"]
    found = {str(file.relative_to(ROOT)): temporaries(file.read_text("utf-8")) for file in modules}
    assert {name: calls for name, calls in found.items() if calls} == {}
