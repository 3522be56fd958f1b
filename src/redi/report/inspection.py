"""What ``redi inspect`` shows: a picture of the maps and roles, and a short table."""

from pathlib import Path

from rich.console import Console

from redi.records.explained import Explained
from redi.records.outputs import PICTURE_SUFFIXES, require_file
from redi.report.pictures import draw_attention, draw_overview
from redi.report.sheets import Sheet, escape, print_sheet
from redi.rows import DENSE, Score

WHOSE = {"given": "the class you gave", "predicted": "which the dense pass ranks first among the run's classes"}


def write_picture(image: Explained, score: str, path: Path) -> Path:
    require_file(path, PICTURE_SUFFIXES)
    if image.looked_up:
        draw_overview(image, score, [path])
    else:
        draw_attention(image, [path])
    return path


def print_inspection(image: Explained, score: str, console: Console | None = None) -> None:
    console = console or Console()
    if image.closeness is not None and image.closeness.is_far:
        console.print(escape(f"warning: {far_note(image)}"), style="bold", end="\n\n")
    if image.looked_up:
        whose = WHOSE[image.label_source]
        console.print(escape(f"{image.name}: TF-IDF of {image.looked_up!r}, {whose}."), end="\n\n")
    print_sheet(score_sheet(image), console)
    if image.guesses:
        print_sheet(answer_sheet(image, score if image.looked_up else next(iter(image.scores))), console)


def far_note(image: Explained) -> str:
    """One sentence about an image that is unlike the images of its run."""
    assert image.closeness is not None
    value, limit, images = image.closeness.value, image.closeness.limit, len(image.closeness.validation)
    return (
        f"{image.name} is unlike the images of this run, so its scores and classes may mean nothing: the mean cosine "
        f"of its patches to their visual words is {value:.3f}, but {limit:.3f} or more for at least 99 % of the "
        f"{images} validation images."
    )


def score_sheet(image: Explained) -> Sheet:
    """The share of each score that the kept patches hold, and the answer of the reduced path with that score."""
    rows = []
    for name, values in image.scores.items():
        fate = image.fates[name]
        kept = values[fate.positions[: fate.kept]]
        share = 100 * kept.sum().item() / max(values.sum().item(), 1e-12)
        answer = [image.guesses[name][0].name.split(",")[0]] if image.guesses else []
        rows.append([Score.parse(name).title, str(fate.kept), f"{share:.0f}", *answer])
    columns = ("Score", "Kept", "Score kept, %", "Reduced Top-1")
    return Sheet(f"Scores of {image.name}", columns if image.guesses else columns[:3], rows, [])


def answer_sheet(image: Explained, score: str) -> Sheet:
    rows = []
    for place, pair in enumerate(zip(image.guesses[DENSE], image.guesses[score], strict=True), start=1):
        cells = [text for guess in pair for text in (guess.name.split(",")[0], f"{guess.logit:.2f}")]
        rows.append([str(place), *cells])
    return Sheet(
        f"Top-5, dense and reduced by {Score.parse(score).title}",
        ("", "Dense", "Dense logit", "Reduced", "Reduced logit"),
        rows,
        [],
    )
