"""Names of scores and rows: short, unique and read back; titles; and what the catalogue refuses."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import product

import pytest
import torch
from hypothesis import given, strategies as st

from redi.attention import ATTENTION_SCORES
from redi.corpus import LABEL_SOURCES, TERMS
from redi.errors import ConfigError
from redi.records.reading import build
from redi.reduction import ONE_SHOT, OPERATOR, PROGRESSIVE, REDUCERS, WORD_MERGING, Budget, Extent, OneShot, WordMerging
from redi.rows import (
    DENSE,
    DENSE_VARIANT,
    MAIN_ROW,
    MAIN_SCORE,
    NO_SCORE,
    PAPER_SCORES,
    PRODUCTS,
    SCORES,
    Catalogue,
    Codebook,
    CorpusSettings,
    Score,
    Variant,
    describe,
    marked_title,
    paper_rows,
)
from redi.scorers import SCORERS

LOCALS = list(dict.fromkeys([*ATTENTION_SCORES, *SCORERS]))
BLOCKS = [None, 1, 4, 12]
#: Every score of the package: corpus terms, local scores of any block, and products of both.
EVERY_SCORE = [
    NO_SCORE,
    *(Score(term) for term in TERMS),
    *(Score(term, local, block) for term, local, block in product(["", *TERMS], LOCALS, BLOCKS)),
]


def refusal(call: Callable[[], object]) -> str:
    """The one line that a call is refused with."""
    with pytest.raises(ConfigError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


# Scores -------------------------------------------------------------------------------------------


def test_every_score_is_read_back_from_its_name() -> None:
    for score in EVERY_SCORE:
        assert Score.parse(score.name) == score
    assert len({score.name for score in EVERY_SCORE}) == len(EVERY_SCORE)


@given(
    term=st.sampled_from(["", *TERMS]),
    local=st.from_regex(r"[A-Za-z][A-Za-z0-9_]*", fullmatch=True),
    block=st.none() | st.integers(1, 99),
)
def test_a_users_score_is_read_back_from_its_name(term: str, local: str, block: int | None) -> None:
    """A user's function may have any name but a corpus term's or a product's, which is refused."""
    if local in TERMS or local.partition("_")[0] in {entry.prefix for entry in TERMS.values()}:
        return
    score = Score(term, local, block)
    assert Score.parse(score.name) == score


@pytest.mark.parametrize(
    ("name", "score"),
    [
        ("", NO_SCORE),
        ("tfidf", Score("tfidf")),
        ("bm25", Score("bm25")),
        ("mass", Score("", "mass")),
        ("cls_max", Score("", "cls_max")),
        ("mass@4", Score("", "mass", 4)),
        ("redi_mass", Score("tfidf", "mass")),
        ("bm25_mass", Score("bm25", "mass")),
        ("redi_cls_max@12", Score("tfidf", "cls_max", 12)),
        ("bm25_col_l2@1", Score("bm25", "col_l2", 1)),
    ],
)
def test_names_by_hand(name: str, score: Score) -> None:
    assert Score.parse(name) == score
    assert score.name == name
    assert score.is_product == ("_" in name and name != "cls_max")


def test_the_name_of_the_local_part() -> None:
    assert Score.parse("redi_mass@4").local_name == "mass@4"
    assert Score.parse("mass").local_name == "mass"
    assert Score.parse("tfidf").local_name == ""


def test_a_local_score_times_a_term_is_their_product() -> None:
    assert replace(Score.parse("mass@4"), term="bm25") == Score.parse("bm25_mass@4")
    assert replace(Score.parse("redi_mass"), term="bm25").name == "bm25_mass"


@pytest.mark.parametrize(
    "name", "mass@ mass@0 mass@-1 mass@four mass@1.5 mass@4@5 redi_mass@ bm25_mass@0 @4 @ tfidf@x".split()
)
def test_a_block_that_is_no_number_from_1_on_is_refused(name: str) -> None:
    message = refusal(lambda: Score.parse(name))
    assert repr(name) in message
    assert "mass@4" in message


@pytest.mark.parametrize("name", ["redi_", "redi", "bm25_", "redi_@4", "bm25_@"])
def test_half_a_product_is_refused(name: str) -> None:
    message = refusal(lambda: Score.parse(name))
    assert repr(name) in message
    assert "redi_mass" in message


# Titles -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("", ""),
        ("random", "Random"),
        ("tfidf", "TF-IDF"),
        ("bm25", "BM25"),
        ("mass", "Incoming mass"),
        ("mass@4", "Incoming mass of block 4"),
        ("rollout", "Rollout"),
        ("redi_mass", "REDI, mass"),
        ("redi_cls_max", "REDI, CLS max"),
        ("redi_col_l2", "REDI, Col-L2"),
        ("redi_col_l2@3", "REDI, Col-L2 of block 3"),
        ("bm25_shannon", "BM25, Shannon entropy"),
        ("contrast", "contrast"),
        ("redi_contrast", "REDI, contrast"),
    ],
)
def test_titles_by_hand(name: str, title: str) -> None:
    assert Score.parse(name).title == title


def test_no_two_scores_have_the_same_title() -> None:
    assert len({score.title for score in EVERY_SCORE}) == len(EVERY_SCORE)


def test_a_title_names_the_label_source_where_there_is_one() -> None:
    assert marked_title(MAIN_SCORE, "gt") == "REDI, mass [gt]"
    assert marked_title(Score.parse("mass"), "") == "Incoming mass"


@pytest.mark.parametrize(
    ("score", "label_source", "reducer", "after", "title"),
    [
        ("", "", "", 0, "Dense baseline"),
        ("redi_mass", "gt", OPERATOR, 0, "REDI, mass [gt]"),
        ("mass", "", OPERATOR, 4, "Incoming mass, after block 4"),
        ("mass", "", "prune", 0, "Incoming mass, prune"),
        ("tfidf", "none", "prune", 3, "TF-IDF [none], prune, after block 3"),
        ("", "", "tome", 0, "ToMe"),
        ("", "", OPERATOR, 0, OPERATOR),
    ],
)
def test_what_a_row_is_in_one_cell(score: str, label_source: str, reducer: str, after: int, title: str) -> None:
    assert describe(Score.parse(score), label_source, reducer, after) == title


# Rows ---------------------------------------------------------------------------------------------


def test_the_papers_scores_are_in_the_order_of_its_tables() -> None:
    local = ("mass", "rollout", "cls_max", "cls_mean")
    products = tuple(f"redi_{name}" for name in local)
    assert ("random", "tfidf", *local, *products) == SCORES
    assert products == PRODUCTS
    assert tuple(map(Score.parse, SCORES)) == PAPER_SCORES
    assert MAIN_ROW == MAIN_SCORE.name == "redi_mass"


@pytest.mark.parametrize("budget", [Budget(), Budget(keep=0.3, merge=0.2, cells=3)])
def test_the_papers_rows_have_short_names(budget: Budget) -> None:
    rows = paper_rows(budget)
    assert tuple(rows) == SCORES
    for name, variant in rows.items():
        assert variant.name(budget) == name
        assert variant.score == Score.parse(name)
        assert variant.label_source == ("gt" if name == "tfidf" or name in PRODUCTS else "")
        assert (variant.reducer, variant.extent) == (OPERATOR, Extent(budget))
        assert variant.is_paper_score
        assert not variant.is_dense
        assert Catalogue().check(variant) is variant
    assert DENSE_VARIANT.name(budget) == DENSE == "dense"
    assert DENSE_VARIANT.is_dense


@pytest.mark.parametrize(
    ("variant", "name"),
    [
        (Variant(MAIN_SCORE, "gt"), "redi_mass"),
        (Variant(MAIN_SCORE, "predicted"), "redi_mass~predicted"),
        (Variant(MAIN_SCORE, "gt", "prune"), "redi_mass~prune"),
        (Variant(reducer="pool"), "pool"),
        (Variant(Score("", "mass", 4), extent=Extent(after=4)), "mass@4~after4"),
        (
            Variant(MAIN_SCORE, "none", "prune", Extent(Budget(0.25, 0.375), 4)),
            "redi_mass~none~prune~after4~k0.25-m0.375-c2-s0.3",
        ),
        (Variant(reducer="tome", extent=Extent(schedule=(9, 7, 5))), "tome~5-30110f"),
        (Variant(Score("tfidf"), "gt", corpus=CorpusSettings(views=1, mean_weight=1.0)), "tfidf~own~v1-w1"),
        (
            Variant(Score("tfidf"), "gt", corpus=CorpusSettings(Codebook(n_words=64))),
            "tfidf~64-3-prenorm-spread~v4-w0.8",
        ),
    ],
)
def test_names_of_rows_by_hand(variant: Variant, name: str) -> None:
    assert variant.name(Budget()) == name


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"start": "Random"}, "start of a codebook must be one of spread, random, not 'Random'"),
        ({"start": ""}, "start of a codebook must be one of spread, random, not ''"),
        ({"features": "post-norm"}, "features of a codebook must be one of prenorm, postnorm, embedding"),
    ],
)
def test_unknown_values_of_a_codebook_are_refused(values: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Codebook(**values)  # type: ignore[arg-type]


EXTENTS = [
    Extent(),
    Extent(after=1),
    Extent(after=11),
    Extent(Budget(0.25, 0.375)),
    Extent(Budget(0.25, 0.25), after=1),
    Extent(Budget(cells=3)),
    Extent(Budget(spatial=0.0)),
]
SCHEDULES = [Extent(schedule=schedule) for schedule in ((9, 7, 5), (9, 6, 5), (8, 7, 5), (9, 7, 4), (97, 5), (9, 75))]
CORPORA = [
    CorpusSettings(),
    CorpusSettings(views=1),
    CorpusSettings(mean_weight=1.0),
    CorpusSettings(Codebook()),
    CorpusSettings(Codebook(n_words=64), views=1),
    CorpusSettings(Codebook(n_passes=1)),
    CorpusSettings(Codebook(features="postnorm")),
    CorpusSettings(Codebook(start="random")),
]
ROWS = [
    DENSE_VARIANT,
    *(
        Variant(score, source, reducer, extent, corpus)
        for score in map(Score.parse, ("tfidf", "redi_mass", "redi_mass@4", "bm25_mass"))
        for source, reducer, extent, corpus in product(LABEL_SOURCES, (OPERATOR, "prune"), EXTENTS, CORPORA)
    ),
    *(
        Variant(score, "", reducer, extent)
        for score in map(Score.parse, ("mass", "mass@4", "random"))
        for reducer, extent in product(ONE_SHOT, EXTENTS)
    ),
    *(
        Variant(score, "", reducer, extent)
        for score in (NO_SCORE, Score.parse("mass"))
        for reducer, extent in product(PROGRESSIVE, SCHEDULES)
    ),
]


@pytest.mark.parametrize("default", [Budget(), Budget(cells=3), Budget(keep=0.7, merge=0.15)])
def test_no_two_rows_have_the_same_name(default: Budget) -> None:
    assert len({row.name(default) for row in ROWS}) == len(ROWS) == len(set(ROWS))


def test_a_row_is_read_back_from_its_record() -> None:
    for row in ROWS:
        assert build(Variant, json.loads(json.dumps(asdict(row)))) == row


def test_the_run_makes_the_score_maps_of_its_own_rows_alone() -> None:
    """Whatever the reducer and its extent; not of other labels, corpora, terms or blocks."""
    for row in ROWS:
        own = row.label_source in ("", "gt") and row.corpus == CorpusSettings()
        assert row.is_paper_score == (own and row.score.name in SCORES)
    assert Variant(MAIN_SCORE, "gt", "prune", Extent(after=4)).is_paper_score


def test_rows_of_other_strengths_have_other_names() -> None:
    extents = [Extent(strength=step / 1000) for step in range(1001)]
    names = {Variant(reducer="atm", extent=extent).name(Budget()) for extent in extents}
    assert len(names) == 1001
    assert Variant(reducer="atm", extent=Extent(strength=0.25)).name(Budget()) == "atm~s0.25"


# The catalogue ------------------------------------------------------------------------------------


@pytest.mark.parametrize("reducer", REDUCERS)
def test_every_score_and_reducer_of_the_package_passes(reducer: str) -> None:
    catalogue = Catalogue()
    for score in EVERY_SCORE:
        if score.local == "rollout" and score.block is not None:
            continue
        variant = Variant(score, "gt" if score.term else "", reducer)
        assert catalogue.check(variant) is variant


@pytest.mark.parametrize("name", LABEL_SOURCES)
def test_every_label_source_passes_where_there_is_a_term(name: str) -> None:
    for score in (Score("tfidf"), Score("bm25", "mass", 3)):
        assert Catalogue().check(Variant(score, name))
    message = refusal(lambda: Catalogue().check(Variant(Score("", "mass"), name)))
    assert "'mass'" in message
    assert "no corpus term" in message


def test_an_unknown_reducer_is_refused_with_those_that_are_known() -> None:
    message = refusal(lambda: Catalogue().check(Variant(MAIN_SCORE, "gt", "sieve")))
    assert "no reducer 'sieve'" in message
    assert all(name in message for name in REDUCERS)


@pytest.mark.parametrize("name", ["depth", "redi_depth", "bm25_depth@4", "depth@4", "tfidf@4"])
def test_an_unknown_scorer_is_refused_with_those_that_are_known(name: str) -> None:
    score = Score.parse(name)
    message = refusal(lambda: Catalogue().check(Variant(score, "gt" if score.term else "")))
    assert f"no scorer {score.local!r}" in message
    assert all(known in message for known in (*LOCALS, *TERMS, "redi_<name>", "bm25_<name>"))


@pytest.mark.parametrize("name", ["rollout@4", "redi_rollout@4"])
def test_a_score_of_every_block_has_no_block_of_its_own(name: str) -> None:
    score = Score.parse(name)
    message = refusal(lambda: Catalogue().check(Variant(score, "gt" if score.term else "")))
    assert "rollout" in message
    assert "@block" in message


@pytest.mark.parametrize("source", ["", "oracle", "GT"])
def test_a_term_needs_a_label_source(source: str) -> None:
    message = refusal(lambda: Catalogue().check(Variant(MAIN_SCORE, source)))
    assert repr(source) in message
    assert all(name in message for name in LABEL_SOURCES)


def test_a_reducer_of_embedding_words_works_before_the_first_block_only() -> None:
    catalogue = Catalogue()
    assert catalogue.check(Variant(reducer=WORD_MERGING))
    late = Variant(reducer=WORD_MERGING, extent=Extent(after=1))
    message = refusal(lambda: catalogue.check(late))
    assert WORD_MERGING in message
    assert "before block 1" in message
    needing = [name for name in REDUCERS if catalogue.needs_words(Variant(reducer=name))]
    assert needing == [WORD_MERGING]
    assert not catalogue.needs_words(DENSE_VARIANT)


def test_words_go_to_the_reducers_that_need_them() -> None:
    centroids = torch.eye(4)
    catalogue = Catalogue(digests={"sieve": "a"})
    fitted = catalogue.with_words(centroids, "b")
    reducer = fitted.reducers[WORD_MERGING]
    assert isinstance(reducer, OneShot)
    assert isinstance(reducer.reduce, WordMerging)
    assert reducer.reduce.centroids is centroids
    for name in set(REDUCERS) - {WORD_MERGING}:
        assert fitted.reducers[name] is REDUCERS[name]
    assert fitted.digest(Variant(reducer=WORD_MERGING)) == "b"
    assert fitted.digest(Variant(reducer="sieve")) == "a"
    assert fitted.digest(Variant(MAIN_SCORE, "gt")) == ""
    assert catalogue.digest(Variant(reducer=WORD_MERGING)) == "", "the given one has not changed"
