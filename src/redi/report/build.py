"""``redi report``: one self-contained page from the records of a run. No model is run, no server needed.

The page's markup, style and scripts are files in ``page/``; the builder inlines them. A content
security policy names the only script and the only style that may run and forbids every request. Class
and file names are untrusted: they reach the page as escaped text or as data, never as markup.
"""

import base64
import hashlib
import json
import re
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from redi import __version__, artifacts
from redi.compare.records import FILE as COMPARED
from redi.compare.records import read_bundle
from redi.records import Results, Row, read_results
from redi.report.compare import describe, sheets
from redi.report.content import content, kinds
from redi.report.explorer import Explorer
from redi.report.sheets import to_html
from redi.report.tables import TITLES, paper_tables
from redi.run import MAIN_ROW

SCRIPTS = (
    "data",
    "operator",
    "canvas",
    "chart",
    "tables",
    "explorer",
    "viewer",
    "vocabulary",
    "main",
)
LABELS_USED = (
    "Labels were used: rows marked [gt] look up the true class of each validation image. They are an "
    "oracle that says how well a token budget could be spent, not a method to deploy."
)

LINES_MEAN = (
    "Dashed: an oracle that needs the true class; dotted: a score that needs a dense pass first. Cost: "
    "matrix products relative to dense, without making the scores. Click a name to hide its line."
)


def build_report(folder: Path, names: Path | None = None) -> Path:
    """Write RUN/report/index.html. ``names`` is a file with readable names of the classes."""
    results = read_results(folder)
    explorer = Explorer(folder, names)
    data = content(folder, results, explorer)
    page = files("redi.report") / "page"
    style = (page / "style.css").read_text(encoding="utf-8")
    parts = [(page / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    script = "\n".join(['"use strict";', "(() => {", *parts, "})();"])
    curves = _curves(folder, results, data)
    slots = {
        "policy": _policy(script, style),
        "version": escape(__version__),
        "title": escape(f"REDI on {_last(results.notes['backbone'])}"),
        "style": style,
        "heading": escape(_heading(results)),
        "oracle": escape(LABELS_USED),
        "cards": "".join(_card(results, name) for name in results.classifiers),
        "facts": _facts(results),
        "tables": "".join(map(to_html, paper_tables(results).values())),
        "curves_link": '<a href="#curves">Accuracy and cost</a>' if curves else "",
        "curves": curves,
        "sample": escape(_sample(explorer, results, data)),
        "data": inline_json(data),
        "script": script,
    }
    # In one pass over the template, so that nothing in a value is taken for a slot.
    template = (page / "page.html").read_text(encoding="utf-8")
    text = re.sub(r"\{\{(\w+)\}\}", lambda match: slots[match[1]], template)
    path = folder / "report" / "index.html"
    # File names may hold bytes that are no UTF-8.
    artifacts.write_bytes(path, text.encode("utf-8", errors="replace"))
    return path


def inline_json(data: object) -> str:
    """JSON that can stand in a script element: no ``<``, so nothing in it can end the element."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(script: str, style: str) -> str:
    def source(text: str) -> str:
        digest = hashlib.sha256(text.encode("utf-8")).digest()
        return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"

    return (
        f"default-src 'none'; script-src {source(script)}; style-src {source(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _last(path: str, parts: int = 1) -> str:
    """The end of a path; where it begins is the business of the machine it was made on."""
    return "/".join(path.rstrip("/").split("/")[-parts:])


def _heading(results: Results) -> str:
    """In words what the first card says in numbers."""
    classifier = results.classifiers[0]
    row, dense = results.row(MAIN_ROW, classifier), results.row("dense", classifier)
    low, high = row.delta_interval
    if low <= 0 <= high:
        change = "stays within chance of dense"
    else:
        verb = "gains" if row.delta_dense > 0 else "loses"
        change = f"{verb} {abs(row.delta_dense):.1f} points"
    return (
        f"{_last(results.notes['backbone'])}: {dense.tokens} tokens become {row.tokens}, and with the "
        f"oracle's score the {classifier} classifier {change}"
    )


def _card(results: Results, classifier: str) -> str:
    """The main row against dense, with its interval."""
    row, dense = results.row(MAIN_ROW, classifier), results.row("dense", classifier)
    low, high = row.delta_interval
    lines = [
        f"{TITLES[MAIN_ROW]} [{row.labels}] against dense, {classifier} classifier",
        f"{row.delta_dense:+.1f} points",
        f"95 % of the difference: {low:+.1f} to {high:+.1f}; p = {row.p_value:.2g} (exact McNemar)",
        f"Top-1 {row.top1:.1f} %, dense {dense.top1:.1f} %, {row.images:,} images",
        f"Without the true class: {_best_without(results, classifier)}",
    ]
    first, big, *rest = map(escape, lines)
    return (
        f'<div class="card"><div class="what">{first}</div><div class="big">{big}</div>'
        + "".join(f'<div class="what">{line}</div>' for line in rest)
        + "</div>"
    )


def _best_without(results: Results, classifier: str) -> str:
    """The best row at the main row's cost or below whose score does not see the true class."""
    main = results.row(MAIN_ROW, classifier)
    rows = [
        row
        for row in results.rows
        if row.classifier == classifier
        and row.reducer
        and row.labels not in ("gt", "shuffled", "other")
        and row.cost <= main.cost + 0.005
    ]
    best: Row = max(rows, key=lambda row: row.top1)
    return f"at most {best.top1:.1f} % at this cost ({describe(best)}; best of {len(rows)} rows)"


def _facts(results: Results) -> str:
    notes, environment = results.notes, results.environment
    words = notes["vocabulary"]
    facts: dict[str, Any] = {
        "Backbone": _last(notes["backbone"]),
        "Corpus": f"{_last(notes['train'], 2)}: {notes['train_images']:,} images",
        "Classes": f"{notes['classes']:,}",
        "Evaluated on": f"{_last(notes['val'], 2)}: {notes['val_images']:,} images",
        "Vocabulary": f"{words['n_words']} words, {words['n_passes']} passes",
        "Classifier": " and ".join(results.classifiers),
        "Left out": f"{len(notes['skipped_train'])} + {len(notes['skipped_val'])} undecodable",
        "Seed": notes["seed"],
        "Made with": f"redi {__version__}, torch {environment['torch']}, {environment['device']}",
    }
    return "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(str(value))}</dd></div>"
        for name, value in facts.items()
    )


def _curves(folder: Path, results: Results, data: dict[str, Any]) -> str:
    """Where `redi compare` has run: the charts, and its tables folded away."""
    charts = "".join(
        f'<figure><div id="curves-{escape(entry["classifier"])}" class="chart"></div><figcaption>'
        f"{escape(entry['classifier'])} classifier. {LINES_MEAN}</figcaption></figure>"
        for entry in data["curves"]
    )
    compared = sheets(read_bundle(folder), results) if (folder / COMPARED).exists() else []
    tables = "".join(
        f"<details><summary>{escape(sheet.title)}</summary>{to_html(sheet)}</details>"
        for sheet in compared
    )
    if not charts and not tables:
        return ""
    return (
        '<section id="curves"><h2>Accuracy and cost</h2>'
        + (f'<div class="pair">{charts}</div>' if charts else "")
        + (f"<h3>Comparisons</h3>{tables}" if tables else "")
        + "</section>"
    )


def _sample(explorer: Explorer, results: Results, data: dict[str, Any]) -> str:
    """How many images are shown, and how they were chosen."""
    classifier = results.classifiers[0]
    counts = ", ".join(f"{count:,} {kind}" for kind, count in kinds(explorer, classifier).items())
    return (
        f"{len(data['images'])} of {results.row('dense', classifier).images:,} images, chosen by what "
        f"happened to them (in the whole run with the {classifier} classifier: {counts}): an equal "
        "number of each kind where there are enough, spread evenly over the set. So the shares below "
        "are not those of the run. Open one to see why."
    )
