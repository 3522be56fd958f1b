"""The top of the report's page: the result in one sentence, and cards for the oracle and for what can be deployed."""

from collections.abc import Sequence
from html import escape

from redi.corpus import LABEL_SOURCES
from redi.records.deployed import COMMAND, OWN, PEER, Deployed
from redi.records.results import Results, Row
from redi.records.setting import Setting
from redi.records.timing import Timing
from redi.reduction.titles import title
from redi.report.deployed import Measured, deployed_rows, spread
from redi.report.numbers import against_dense, speed_of
from redi.rows import DENSE, MAIN_ROW


def last(path: str, parts: int = 1) -> str:
    """The last parts of a path; the first ones only say where somebody keeps their files."""
    return "/".join(path.rstrip("/").split("/")[-parts:])


def heading(results: Results, deployed: Deployed | None) -> str:
    """The result of the first classifier: what can be deployed, if it was measured, and then the oracle."""
    classifier = results.classifiers[0]
    row, dense = results.row(MAIN_ROW, classifier), results.row(DENSE, classifier)
    name = last(results.notes.backbone)
    oracle = f"{dense.tokens} tokens become {row.tokens}, and the {classifier} classifier {_change(row)}"
    own = _default(deployed_rows(results, deployed, classifier))
    if own is None:
        return f"{name}: with an oracle's score {oracle}"
    faster, timing = own
    points = f"{faster.delta_dense:+.1f} points of accuracy ({_interval(faster)})"
    return f"{name} runs {_speed(timing)} at {points}. With an oracle's score {oracle}"


def _speed(timing: Timing) -> str:
    speedup = speed_of(timing)
    assert speedup is not None  # the rows of a table of speeds have one
    return against_dense(speedup)


def _change(row: Row) -> str:
    low, high = row.delta_interval
    if low <= 0 <= high:
        return "is not measurably different from dense"
    return f"{'gains' if row.delta_dense > 0 else 'loses'} {abs(row.delta_dense):.1f} points"


def _default(rows: list[Measured]) -> Measured | None:
    """Our own reducer at the cost closest to the default of ``redi.accelerate``; None if it was not measured."""
    own = [pair for pair in rows if pair[0].reducer == OWN]
    return min(own, key=lambda pair: abs(pair[0].cost - Setting().cost), default=None)


def cards(results: Results, deployed: Deployed | None) -> str:
    """Two cards per classifier: what a user can deploy, and the oracle's result."""
    return "".join(
        _deployable(deployed_rows(results, deployed, name), name) + _oracle(results, name)
        for name in results.classifiers
    )


def card(what: str, big: str, heads: Sequence[str], rows: Sequence[Sequence[str]], note: str) -> str:
    """A card: what is measured, the main number, a small table if it has rows, and a note."""
    table = ""
    if rows:
        head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
        lines = (
            f'<tr><th scope="row">{escape(first)}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in rest) + "</tr>"
            for first, *rest in rows
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return (
        f'<div class="card"><div class="what">{escape(what)}</div><div class="big">{escape(big)}</div>{table}'
        f'<div class="what">{escape(note)}</div></div>'
    )


def _oracle(results: Results, classifier: str) -> str:
    """The main row beside dense and the best row without the true class."""
    row, dense = results.row(MAIN_ROW, classifier), results.row(DENSE, classifier)
    best, count = _best_without(results, classifier)
    return card(
        f"An oracle: {row.title} against dense, {classifier} classifier",
        f"{row.delta_dense:+.1f} points",
        ("Configuration", "Top-1, %", "Δ dense", "95 % of Δ"),
        [
            [dense.title, f"{dense.top1:.1f}", "", ""],
            *(
                [shown.title, f"{shown.top1:.1f}", f"{shown.delta_dense:+.1f}", _interval(shown)]
                for shown in (row, best)
            ),
        ],
        f"p = {row.p_value:.2g} (exact McNemar), {row.images:,} images. {best.title}: the best of {count} rows that do "
        "not use the true class and cost no more.",
    )


def _interval(row: Row) -> str:
    return "{:+.1f} to {:+.1f}".format(*row.delta_interval)


def _best_without(results: Results, classifier: str) -> tuple[Row, int]:
    """The best row that costs no more than the main row and does not use the true class, and the number of such."""
    main = results.row(MAIN_ROW, classifier)
    rows = [
        row
        for row in results.rows
        if row.classifier == classifier
        and row.reducer
        and not (row.label_source and LABEL_SOURCES[row.label_source].uses_truth)
        and row.cost <= main.cost + 0.005
    ]
    return max(rows, key=lambda row: row.top1), len(rows)


def _deployable(rows: list[Measured], classifier: str) -> str:
    """Our own reducer at every cost that was measured, with the difference of ToMe at that cost."""
    what = f"What you can deploy: {title(OWN)}, {classifier} classifier"
    if (default := _default(rows)) is None:
        note = f"`{COMMAND}` adds accuracy, agreement and measured speed, and what merges into what in the viewer."
        return card(what, "not measured yet", (), (), note)
    row, timing = default
    peers = {round(row.cost, 2): f"{row.delta_dense:+.1f}" for row, _ in rows if row.reducer == PEER}
    return card(
        what,
        f"{_speed(timing)}, {row.delta_dense:+.1f} points ({_interval(row)})",
        ("Cost", "Speed-up", "Δ dense", "95 % of Δ", "Same, %", f"{title(PEER)}, Δ"),
        [
            [
                f"{row.cost:.2f}",
                spread(timing),
                f"{row.delta_dense:+.1f}",
                _interval(row),
                f"{row.agreement:.1f}",
                peers.get(round(row.cost, 2), ""),
            ]
            for row, timing in rows
            if row.reducer == OWN
        ],
        f"It needs no label and no dense pass. The large numbers are those of cost {row.cost:.2f}, its default. Speed "
        f"was measured, with batch {timing.batch}. Same: images with dense's Top-1. {title(PEER)}: at the same cost.",
    )
