"""A user's own functions, and the catalogue that names them beside the package's."""

from pathlib import Path
from typing import Any

import pytest
import torch

from redi.attention import ATTENTION_SCORES
from redi.budget import Budget
from redi.comparison.plugins import extended_catalogue, is_plugin, load_plugin
from redi.corpus import TERMS
from redi.errors import ConfigError, InvalidInput
from redi.reduction import REDUCERS, OneShot, Progressive, Reduction
from redi.reduction.schedule import constant
from redi.rows import Score, Variant
from redi.scorers import SCORERS, Dense

SOURCE = """
def contrast(dense):
    "Patches whose final feature differs most from that of their right neighbour."
    rows, columns = dense.grid
    grid = dense.patches.unflatten(1, (rows, columns))
    return (grid - grid.roll(-1, dims=2)).norm(dim=-1).flatten(1)
"""


def write(folder: Path, source: str, name: str = "my.py") -> Path:
    path = folder / name
    path.write_text(source, encoding="utf-8")
    return path


def one_line(error: pytest.ExceptionInfo[ConfigError]) -> str:
    message = str(error.value)
    assert message
    assert "\n" not in message
    return message


# Files --------------------------------------------------------------------------------------------


def test_a_function_comes_from_its_file_and_works(tmp_path: Path) -> None:
    plugin = load_plugin(f"{write(tmp_path, SOURCE)}:contrast")
    assert plugin.name == "contrast"
    tokens = torch.randn(2, 1, 16, 4)
    patches = torch.randn(2, 15, 8)
    dense = Dense(tokens, tokens, tokens, 0.5, patches, 1, (3, 5), indices=[0, 1], seed=0)
    scores = plugin.value(dense)
    right = [patch + 1 if patch % 5 < 4 else patch - 4 for patch in range(15)]  # round the end
    expected = torch.linalg.vector_norm(patches - patches[:, right], dim=-1)
    torch.testing.assert_close(scores, expected)


def test_only_what_has_a_colon_is_a_file() -> None:
    assert is_plugin("my.py:contrast")
    assert not is_plugin("redi_mass")
    assert not is_plugin("mass@4")


def test_the_digest_is_of_the_content(tmp_path: Path) -> None:
    first = load_plugin(f"{write(tmp_path, SOURCE)}:contrast")
    copy = load_plugin(f"{write(tmp_path, SOURCE, 'copy.py')}:contrast")
    assert copy.digest == first.digest
    changed = load_plugin(f"{write(tmp_path, SOURCE + '# and more')}:contrast")
    assert changed.digest != first.digest


def test_a_changed_file_gives_the_changed_function(tmp_path: Path) -> None:
    for value in (1, 23, 456):
        path = write(tmp_path, f"def score(dense):\n    return {value}\n")
        assert load_plugin(f"{path}:score").value(None) == value


def test_two_files_of_one_name_do_not_meet(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = load_plugin(f"{write(tmp_path / 'a', 'here = lambda: 1')}:here")
    second = load_plugin(f"{write(tmp_path / 'b', 'here = lambda: 22')}:here")
    assert (first.value(), second.value()) == (1, 22)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("here = 3", "has no function, OneShot or Progressive called 'here'"),
        ("raise ValueError('one\\ntwo')", "cannot be imported: ValueError: one$"),
        ("import sys; sys.exit()", "cannot be imported: SystemExit$"),
        ("class Mine(BaseException): pass\nraise Mine('odd\\x1b[2J')", r"cannot be imported: Mine: odd\\x1b\[2J$"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_plugin(f"{write(tmp_path, text)}:here")


def test_ctrl_c_while_a_file_is_loaded_is_the_users_own(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        load_plugin(f"{write(tmp_path, 'raise KeyboardInterrupt')}:here")


def test_a_file_cannot_change_torch_for_others(tmp_path: Path) -> None:
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    text = (
        "import torch\ntorch.manual_seed(99)\ntorch.set_default_dtype(torch.float64)\n"
        f"torch.set_num_threads({threads + 1})\nhere = lambda: torch.get_default_dtype()\n"
    )
    try:
        assert load_plugin(f"{write(tmp_path, text)}:here").value() == torch.float32
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(threads)


def test_the_bytes_that_are_hashed_are_those_that_run(tmp_path: Path) -> None:
    """An edit of the same length within a second would be missed by Python's own cache."""
    values = [load_plugin(f"{write(tmp_path, f'here = lambda: {n}')}:here").value() for n in (1, 2)]
    assert values == [1, 2]
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".py"] == []


def test_a_dataclass_with_postponed_annotations_can_be_defined(tmp_path: Path) -> None:
    text = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Here:\n    value: int = 5\n"
    )
    assert load_plugin(f"{write(tmp_path, text)}:Here").value().value == 5


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_plugin(f"{tmp_path / 'none.py'}:score")
    assert str(tmp_path / "none.py") in one_line(caught)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(ConfigError, match="There is no file"):
        load_plugin(f"{tmp_path / 'folder.py'}:score")


def test_a_missing_name_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, SOURCE)
    with pytest.raises(ConfigError) as caught:
        load_plugin(f"{path}:contrasts")
    message = one_line(caught)
    assert str(path) in message
    assert "'contrasts'" in message


@pytest.mark.parametrize("text", ["{}", "{}:", "{}:my score", "{}:2nd", "{}:a.b", ":score", "my:score", "my.txt:score"])
def test_what_is_not_a_file_and_a_name_is_refused(tmp_path: Path, text: str) -> None:
    given = text.format(write(tmp_path, SOURCE))
    with pytest.raises(ConfigError, match=r"file\.py:name") as caught:
        load_plugin(given)
    assert repr(given) in one_line(caught)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise RuntimeError('out of luck')", "RuntimeError: out of luck"),
        ("import no_such_module_at_all", "No module named 'no_such_module_at_all'"),
        ("def score(dense:\n    pass\n", "SyntaxError"),
        ("score = undefined", "NameError"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_file_that_raises_is_named_with_the_reason(tmp_path: Path, source: str, reason: str) -> None:
    path = write(tmp_path, source)
    with pytest.raises(ConfigError) as caught:
        load_plugin(f"{path}:score")
    message = one_line(caught)
    assert str(path) in message
    assert reason in message


# Catalogue ----------------------------------------------------------------------------------------


def nothing(*_: Any) -> Any:
    raise AssertionError("is not called")


def variant(scorer: str, label_source: str = "", **changes: Any) -> Variant:
    return Variant(Score.parse(scorer), label_source, **changes)


def test_the_catalogue_holds_the_packages_own_and_the_users() -> None:
    catalogue = extended_catalogue({"mine": nothing}, {"lean": nothing}, {"lean": "abc"})
    assert set(catalogue.scorers) == {*SCORERS, "mine"}
    assert set(catalogue.reducers) == {*REDUCERS, "lean"}
    for row in (variant("mine", reducer="lean"), variant("redi_mine@2", "other")):
        assert catalogue.check(row) == row
    assert catalogue.digest(variant("mass", reducer="lean")) == "abc"
    assert catalogue.digest(variant("mass", reducer="prune")) == ""


def test_names_that_would_collide_are_refused() -> None:
    for name in ("dense", "other", "tome", "redi_mine"):
        with pytest.raises(ConfigError, match="a name of the package's own"):
            extended_catalogue({name: print}, {}, {})
    with pytest.raises(ConfigError, match="both a scorer and a reducer"):
        extended_catalogue({"mine": print}, {"mine": print}, {})


def test_a_plain_function_becomes_a_one_shot_reducer() -> None:
    def reduce(*_: Any) -> Reduction:
        raise NotImplementedError

    stepwise, once = Progressive(reduce, constant), OneShot(reduce, scored=False)
    given = {"plain": reduce, "stepwise": stepwise, "once": once}
    reducers = extended_catalogue({}, given, {}).reducers
    plain = reducers["plain"]
    assert isinstance(plain, OneShot)
    assert plain.scored
    assert plain.tokens(Budget(), (14, 14)) == 102
    with pytest.raises(InvalidInput, match="The reducer 'plain' failed: NotImplementedError"):
        plain.reduce(torch.zeros(1, 4, 2), torch.zeros(1, 4), Budget(), (2, 2))
    step = reducers["stepwise"]
    assert isinstance(step, Progressive)
    assert step.schedule(196, 12, 0.5) == constant(196, 12, 0.5)
    assert not reducers["once"].scored


@pytest.mark.parametrize("name", [*SCORERS, *ATTENTION_SCORES, *TERMS, *REDUCERS, "redi", "redi_my", "bm25_my"])
def test_a_name_that_is_taken_is_refused(name: str) -> None:
    for scorers, reducers in (({name: nothing}, {}), ({}, {name: nothing})):
        with pytest.raises(ConfigError, match="rename your function") as caught:
            extended_catalogue(scorers, reducers, {})
        assert repr(name) in one_line(caught)


def test_an_unknown_reducer_is_told_which_are_known() -> None:
    catalogue = extended_catalogue({}, {"lean": nothing}, {})
    with pytest.raises(ConfigError) as caught:
        catalogue.check(variant("mass", reducer="topk"))
    message = one_line(caught)
    assert "'topk'" in message
    assert all(name in message for name in (*REDUCERS, "lean"))


@pytest.mark.parametrize("scorer", ["mas", "redi_mas", "bm25_mas@3"])
def test_an_unknown_scorer_is_told_which_are_known(scorer: str) -> None:
    catalogue = extended_catalogue({"mine": nothing}, {}, {})
    with pytest.raises(ConfigError) as caught:
        catalogue.check(variant(scorer, "gt"))
    message = one_line(caught)
    assert "'mas'" in message
    names = (*SCORERS, *ATTENTION_SCORES, *TERMS, "mine", "redi_<name>", "bm25_<name>")
    assert all(name in message for name in names)
