"""``redi report``: one self-contained page from the records of a run, without a model or a server.

The page's markup, style and scripts are files in ``page/``; :mod:`redi.report.assemble` inlines them.
"""

from html import escape
from pathlib import Path
from typing import Any

from redi._version import __version__
from redi.records import artifacts
from redi.records.audit import FILE as AUDIT_FILE
from redi.records.comparison import earlier_bundle
from redi.records.deployed import earlier_deployed
from redi.records.outputs import require_no_link, require_run
from redi.records.results import Results, read_results
from redi.report.assemble import assemble, inline_json
from redi.report.audit_page import NAME as AUDIT_PAGE, build_audit_page
from redi.report.compare import sheets
from redi.report.content import content, kinds
from redi.report.curves import styles_note
from redi.report.deployed import deployed_sheets
from redi.report.explorer import Explorer
from redi.report.figures import figure2_shares
from redi.report.headline import cards, heading, last
from redi.report.sheets import to_html
from redi.report.tables import paper_tables
from redi.report.tasks import task_sheets
from redi.rows import DENSE

SCRIPTS = (
    *("data", "operator", "arithmetic", "canvas", "chart", "tables"),
    *("explorer", "viewer", "merges", "patch", "vocabulary", "theme", "main"),
)
LABELS_USED = (
    "Labels were used: rows marked [gt] look up the true class of each validation image. They are an oracle that shows "
    "how well a token budget could be spent, not a method to deploy."
)
LINES_MEAN = "Cost: matrix products relative to dense, without making the scores. Click a name to hide its line."


def build_report(folder: Path, names: Path | None = None) -> Path:
    """Write RUN/report/index.html, and audit.html beside it if the run was audited.

    ``names`` is a file with readable names of the classes.
    """
    require_run(folder)
    path = folder / "report" / "index.html"
    require_no_link(path.parent)
    results = read_results(folder)
    explorer = Explorer(folder, names)
    deployed = earlier_deployed(folder)
    data = content(folder, results, explorer)
    curves = _curves(folder, results, data)
    figure2 = figure2_shares(folder)
    audited = (folder / AUDIT_FILE).exists()
    slots = {
        "title": escape(f"REDI on {last(results.notes.backbone)}"),
        "heading": escape(heading(results, deployed)),
        "oracle": escape(LABELS_USED),
        "cards": cards(results, deployed),
        "facts": _facts(results),
        "tables": "".join(map(to_html, (deployed_sheets(results, deployed) | paper_tables(results)).values())),
        "curves_link": '<a href="#curves">Accuracy and cost</a>' if curves else "",
        "audit_link": f'<a href="{AUDIT_PAGE}">Audit</a>' if audited else "",
        "curves": curves,
        "fits": escape(figure2.fits),
        "correlations": escape(figure2.correlations),
        "sample": escape(_sample(explorer, results, data)),
        "data": inline_json(data),
    }
    artifacts.write_bytes(path, assemble("page", ["style"], SCRIPTS, slots))
    if audited:
        build_audit_page(folder, names)
    return path


def _facts(results: Results) -> str:
    notes, environment = results.notes, results.environment
    words = notes.vocabulary
    facts: dict[str, Any] = {
        "Backbone": last(notes.backbone),
        "Corpus": f"{last(notes.train, 2)}: {notes.train_images:,} images",
        **({"Trial": notes.trial} if notes.trial else {}),
        "Classes": f"{notes.classes:,}",
        "Evaluated on": f"{last(notes.val, 2)}: {notes.val_images:,} images",
        "Vocabulary": f"{words.n_words} words, {words.n_passes} passes",
        "Classifier": " and ".join(results.classifiers),
        "Left out": f"{len(notes.skipped_train)} + {len(notes.skipped_val)} undecodable",
        "Seed": notes.seed,
        "Made with": f"redi {__version__}, torch {environment.torch}, {environment.device}",
    }
    return "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(str(value))}</dd></div>" for name, value in facts.items())


def _curves(folder: Path, results: Results, data: dict[str, Any]) -> str:
    """The charts and folded tables of `redi compare`; empty if it has not run."""
    charts = "".join(
        f'<figure><div id="curves-{escape(entry["classifier"])}" class="chart"></div><figcaption>'
        f"{escape(entry['classifier'])} classifier. {styles_note(results, [entry['classifier']])}{LINES_MEAN}"
        "</figcaption></figure>"
        for entry in data["curves"]
    )
    tasks = [sheet for tables in task_sheets(folder, results).values() for sheet in tables.values()]
    compared = [*sheets(earlier_bundle(folder), results), *tasks]
    tables = "".join(
        f"<details><summary>{escape(sheet.title)}</summary>{to_html(sheet)}</details>" for sheet in compared
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
        f"{len(data['images'])} of {results.row(DENSE, classifier).images:,} images, chosen by their outcome (in the "
        f"whole run with the {classifier} classifier: {counts}): an equal number per outcome if there are enough, "
        "spread evenly over the set. So the shares below are not those of the run. Open an image to see its maps."
    )
