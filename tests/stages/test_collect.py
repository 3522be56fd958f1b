"""The results of a run: the paper's rows."""

from pathlib import Path

from redi.records.results import read_results
from redi.rows import SCORES
from small_run import COLOURS, VAL


def test_results_have_the_papers_rows(finished: Path) -> None:
    results = read_results(finished)
    assert [row.name for row in results.rows] == ["dense", *SCORES]
    assert {row.classifier for row in results.rows} == {"probe"}
    assert [row.tokens for row in results.rows] == [201, *[107] * 10]
    assert {row.name for row in results.rows if row.label_source == "gt"} == {
        "tfidf",
        "redi_mass",
        "redi_rollout",
        "redi_cls_max",
        "redi_cls_mean",
    }
    assert all(row.images == VAL * len(COLOURS) for row in results.rows)
    assert results.row("dense", "probe").top1 > 50, "the probe has learnt something"
    assert results.row("dense", "probe").p_value == 1
    assert results.notes.probe.steps == 50
    assert len(results.notes.vocabulary.objective) == 3
