"""A user's own functions, and the variants and the catalogue that name them beside the package's."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from redi.corpus import LABEL_SOURCES, TERMS
from redi.errors import ConfigError, InvalidInput
from redi.plugins import is_plugin, load_plugin
from redi.reduction import ONE_SHOT, PROGRESSIVE, Budget, OneShot, Progressive, Reduction
from redi.reduction.schedule import constant
from redi.run import ATTENTION_SCORES
from redi.scorers import SCORERS, Dense
from redi.variants import DENSE, Codebook, CorpusSettings, Variant, catalogue, split_block

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
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_plugin(f"{write(tmp_path, text)}:here")


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


def test_names_that_would_collide_are_refused() -> None:
    for name in ("dense", "other", "tome", "redi_mine"):
        with pytest.raises(ConfigError, match="a name of the package's own"):
            catalogue({name: print}, {}, {})
    with pytest.raises(ConfigError, match="both a scorer and a reducer"):
        catalogue({"mine": print}, {"mine": print}, {})
    known = catalogue({}, {}, {})
    for scorer in ("redi", "redi_", "bm25_"):
        with pytest.raises(ConfigError, match="is not a product"):
            known.check(Variant(scorer, "gt"))
    with pytest.raises(ConfigError, match="has no corpus term"):
        known.check(Variant("mass", "gt"))


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


@pytest.mark.parametrize(
    "text", ["{}", "{}:", "{}:my score", "{}:2nd", "{}:a.b", ":score", "my:score", "my.txt:score"]
)
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
def test_a_file_that_raises_is_named_with_the_reason(
    tmp_path: Path, source: str, reason: str
) -> None:
    path = write(tmp_path, source)
    with pytest.raises(ConfigError) as caught:
        load_plugin(f"{path}:score")
    message = one_line(caught)
    assert str(path) in message
    assert reason in message


# Catalogue ----------------------------------------------------------------------------------------


def nothing(*_: Any) -> Any:
    raise AssertionError("is not called")


def test_the_catalogue_holds_the_packages_own_and_the_users() -> None:
    known = catalogue({"mine": nothing}, {"lean": nothing}, {"lean": "abc"})
    assert set(known.scorers) == {*SCORERS, "mine"}
    assert set(known.reducers) == {*ONE_SHOT, *PROGRESSIVE, "lean"}
    assert known.check(Variant("mine", reducer="lean")) == Variant("mine", reducer="lean")
    assert known.check(Variant("redi_mine@2", "other")) == Variant("redi_mine@2", "other")
    assert known.digest(Variant("mass", reducer="lean")) == "abc"
    assert known.digest(Variant("mass", reducer="prune")) == ""


def test_a_plain_function_becomes_a_one_shot_reducer() -> None:
    def reduce(*_: Any) -> Reduction:
        raise NotImplementedError

    stepwise, once = Progressive(reduce, constant), OneShot(reduce, scored=False)
    known = catalogue({}, {"plain": reduce, "stepwise": stepwise, "once": once}, {})
    plain = known.reducers["plain"]
    assert isinstance(plain, OneShot)
    assert plain.scored
    assert plain.tokens(Budget(), (14, 14)) == 102
    with pytest.raises(InvalidInput, match="The reducer 'plain' failed: NotImplementedError"):
        plain.reduce(torch.zeros(1, 4, 2), torch.zeros(1, 4), Budget(), (2, 2))
    step = known.reducers["stepwise"]
    assert isinstance(step, Progressive)
    assert step.schedule(196, 12, 0.5) == constant(196, 12, 0.5)
    assert not known.reducers["once"].scored


@pytest.mark.parametrize(
    "name",
    [*SCORERS, *ATTENTION_SCORES, *TERMS, *ONE_SHOT, *PROGRESSIVE, "redi", "redi_my", "bm25_my"],
)
def test_a_name_that_is_taken_is_refused(name: str) -> None:
    for scorers, reducers in (({name: nothing}, {}), ({}, {name: nothing})):
        with pytest.raises(ConfigError, match="rename your function") as caught:
            catalogue(scorers, reducers, {})
        assert repr(name) in one_line(caught)


def test_an_unknown_reducer_is_told_which_are_known() -> None:
    known = catalogue({}, {"lean": nothing}, {})
    with pytest.raises(ConfigError) as caught:
        known.check(Variant("mass", reducer="topk"))
    message = one_line(caught)
    assert "'topk'" in message
    assert all(name in message for name in (*ONE_SHOT, *PROGRESSIVE, "lean"))


@pytest.mark.parametrize("scorer", ["mas", "redi_mas", "bm25_mas@3"])
def test_an_unknown_scorer_is_told_which_are_known(scorer: str) -> None:
    known = catalogue({"mine": nothing}, {}, {})
    with pytest.raises(ConfigError) as caught:
        known.check(Variant(scorer, "gt"))
    message = one_line(caught)
    assert "'mas'" in message
    names = (*SCORERS, *ATTENTION_SCORES, *TERMS, "mine", "redi_<name>", "bm25_<name>")
    assert all(name in message for name in names)


@pytest.mark.parametrize("scorer", ["tfidf", "bm25", "redi_mass", "bm25_centre@2"])
@pytest.mark.parametrize("labels", ["", "truth"])
def test_a_corpus_term_needs_a_label_source(scorer: str, labels: str) -> None:
    known = catalogue({}, {}, {})
    for source in LABEL_SOURCES:
        assert known.check(Variant(scorer, source)).labels == source
    with pytest.raises(ConfigError) as caught:
        known.check(Variant(scorer, labels))
    message = one_line(caught)
    assert repr(labels) in message
    assert all(source in message for source in LABEL_SOURCES)


def test_rollout_has_no_single_block() -> None:
    known = catalogue({}, {}, {})
    assert known.check(Variant("rollout"))
    with pytest.raises(ConfigError, match="rollout reads every block"):
        known.check(Variant("redi_rollout@3", "gt"))


def test_a_block_is_split_off_a_scorer() -> None:
    assert split_block("mass") == ("mass", None)
    assert split_block("mass@4") == ("mass", 4)
    assert split_block("cls_max@12") == ("cls_max", 12)


@pytest.mark.parametrize("name", ["mass@", "mass@0", "mass@-1", "mass@x", "mass@1.5", "mass@4@5"])
def test_a_block_that_is_no_number_from_one_on_is_refused(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        split_block(name)
    assert repr(name) in one_line(caught)


# Variants -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scorer", "term", "local"),
    [
        ("", "", ""),
        ("mass", "", "mass"),
        ("cls_max@3", "", "cls_max@3"),
        ("tfidf", "tfidf", ""),
        ("bm25", "bm25", ""),
        ("redi_mass", "tfidf", "mass"),
        ("redi_cls_mean", "tfidf", "cls_mean"),
        ("bm25_key_norm@2", "bm25", "key_norm@2"),
        ("my_own", "", "my_own"),
    ],
)
def test_a_score_is_a_corpus_term_times_a_local_part(scorer: str, term: str, local: str) -> None:
    assert (Variant(scorer).term, Variant(scorer).local) == (term, local)


BUDGETS = [
    Budget(),
    Budget(keep=0.25),
    Budget(keep=97 / 196),
    Budget(keep=98 / 197),
    Budget(merge=0.5),
    Budget(merge=0.0),
    Budget(cells=3),
    Budget(spatial=0.0),
]
CORPORA = [
    CorpusSettings(),
    CorpusSettings(views=1),
    CorpusSettings(mean_weight=1.0),
    CorpusSettings(mean_weight=0.0),
    CorpusSettings(Codebook()),
    CorpusSettings(Codebook(n_words=64)),
    CorpusSettings(Codebook(n_passes=5)),
    CorpusSettings(Codebook(features="postnorm")),
    CorpusSettings(Codebook(start="random")),
    CorpusSettings(Codebook(), views=2, mean_weight=0.5),
]
SCHEDULES = [(196,) * 3, (190, 180, 170), (190, 175, 170), (19, 18, 17), (190, 180, 170, 160)]


def many_variants() -> list[Variant]:
    """Rows that differ in one thing or in several; every one says something else."""
    scores = [
        *product([*SCORERS, *ATTENTION_SCORES, "mass@3", "mass@11"], [""]),
        *product(["tfidf", "bm25", "redi_mass", "redi_mass@3", "bm25_mass"], LABEL_SOURCES),
    ]
    found = [DENSE]
    found += [Variant(*score, reducer=name) for score in scores for name in ONE_SHOT]
    found += [
        Variant("redi_mass", labels, after=after, budget=budget)
        for labels, after, budget in product(["gt", "none"], [0, 1, 11], BUDGETS)
    ]
    found += [Variant("redi_mass", "gt", corpus=corpus) for corpus in CORPORA]
    found += [
        Variant(scorer, reducer=name, schedule=schedule)
        for scorer, name, schedule in product(["", "mass"], PROGRESSIVE, SCHEDULES)
    ]
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("default", [Budget(), Budget(keep=0.25), Budget(keep=0.9, merge=0.05)])
def test_differing_variants_have_differing_names_that_can_be_files(default: Budget) -> None:
    variants = many_variants()
    assert len(variants) > 200
    names = [variant.name(default) for variant in variants]
    assert len(set(names)) == len(names)
    assert all(name and "/" not in name and len(name) < 100 for name in names)


def test_the_papers_rows_have_short_names() -> None:
    own = Budget(keep=0.3)
    assert DENSE.name(own) == "dense"
    assert Variant("mass", budget=own).name(own) == "mass"
    assert Variant("redi_mass", "gt", budget=own).name(own) == "redi_mass"
    assert Variant("redi_mass", "predicted", budget=own).name(own) == "redi_mass~predicted"
    assert Variant("mass", reducer="prune", budget=own).name(own) == "mass~prune"
    assert Variant("", reducer="pool", budget=own).name(own) == "pool"
    assert Variant("mass", after=4).name(own) == "mass~after4~k0.5-m0.25-c2-s0.3"


def test_variants_come_back_from_json() -> None:
    for variant in many_variants():
        text = json.dumps(variant.to_dict())
        found = Variant.from_dict(json.loads(text))
        assert found == variant
        assert hash(found) == hash(variant), "a schedule is a tuple again"
        assert found.name(Budget()) == variant.name(Budget())


def test_every_field_of_a_variant_is_written_down() -> None:
    base = Variant("redi_mass", "gt")
    changes: list[dict[str, Any]] = [
        {"scorer": "mass"},
        {"labels": "none"},
        {"reducer": "prune"},
        {"budget": Budget(cells=3)},
        {"after": 2},
        {"schedule": (4, 3)},
        {"corpus": CorpusSettings(Codebook(start="random"))},
    ]
    assert {name for change in changes for name in change} == set(base.to_dict())
    for change in changes:
        assert replace(base, **change).to_dict() != base.to_dict()
