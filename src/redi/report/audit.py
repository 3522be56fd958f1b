"""An audit in words and tables: the ranked classes, and the words of one class."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from redi.images.classes import class_titles
from redi.records.audit import FIXED_PLACE, UNATTENDED, AuditClass, AuditRecord, AuditWord
from redi.report.sheets import Sheet, print_sheet

#: Suspect classes that the terminal shows.
TOP = 10


def titles_of(record: AuditRecord, names: Path | None = None) -> list[str]:
    return class_titles([own.name for own in record.classes], record.head, record.columns, names)


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def word_sentence(word: AuditWord) -> str:
    """Why a word is a suspect, in plain words; for any other word, where it occurs."""
    where = f"in {percent(word.inside)} of the images of this class and {percent(word.outside)} of the others"
    if word.reason == UNATTENDED:
        return f"It tells the class from patches that the model does not attend to. Anywhere, it is {where}."
    if word.reason == FIXED_PLACE:
        return f"It tells the class from one and the same place ({word.place}). Anywhere, it is {where}."
    return f"It is {where}."


def class_sentence(own: AuditClass, limit: float) -> str:
    """The verdict on a class."""
    suspects = own.suspects
    if not suspects:
        return "No word of this class is a suspect."
    kinds = [word.reason for word in suspects]
    parts = [f"{_words(kinds.count(kind))} {text}" for kind, text in _KINDS.items() if kind in kinds]
    found = f"{' and '.join(parts)}: suspicion {own.suspicion:.1f}, "
    if own.flagged:
        return f"This class can be told by {found}above the limit of {limit:.1f}."
    return f"Weak evidence from {found}not above the limit of {limit:.1f}."


_KINDS = {UNATTENDED: "off what the model attends to", FIXED_PLACE: "in a fixed place"}


def _words(count: int) -> str:
    return f"{count} word{'s' * (count != 1)}"


def _why(word: AuditWord) -> str:
    return f"fixed, {word.place}" if word.reason == FIXED_PLACE else word.reason


def audit_verdict(record: AuditRecord, titles: Sequence[str]) -> str:
    """One sentence on the whole data set."""
    flagged = [titles[label] for label in record.flagged]
    if not flagged:
        return f"None of {len(titles)} classes is flagged as resting on a shortcut."
    shown = ", ".join(flagged[:3]) + (" and others" if len(flagged) > 3 else "")
    verb = "may be told by a shortcut" if len(flagged) == 1 else "may be told by shortcuts"
    return f"{len(flagged)} of {len(titles)} classes {verb}: {shown}."


def ranking_sheet(record: AuditRecord, titles: Sequence[str], top: int = TOP) -> Sheet:
    """The most suspicious classes."""
    labels = [label for label in record.order if record.classes[label].suspicion > 0][:top]
    rows, strong = [], set()
    for number, label in enumerate(labels):
        own = record.classes[label]
        first = own.suspects[0] if own.suspects else None
        why = _why(first) if first else ""
        shares = [percent(first.inside), percent(first.outside)] if first else ["", ""]
        rows.append([titles[label], f"{own.suspicion:.1f}", "yes" if own.flagged else "", why, *shares])
        if own.flagged:
            strong.add((number, 0))
    notes = [
        audit_verdict(record, titles),
        f"The limit is {record.limit:.1f}. In, Out: images of the class and other images that hold the strongest word. "
        f"Words of block {record.block} of {record.depth}, from {record.images:,} training images and their labels.",
    ]
    columns = ("Class", "Suspicion", "Flag", "Strongest word", "In", "Out")
    return Sheet("Classes that may rest on a shortcut", columns, rows, notes, frozenset(strong))


def class_sheets(record: AuditRecord, titles: Sequence[str], label: int) -> list[Sheet]:
    """The words of a class, and the classes that share them."""
    own = record.classes[label]
    rows = [
        [
            f"{word.word}",
            f"{word.tfidf:.2f}",
            f"{100 * word.mass:.0f}",
            f"{100 * word.inside:.0f}",
            f"{100 * word.outside:.0f}",
            f"{word.lift:.2f}",
            f"{100 * word.rank:.0f}",
            f"{100 * word.border:.0f}",
            f"{word.suspicion:.1f}" if word.reason else "",
            _why(word),
        ]
        for word in own.words
    ]
    columns = ("Word", "TF-IDF", "Mass", "In", "Out", "Lift", "Rank", "Border", "Susp.", "Why")
    strong = frozenset((k, 0) for k, word in enumerate(own.words) if word.reason)
    notes = [
        class_sentence(own, record.limit),
        "Mass: % of the class's TF-IDF. In, Out: % of its images and of others that hold the word. Lift, Rank: "
        "attention on it, 1 and 50 for the mean patch.",
    ]
    footnotes = ((("Border",), "% of the word's patches in the outermost ring of the picture."),)
    title = f"Words of {titles[label]} ({own.images:,} images)"
    sheets = [Sheet(title, columns, rows, notes, strong, footnotes=footnotes)]
    if own.alike:
        alike = [
            [titles[entry.label], f"{100 * entry.overlap:.0f}", ", ".join(map(str, entry.words))] for entry in own.alike
        ]
        sheets.append(Sheet("Classes that share its words", ("Class", "Shared mass, %", "Words"), alike, []))
    return sheets


def print_audit(sheets: Sequence[Sheet]) -> None:
    """Print the sheets without the columns for which a terminal has no room."""
    console = Console()
    for sheet in sheets:
        print_sheet(sheet, console, hidden=("TF-IDF", "Border"))
