"""The report, the figures and the sheets they are made of, from records alone."""

import base64
import hashlib
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from rich.console import Console

from redi.attention import ATTENTION_SCORES
from redi.backbone import Backbone
from redi.budget import Budget
from redi.cli import main
from redi.corpus import corpus_map, tfidf_term
from redi.errors import ArtifactError, ConfigError
from redi.evaluate import choose_sample
from redi.images.classes import class_titles
from redi.pipeline import execute
from redi.records import artifacts
from redi.records.comparison import read_bundle
from redi.records.explained import Fate, corpus_steps
from redi.records.results import read_results
from redi.reduction import reduce
from redi.report.assemble import inline_json
from redi.report.build import build_report
from redi.report.content import content, kinds
from redi.report.explorer import Explorer, telling_image
from redi.report.figures import draw_words, figure2_shares, write_figures
from redi.report.latex import to_latex
from redi.report.sheets import Sheet, print_sheet, to_html, to_markdown
from redi.rows import SCORES
from redi.runs.config import saved_config
from redi.score import hybrid
from small_run import HOSTILE_CLASS, HOSTILE_FOLDER

SHEET = Sheet(
    "50 % <of> it",
    ("Row & co", "Δ"),
    [["a_b | c", "1.5"], ["<i>$x</i>", ""]],
    ["Note #1."],
    strong=frozenset({(0, 0), (0, 1)}),
)


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: Any, **_options: Any) -> None:
        raise AssertionError("a report must not need a model")

    monkeypatch.setattr(Backbone, "__init__", refuse)


def data_of(page: Path) -> Any:
    element = re.search(r'<script id="data" type="application/json">(.*?)</script>', page.read_text(), re.S)
    assert element
    return json.loads(element[1])


def test_a_sheet_in_markdown_latex_and_html_is_escaped() -> None:
    assert "| **a_b \\| c** | **1.5** |" in to_markdown(SHEET)
    latex = to_latex(SHEET, "x")
    assert r"\textbf{a\_b $|$ c} & \textbf{1.5} \\" in latex
    assert r"$<$i$>$\$x$<$/i$>$ &  \\" in latex
    assert r"\caption{50 \% $<$of$>$ it. Note \#1.}" in latex
    assert r"Row \& co & $\Delta$ \\" in latex
    html = to_html(SHEET)
    assert '<tr><th scope="row"><strong>a_b | c</strong></th><td><strong>1.5</strong></td></tr>' in html
    assert "&lt;i&gt;$x&lt;/i&gt;" in html
    assert "<i>" not in html


def test_a_title_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_sheet(replace(SHEET, title="a[bold].jpg", columns=("[red]", "b")), Console())
    printed = capsys.readouterr().out
    assert "a[bold].jpg" in printed
    assert "[red]" in printed


def test_a_fate_by_hand() -> None:
    """2x2 patches: 3 and 0 are kept, 1 goes into 3, 2 is compressed alone."""
    fate = Fate(torch.tensor([0, 1, 2, 1]), torch.tensor([0, 3, 2]), kept=2)
    assert fate.roles == [0, 1, 2, 0]
    assert fate.destinations == {1: 3}
    assert fate.leaders == [2]


def test_a_fate_has_the_counts_of_the_budget() -> None:
    generator = torch.Generator().manual_seed(3)
    patches = torch.randn(1, 36, 8, generator=generator)
    scores = torch.rand(1, 36, generator=generator)
    for budget in (Budget(), Budget(0.25, 0.5, cells=3), Budget(1.0, 0.0), Budget(0.0, 0.0)):
        reduction = reduce(patches, scores, budget)
        kept, merged, compressed = budget.counts(36)
        fate = Fate(reduction.source[0], reduction.positions[0], kept)
        assert [fate.roles.count(role) for role in range(3)] == [kept, merged, compressed]


def test_the_explorer_gives_back_what_the_run_computed(seen_run: Path) -> None:
    explorer = Explorer(seen_run)
    assert len(explorer) == 20
    config = saved_config(seen_run)
    for number in (0, 7, 19):
        image = explorer.explain(number, "probe")
        weights = explorer.tfidf["table"][explorer.labels[number]]
        lookups, aligned, valid = corpus_steps(weights, image.words, image.views)
        whole = corpus_map(tfidf_term(explorer.tfidf), weights[None], image.words[None], [tuple(image.views)])[0]
        assert torch.equal(whole.half().float(), image.scores["tfidf"])
        assert torch.equal(image.lookups, lookups)
        assert torch.equal(image.aligned, aligned)
        assert valid[0].all()
        product = hybrid(whole[None], image.scores["mass"][None])[0]
        torch.testing.assert_close(product, image.scores["redi_mass"], atol=2e-3, rtol=0)
        kept, merged, _ = config.budget.counts(196)
        for row in SCORES:
            order = image.scores[row].argsort(descending=True, stable=True).tolist()
            roles = image.fates[row].roles
            assert {patch for patch, role in enumerate(roles) if role == 0} == set(order[:kept])
            assert {p for p, role in enumerate(roles) if role == 1} == set(order[kept : kept + merged])
        assert image.crops.shape == (4, 3, 112, 112)
        assert [len(guesses) for guesses in image.guesses.values()] == [4] * (1 + len(SCORES))


def test_titles_of_classes(tmp_path: Path) -> None:
    folders, head = ["0", "1"], ["a", "b", "c"]
    assert class_titles(folders, head, [2, 0], None) == ["c", "a"]
    assert class_titles(folders, head, [], None) == folders
    file = tmp_path / "names.txt"
    file.write_text("first\nsecond\n")
    assert class_titles(folders, head, [2, 0], file) == ["first", "second"]
    file.write_text("1\tsecond\n")
    assert class_titles(folders, head, [], file) == ["0", "second"]
    file.write_text("only one\n")
    with pytest.raises(ConfigError, match="it has 1 lines"):
        class_titles(folders, head, [], file)
    with pytest.raises(ConfigError, match="cannot be read"):
        class_titles(folders, head, [], tmp_path / "absent.txt")


class _Tags(HTMLParser):
    """Elements and attributes of a page as a browser would see them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.mark.usefixtures("no_model")
def test_the_page_holds_the_records_and_runs_nothing_else(seen_run: Path, tmp_path: Path) -> None:
    shutil.copytree(seen_run, tmp_path / "run")
    names = tmp_path / "names.txt"
    names.write_text("</script><script>document.title='taken over'</script>\nblue\ngreen\n&amp;\n")
    path = build_report(tmp_path / "run", names)
    assert path == tmp_path / "run" / "report" / "index.html"
    text = path.read_text()
    assert path.stat().st_size < 15_000_000
    tags = _Tags()
    tags.feed(text)
    assert [tag for tag, _ in tags.tags].count("script") == 2, "the data and the program"
    for tag, attributes in tags.tags:
        assert not {"src", "srcset", "onerror", "onclick", "style"} & set(attributes), tag
        href = attributes.get("href") or "#"
        assert href.startswith("#"), "every link stays on the page"
    script = text[text.rindex("<script>") + 8 : text.rindex("</script>")]
    style = text[text.index("<style>") + 7 : text.index("</style>")]
    for part, kind in ((script, "script"), (style, "style")):
        digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in text
    assert "default-src 'none'" in text

    data = data_of(path)
    results = read_results(tmp_path / "run")
    assert data["classes"] == names.read_text().splitlines()
    assert any("</" + HOSTILE_FOLDER in image["name"] for image in data["images"])
    assert [row["name"] for row in data["rows"]] == list(SCORES)
    beside = ["mass", "mass", *ATTENTION_SCORES, *ATTENTION_SCORES]  # random and TF-IDF come first
    assert [row["attention"] for row in data["rows"]] == beside
    assert data["classifiers"] == results.classifiers == ["probe", "native"]
    bundle = read_bundle(tmp_path / "run")
    lines = [{line["name"]: len(line["points"]) for line in entry["lines"]} for entry in data["curves"]]
    assert [line["prune, Incoming mass"] for line in lines] == [3, 3], "prune was compared at three keep rates"
    assert all(entry.title.split(",")[0] in text for entry in bundle.comparisons)


def test_arrays_of_the_page_are_those_of_the_run(seen_run: Path) -> None:
    explorer, results = Explorer(seen_run), read_results(seen_run)
    data = content(seen_run, results, explorer)
    for number in (0, 11):
        packed, image = data["images"][number], explorer.explain(number, "native")
        raw = torch.frombuffer(bytearray(base64.b64decode(packed["scores"]["redi_mass"])), dtype=torch.half)
        assert torch.equal(raw.float(), image.scores["redi_mass"])
        going = torch.frombuffer(
            bytearray(base64.b64decode(packed["destinations"]["mass"])), dtype=torch.int16
        ).tolist()
        roles = image.fates["mass"].roles
        assert {p: going[p] for p, role in enumerate(roles) if role == 1} == image.fates["mass"].destinations
        factors = data["factors"][explorer.labels[number]]
        words, table = (
            torch.frombuffer(bytearray(base64.b64decode(factors[part])), dtype=kind)
            for part, kind in (("words", torch.int16), ("table", torch.float32))
        )
        assert set(words.tolist()) >= set(image.words.flatten().tolist())
        assert torch.equal(table, explorer.tfidf["table"][explorer.labels[number], words.long()])
        assert [[*view.box, view.flip] for view in image.views] == packed["views"]
        assert packed["crops"][1] == "", "the mirror image is not stored"
        guesses = packed["top5"]["native"]["dense"]
        titles = [data["titles"]["native"][place] for place, _ in guesses]
        assert titles == [guess.name for guess in image.guesses["dense"]]


def test_json_cannot_end_its_element() -> None:
    text = inline_json({"name": "</script><!--<script>&\u2028"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"name": "</script><!--<script>&\u2028"}


def test_fewer_images_and_thumbnails_where_they_would_not_fit(seen_run: Path) -> None:
    explorer, results = Explorer(seen_run), read_results(seen_run)
    data = content(seen_run, results, explorer)
    assert len(data["images"]) == 20
    size = sum(len(json.dumps(image)) for image in data["images"])
    words = len(json.dumps({name: data[name] for name in ("vocabulary", "class_words")}))
    room = words + size // 2 + 100
    fewer = content(seen_run, results, explorer, page_characters=room)["images"]
    assert len(fewer) == 10
    assert data["vocabulary"]["strip"] == [3 * 32, 32]
    strips = sum(map(len, data["vocabulary"]["strips"]))
    both = content(seen_run, results, explorer, page_characters=room, strip_characters=int(0.7 * strips))
    cut = both["vocabulary"]
    assert cut["strip"] == [2 * 32, 32], "two thumbnails per word instead of three"
    with Image.open(BytesIO(base64.b64decode(cut["strips"][5]))) as strip:
        assert list(strip.size) == cut["strip"]


def test_how_all_images_ended(seen_run: Path) -> None:
    explorer, results = Explorer(seen_run), read_results(seen_run)
    for classifier in ("probe", "native"):
        counts = kinds(explorer, classifier)
        assert sum(counts.values()) == 20
        dense, main = (results.row(name, classifier).top1 for name in ("dense", "redi_mass"))
        assert counts["rescued"] - counts["lost"] == round((main - dense) / 100 * 20)


def test_the_sample_is_filled_up_and_fair() -> None:
    def choose(kinds: list[int], size: int) -> list[int]:
        """``kinds[k]`` images each that were rescued, lost, both wrong, both right."""
        dense = torch.tensor([kind in (1, 3) for kind, n in enumerate(kinds) for _ in range(n)])
        reduced = torch.tensor([kind in (0, 3) for kind, n in enumerate(kinds) for _ in range(n)])
        chosen = choose_sample(dense, reduced, torch.arange(sum(kinds)), size)
        kind_of = [kind for kind, n in enumerate(kinds) for _ in range(n)]
        chosen_kinds = [kind_of[index] for index in chosen]
        return [chosen_kinds.count(kind) for kind in range(4)]

    assert choose([100, 100, 100, 100], 40) == [10, 10, 10, 10]
    assert choose([2, 100, 100, 100], 41) == [2, 13, 13, 13]
    assert choose([0, 0, 19, 1], 24) == [0, 0, 19, 1], "all of them where they fit"
    assert choose([20, 0, 0, 0], 24) == [20, 0, 0, 0]
    assert choose([3, 50, 1, 9], 24) == [3, 11, 1, 9]


def test_another_class_map_or_classifier_makes_the_explorer_anew(seen_run: Path, tmp_path: Path) -> None:
    shutil.copytree(seen_run, tmp_path / "run")
    config = saved_config(tmp_path / "run")
    other = tmp_path / "other.tsv"
    other.write_text(f"{HOSTILE_CLASS}\t1\nblue\t5\ngreen\t0\nred\t6\n")
    execute(replace(config, class_map=str(other)))
    assert Explorer(tmp_path / "run").columns == [1, 5, 0, 6]
    execute(replace(config, classifier="probe"))
    assert Explorer(tmp_path / "run").columns == []
    build_report(tmp_path / "run")
    execute(replace(config, classifier="native", class_map=str(other)))
    assert data_of(build_report(tmp_path / "run"))["classifiers"] == ["native"]


def test_the_headline_says_that_labels_were_used(seen_run: Path, tmp_path: Path) -> None:
    shutil.copytree(seen_run, tmp_path / "run")
    text = build_report(tmp_path / "run").read_text()
    assert "Labels were used: rows marked [gt] look up the true class" in text
    assert "an oracle&#x27;s score 201 tokens become 107, and the probe classifier" in text
    assert "rows that do not use the true class and cost no more" in text
    assert "`redi compare RUN --study accelerate` adds accuracy, agreement and measured speed" in text


@pytest.mark.usefixtures("no_model")
def test_figures_and_tables_for_print(seen_run: Path, tmp_path: Path) -> None:
    shutil.copytree(seen_run, tmp_path / "run")
    written = write_figures(tmp_path / "run")
    names = {path.name for path in written}
    assert {"figure1.pdf", "figure1.png", "figure2.pdf", "figure2.png", "table3.tex"} <= names
    tables = [f"table{number}-{kind}" for number in (1, 2) for kind in ("probe", "native")]
    assert {f"{table}.{suffix}" for table in tables for suffix in ("md", "tex")} <= names
    for path in written:
        assert path.stat().st_size > 200, path
    with Image.open(tmp_path / "run" / "figures" / "figure1.png") as picture:
        assert picture.width == 2160, "7.2 inches at 300 dots"
        colours = picture.convert("RGB").resize((72, 42)).getcolors()
        assert colours is None or len(colours) > 100, "it is not blank"
    assert (tmp_path / "run" / "figures" / "figure1.pdf").read_bytes().startswith(b"%PDF")
    results = read_results(tmp_path / "run")
    assert (
        f"{results.row('dense', 'probe').top1:.2f}" in (tmp_path / "run" / "figures" / "table1-probe.tex").read_text()
    )


@pytest.mark.usefixtures("no_model")
def test_figure_2_and_the_page_say_zipfs_slope_and_the_correlations(seen_run: Path, tmp_path: Path) -> None:
    shutil.copytree(seen_run, tmp_path / "run")
    figure2 = figure2_shares(tmp_path / "run")
    draw_words(figure2, [tmp_path / "figure2.svg"])
    drawn = (tmp_path / "figure2.svg").read_text()  # an SVG repeats each text as a comment
    page = build_report(tmp_path / "run").read_text()
    for block, fit in figure2.notes.zipf.items():
        said = f"block {block.removeprefix('block')}: slope \N{MINUS SIGN}{-fit.slope:.2f}, R² {fit.r2:.2f}"
        assert said in drawn
        assert said in page
    redi, tfidf = (figure2.notes.spearman[row] for row in ("redi_mass", "tfidf"))
    said = f"ρ of mass and assignments: REDI {redi:.2f}, TF-IDF {tfidf:.2f}"
    assert said in drawn
    assert said in page


def test_a_run_of_an_earlier_version_is_told_to_run_again(seen_run: Path, tmp_path: Path) -> None:
    shutil.copytree(seen_run, tmp_path / "run")
    file = tmp_path / "run" / "analysis" / "figure2.safetensors"
    tensors, manifest = artifacts.load(file)
    artifacts.save(file, tensors, manifest["key"])
    for command in (build_report, write_figures):
        with pytest.raises(ArtifactError, match=r"made by another version of redi: run `redi run` again\."):
            command(tmp_path / "run")


def test_files_behind_a_link_are_not_replaced(seen_run: Path, tmp_path: Path) -> None:
    folder, mine = tmp_path / "run", tmp_path / "mine"
    shutil.copytree(seen_run, folder, ignore=shutil.ignore_patterns("report", "figures"))
    mine.mkdir()
    for name, command in (("report", build_report), ("figures", write_figures)):
        (folder / name).symlink_to(mine)
        with pytest.raises(ConfigError, match=f"{name} is a link to another place"):
            command(folder)
    assert list(mine.iterdir()) == []


def test_the_figures_image_can_be_chosen_and_mistakes_are_one_line(seen_run: Path, tmp_path: Path) -> None:
    explorer = Explorer(seen_run)
    chosen = telling_image(explorer, "probe", "redi_mass", range(20))
    assert chosen in range(20)
    assert telling_image(explorer, "probe", "redi_mass", [4]) == 4
    with pytest.raises(ConfigError, match="Image 99 is not in the explorer sample"):
        write_figures(seen_run, image=99)
    with pytest.raises(ConfigError, match="Figure 1 shows a product"):
        write_figures(seen_run, row="mass")
    with pytest.raises(ConfigError, match="is not a run folder"):
        build_report(tmp_path)
    shutil.copytree(seen_run, tmp_path / "run")
    (tmp_path / "run" / "figures" / "figure1.pdf").mkdir(parents=True)
    with pytest.raises(ArtifactError, match=r"figure1\.pdf cannot be written: Is a directory"):
        write_figures(tmp_path / "run")


def test_a_run_that_is_not_finished_is_named(
    seen_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    shutil.copytree(seen_run, tmp_path / "run")
    (tmp_path / "run" / "analysis" / "explorer.safetensors").unlink()
    monkeypatch.setattr("sys.argv", ["redi", "report", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("redi: There is no analysis/explorer in")
    assert "Traceback" not in said


def test_another_sample_size_redoes_the_analysis_alone(seen_run: Path, tmp_path: Path, capsys: Any) -> None:
    shutil.copytree(seen_run, tmp_path / "run")
    config = saved_config(tmp_path / "run")
    execute(replace(config, analysis=replace(config.analysis, sample=6)))
    said = capsys.readouterr().err
    assert said.count("already done") == 5
    assert len(Explorer(tmp_path / "run")) == 6
