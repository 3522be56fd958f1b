"""Tables 1, 2 and 3 against the paper's own: its numbers give its cells, its bold and its rules."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from rich.console import Console

from redi.budget import Budget
from redi.cost import cost_table, vit_block
from redi.records.results import Environment, Notes, ProbeNotes, Results, Row, VocabularyNotes
from redi.reduction import OPERATOR
from redi.report.latex import to_latex
from redi.report.sheets import ADDED, Sheet, print_sheet, to_html, to_markdown
from redi.report.tables import table1, table2, table3
from redi.rows import DENSE, SCORES, Score

#: Top-1 and Top-5 as the paper prints them. It has no Top-5 of three attention scores and no random row.
PAPER = {
    DENSE: (83.514, 96.902),
    "tfidf": (81.796, 96.236),
    "mass": (82.634, 96.454),
    "rollout": (81.314, 96.0),
    "cls_max": (82.834, 96.0),
    "cls_mean": (82.788, 96.0),
    "redi_mass": (84.706, 97.442),
    "redi_rollout": (84.644, 97.446),
    "redi_cls_max": (84.574, 97.386),
    "redi_cls_mean": (84.524, 97.384),
    "random": (75.0, 92.0),
}
NOTES = Notes(
    train="train",
    val="val",
    train_images=1_281_167,
    val_images=50_000,
    classes=1000,
    seed=0,
    size=224,
    backbone="dinov3",
    resize="bicubic",
    budget=Budget(),
    attention_scores=["mass", "rollout", "cls_max", "cls_mean"],
    native_classes="",
    vocabulary=VocabularyNotes(512, 3),
    probe=ProbeNotes(1, 1.0, 1),
    skipped_train=[],
    skipped_val=[],
)
ENVIRONMENT = Environment("1", "2", "5", "", "3", "Linux", "x86", 2, 2, "cpu")


def paper_results(images: int = 50_000, changes: Mapping[str, tuple[float, float]] | None = None) -> Results:
    accuracies = {**PAPER, **(changes or {})}
    rows = []
    for name in (DENSE, *SCORES):
        score = Score() if name == DENSE else Score.parse(name)
        top1, top5 = accuracies[name]
        row = Row(
            name=name,
            classifier="probe",
            scorer=score.name,
            label_source="gt" if score.term else "",
            reducer="" if name == DENSE else OPERATOR,
            budget=None if name == DENSE else Budget(),
            after=0,
            schedule=[],
            corpus=None,
            tokens=201 if name == DENSE else 107,
            cost=1.0,
            top1=top1,
            top5=top5,
            top1_interval=(top1 - 1, top1 + 1),
            delta_dense=top1 - accuracies[DENSE][0],
            delta_interval=(-27.014, -18.6),
            p_value=4e-24,
            images=images,
            agreement=100.0,
            divergence=0.0,
        )
        rows.append(row)
    return Results(rows, cost_table(), NOTES, ENVIRONMENT, {})


def bold(sheet: Sheet) -> list[list[str]]:
    """The texts in bold, row by row."""
    rows = range(len(sheet.rows))
    return [[text for k, text in enumerate(sheet.rows[row]) if (row, k) in sheet.strong] for row in rows]


def drawn(sheet: Sheet, hidden: Sequence[str] = ()) -> str:
    """What a terminal of 80 columns shows, with bold and italics as escape sequences."""
    console = Console(force_terminal=True, color_system="standard", width=80)
    with console.capture() as capture:
        print_sheet(sheet, console, hidden)
    return capture.get()


def test_table_1_has_the_papers_cells_and_its_bold_row() -> None:
    sheet = table1(paper_results(), "probe")
    assert [row[1:5] for row in sheet.rows[:4]] == [
        ["201", "83.514", "0.000", "96.902"],
        ["107", "81.796", "-1.718", "96.236"],
        ["107", "82.634", "-0.880", "96.454"],
        ["107", "84.706", "+1.192", "97.442"],
    ]
    assert [row[0] for row in sheet.rows[:4]] == ["Dense baseline", "TF-IDF [gt]", "Incoming mass", "REDI, mass [gt]"]
    assert sheet.ruled == 3, "the paper draws a rule above its own row"
    assert bold(sheet)[3] == ["REDI, mass [gt]", "107", "84.706", "+1.192", "97.442"]
    assert not any(bold(sheet)[:3])


def test_the_best_of_the_added_rows_is_bold_too() -> None:
    """A reader who looks for the best row finds it, although the paper's table does not have it."""
    sheet = table1(paper_results(changes={"redi_cls_max": (86.67, 97.386)}), "probe")
    marked = {cells[0]: bold(sheet)[row] for row, cells in enumerate(sheet.rows) if bold(sheet)[row]}
    assert marked["REDI, CLS max [gt]"] == ["86.670", "+3.156"]
    assert marked["REDI, rollout [gt]"] == ["97.446"]
    assert set(marked) == {"REDI, mass [gt]", "REDI, CLS max [gt]", "REDI, rollout [gt]"}


def test_what_the_paper_does_not_have_comes_last() -> None:
    sheet = table1(paper_results(), "probe")
    assert sheet.columns[:5] == ("Configuration", "Tokens", "Top-1", "Δ dense", "Top-5")
    assert sheet.columns[sheet.added_columns :] == ("95 % of Δ", "p")
    assert len(sheet.rows) == 1 + len(SCORES)
    assert [row[0] for row in sheet.rows[sheet.added_rows :]][:2] == ["Random", "Rollout"]
    assert sheet.rows[4][5:] == ["-27.01 -18.60", "4e-24"]


def test_table_2_has_the_papers_cells_and_its_bold_ones() -> None:
    sheet = table2(paper_results(), "probe")
    assert [row[1:] for row in sheet.rows] == [
        ["82.634", "84.706", "+2.072", "97.442"],
        ["81.314", "84.644", "+3.330", "97.446"],
        ["82.834", "84.574", "+1.740", "97.386"],
        ["82.788", "84.524", "+1.736", "97.384"],
    ]
    assert bold(sheet) == [["84.706"], ["97.446"], ["82.834"], []], "the paper marks no gain"
    assert ADDED not in to_latex(sheet, "table2")


def test_a_new_attention_score_is_set_apart_in_table_2() -> None:
    results = paper_results()
    product = replace(results.row("redi_mass", "probe"), name="redi_random", top1=99.0)
    notes = replace(results.notes, attention_scores=["random", *results.notes.attention_scores])
    sheet = table2(replace(results, rows=[*results.rows, product], notes=notes), "probe")
    assert (sheet.added_rows, len(sheet.rows)) == (4, 5)
    assert bold(sheet)[:4] == [["84.706"], ["97.446"], ["82.834"], []], "it does not compete with the paper's rows"


@pytest.mark.parametrize(("images", "dense", "delta"), [(9_999, "83.51", "-1.72"), (10_000, "83.514", "-1.718")])
def test_three_decimals_from_10000_images_on(images: int, dense: str, delta: str) -> None:
    first, second = table1(paper_results(images), "probe"), table2(paper_results(images), "probe")
    assert first.rows[0][2] == dense
    assert first.rows[0][3] == "0.000"[: len(dense) - 1]
    assert first.rows[1][3] == delta
    assert second.rows[1][3] == "+3.330"[: len(dense)]


def test_values_that_print_alike_are_all_bold_and_dense_may_be_the_best() -> None:
    tied = paper_results(2000, {"redi_mass": (83.5141, 96.0), "mass": (83.5139, 96.902)})
    sheet = table1(tied, "probe")
    assert bold(sheet)[:4] == [
        ["Dense baseline", "201", "83.51", "0.00", "96.90"],
        [],
        ["Incoming mass", "107", "83.51", "+0.00", "96.90"],
        ["83.51", "+0.00"],
    ]


def test_latex_has_the_papers_rules_and_sets_the_rest_apart() -> None:
    lines = to_latex(table1(paper_results(), "probe"), "table1").splitlines()
    assert r"\begin{tabular}{lrrrr@{\hspace{2em}}rr}" in lines
    head = lines.index(r"Configuration & Tokens & Top-1 & $\Delta$ dense & Top-5 & 95 \% of $\Delta$ & p \\")
    assert lines[head - 2 : head] == [
        rf"\multicolumn{{5}}{{l}}{{}} & \multicolumn{{2}}{{c}}{{{ADDED}}} \\",
        r"\cmidrule(l){6-7}",
    ]
    rules = [number for number, line in enumerate(lines) if line == r"\midrule"]
    assert rules == [head + 1, head + 5, head + 7]
    assert lines[head + 6].startswith(
        r"\textbf{REDI, mass {[}gt{]}} & \textbf{107} & \textbf{84.706} & {\boldmath$+1.192$} & \textbf{97.442} & "
    )
    assert lines[head + 8] == rf"\multicolumn{{7}}{{l}}{{\textit{{{ADDED}}}}} \\"
    assert lines[head + 9] == r"Random & 107 & 75.000 & $-8.514$ & 92.000 & $[-27.01, -18.60]$ & $4\times10^{-24}$ \\"


def test_markdown_marks_the_best_and_sets_the_rest_apart() -> None:
    lines = to_markdown(table1(paper_results(), "probe")).splitlines()
    assert "| Configuration | Tokens | Top-1 | Δ dense | Top-5 | *95 % of Δ* | *p* |" in lines
    label = lines.index(f"| *{ADDED}* |  |  |  |  |  |  |")
    assert lines[label - 1].startswith("| **REDI, mass [gt]** | **107** | **84.706** | **+1.192** | **97.442** | ")
    assert lines[label + 1].startswith("| Random | 107 | 75.000 |")


def test_the_page_marks_the_best_and_sets_the_rest_apart() -> None:
    html = to_html(table1(paper_results(), "probe"))
    assert '<colgroup span="5"></colgroup><colgroup span="2" class="added"></colgroup>' in html
    assert f'<td colspan="5"></td><th colspan="2" scope="colgroup">{ADDED}</th>' in html
    paper, label, added = html.split("<tbody")[1:]
    assert paper.count("<tr") == 4
    assert (
        '<tr class="ruled"><th scope="row"><strong>REDI, mass [gt]</strong></th><td><strong>107</strong></td>' in paper
    )
    assert f'class="label"><tr><th colspan="7" scope="rowgroup">{ADDED}</th>' in label
    assert added.count("<tr") == len(SCORES) - 3


def test_a_terminal_marks_the_best_and_sets_the_rest_apart_within_80_columns() -> None:
    text = drawn(table1(paper_results(changes={"random": (61.234, 100.0)}), "probe"))
    assert "\x1b[1m84.706\x1b[0m" in text
    assert "\x1b[1m83.514\x1b[0m" not in text
    assert f"\x1b[3m{ADDED}" in text
    lines = text.splitlines()
    table = [line for line in lines if "│" in line]
    assert len(table) == 1 + 1 + len(SCORES) + 1, "head, label, reduced rows and dense: no name is folded"
    assert sum("──" in line for line in lines) == 3


def test_the_border_stays_where_a_terminal_has_no_room_for_a_column() -> None:
    lines = drawn(table1(paper_results(), "probe"), hidden=("Tokens", "95 % of Δ")).splitlines()
    dense = next(line for line in lines if "Dense baseline" in line)
    assert dense.split() == ["Dense", "baseline", "83.514", "0.000", "96.902", "│"]


def test_table_3_says_where_the_formula_differs() -> None:
    own = table3(cost_table(width=48, block=vit_block(48, 96)))
    assert own.rows[-1] == ["Estimated dominant block arithmetic", "1.000", "0.405", "59.5 %"]
    assert "0.405 counts the products of the backbone's own blocks" in own.notes[-1]
    assert "hidden width 4 D, gives 0.430" in own.notes[-1]
    paper = table3(cost_table(block=vit_block(768)))
    assert paper.rows[-1] == ["Estimated dominant block arithmetic", "1.000", "0.522", "47.8 %"]
    assert paper.rows[-2][1:3] == ["40401", "11449"]
    assert len(paper.notes) == 1


def test_table_3_has_the_cost_of_comparisons_under_its_own_name() -> None:
    """The paper counts the blocks alone; comparisons also count what the operator itself multiplies."""
    sheet = table3(cost_table(), 0.524)
    assert sheet.rows[-2:] == [
        ["Estimated dominant block arithmetic", "1.000", "0.522", "47.8 %"],
        ["Blocks and the operator's own products", "1.000", "0.524", "47.6 %"],
    ]
    assert sheet.added_rows == 5
    assert sheet.notes[0].endswith("It is the cost in comparisons.")


def test_large_counts_of_table_3_are_written_out() -> None:
    assert table3(cost_table(patches=4096, prefix=5)).rows[3][1] == str(4101**2)
