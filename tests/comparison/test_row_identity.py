"""Scores and variants: their names, their titles, what the catalogue refuses, and back from JSON."""

import json
from dataclasses import asdict, fields, replace
from itertools import product
from typing import Any

import pytest

from redi.attention import ATTENTION_SCORES
from redi.budget import Budget
from redi.corpus import LABEL_SOURCES
from redi.errors import ConfigError
from redi.records.reading import build
from redi.reduction import ONE_SHOT, PROGRESSIVE, Extent
from redi.rows import DENSE_VARIANT, SCORES, Catalogue, Codebook, CorpusSettings, Score, Variant, paper_rows
from redi.scorers import SCORERS

# Scores -------------------------------------------------------------------------------------------


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
    score = Score.parse(scorer)
    assert (score.term, score.local_name) == (term, local)
    assert score.is_product == bool(term and local)
    assert score.name == scorer, "a name that is read and written again is the same"


def test_a_block_is_split_off_a_scorer() -> None:
    assert Score.parse("mass") == Score(local="mass", block=None)
    assert Score.parse("mass@4") == Score(local="mass", block=4)
    assert Score.parse("cls_max@12") == Score(local="cls_max", block=12)


@pytest.mark.parametrize("name", ["mass@", "mass@0", "mass@-1", "mass@x", "mass@1.5", "mass@4@5"])
def test_a_block_that_is_no_number_from_one_on_is_refused(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Score.parse(name)
    assert repr(name) in one_line(caught)


@pytest.mark.parametrize("name", ["redi", "redi_", "bm25_"])
def test_a_product_without_a_local_part_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a product") as caught:
        Score.parse(name)
    assert repr(name) in one_line(caught)


def one_line(error: pytest.ExceptionInfo[ConfigError]) -> str:
    message = str(error.value)
    assert message
    assert "\n" not in message
    return message


# Catalogue ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scorer", ["tfidf", "bm25", "redi_mass", "bm25_centre@2"])
@pytest.mark.parametrize("labels", ["", "truth"])
def test_a_corpus_term_needs_a_label_source(scorer: str, labels: str) -> None:
    catalogue, score = Catalogue(), Score.parse(scorer)
    for source in LABEL_SOURCES:
        assert catalogue.check(Variant(score, source)).label_source == source
    with pytest.raises(ConfigError) as caught:
        catalogue.check(Variant(score, labels))
    message = one_line(caught)
    assert repr(labels) in message
    assert all(source in message for source in LABEL_SOURCES)


def test_a_label_source_needs_a_corpus_term() -> None:
    with pytest.raises(ConfigError, match="has no corpus term"):
        Catalogue().check(Variant(Score(local="mass"), "gt"))


def test_rollout_has_no_single_block() -> None:
    assert Catalogue().check(Variant(Score(local="rollout")))
    with pytest.raises(ConfigError, match="rollout reads every block"):
        Catalogue().check(Variant(Score.parse("redi_rollout@3"), "gt"))


# Variants -----------------------------------------------------------------------------------------

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
MAIN = Score.parse("redi_mass")


def many_variants() -> list[Variant]:
    """Rows that differ in one thing or in several; every one says something else."""
    scores = [
        *product([*SCORERS, *ATTENTION_SCORES, "mass@3", "mass@11"], [""]),
        *product(["tfidf", "bm25", "redi_mass", "redi_mass@3", "bm25_mass"], LABEL_SOURCES),
    ]
    variants = [DENSE_VARIANT]
    variants += [Variant(Score.parse(scorer), source, reducer=name) for scorer, source in scores for name in ONE_SHOT]
    variants += [
        Variant(MAIN, source, extent=Extent(budget, after))
        for source, after, budget in product(["gt", "none"], [0, 1, 11], BUDGETS)
    ]
    variants += [Variant(MAIN, "gt", corpus=corpus) for corpus in CORPORA]
    variants += [
        Variant(Score.parse(scorer), source, extent=Extent(after=6), place=place)
        for (scorer, source), place in product([("mass", ""), ("redi_mass", "gt")], ["block3", "block6", "glance"])
    ]
    variants += [
        Variant(Score.parse(scorer), reducer=name, extent=Extent(schedule=schedule))
        for scorer, name, schedule in product(["", "mass"], PROGRESSIVE, SCHEDULES)
    ]
    return list(dict.fromkeys(variants))


@pytest.mark.parametrize("default", [Budget(), Budget(keep=0.25), Budget(keep=0.9, merge=0.05)])
def test_differing_variants_have_differing_names_that_can_be_files(default: Budget) -> None:
    variants = many_variants()
    assert len(variants) > 200
    names = [variant.name(default) for variant in variants]
    assert len(set(names)) == len(names)
    assert all(name and "/" not in name and len(name) < 100 for name in names)


def test_the_papers_rows_have_short_names() -> None:
    own = Budget(keep=0.3)
    mass, extent = Score(local="mass"), Extent(own)
    assert DENSE_VARIANT.name(own) == "dense"
    assert Variant(mass, extent=extent).name(own) == "mass"
    assert Variant(MAIN, "gt", extent=extent).name(own) == "redi_mass"
    assert Variant(MAIN, "predicted", extent=extent).name(own) == "redi_mass~predicted"
    assert Variant(mass, reducer="prune", extent=extent).name(own) == "mass~prune"
    assert Variant(reducer="pool", extent=extent).name(own) == "pool"
    later = Variant(mass, extent=Extent(after=4))
    assert later.name(own) == "mass~after4~k0.5-m0.25-c2-s0.3"
    assert {name: row.name(own) for name, row in paper_rows(own).items()} == {name: name for name in SCORES}


def test_variants_come_back_from_json() -> None:
    for variant in many_variants():
        again = build(Variant, json.loads(json.dumps(asdict(variant))))
        assert again == variant
        assert hash(again) == hash(variant), "a schedule is a tuple again"
        assert again.name(Budget()) == variant.name(Budget())


def test_every_field_of_a_variant_is_written_down() -> None:
    base = Variant(MAIN, "gt")
    scores: dict[str, Any] = {"term": "bm25", "local": "rollout", "block": 3}
    extents: dict[str, Any] = {"budget": Budget(cells=3), "after": 2, "schedule": (4, 3), "strength": 0.5}
    assert set(scores) == {entry.name for entry in fields(Score)}
    assert set(extents) == {entry.name for entry in fields(Extent)}
    changes: list[dict[str, Any]] = [
        {"score": Score(local="mass")},
        *({"score": replace(base.score, **{name: value})} for name, value in scores.items()),
        {"label_source": "none"},
        {"reducer": "prune"},
        *({"extent": replace(base.extent, **{name: value})} for name, value in extents.items()),
        {"corpus": CorpusSettings(Codebook(start="random"))},
        {"place": "block4"},
    ]
    assert {name for change in changes for name in change} == set(asdict(base))
    for change in changes:
        assert asdict(replace(base, **change)) != asdict(base)
