"""Who may import whom: the one rule that keeps the rooms of the house apart."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import redi

ROOT = Path(redi.__file__).parent
BASE = {"_version", "errors", "bounds", "checks", "grid"}
MATHEMATICS = BASE | set(
    "attention budget centroids corpus cost early evaluate localisation probe reduction retrieval rows score scorers "
    "shortcuts statistics tfidf views vocabulary".split()
)
RUN = MATHEMATICS | {"records", "images", "backbone", "runs"}
#: What each room may import beside itself.
ALLOWED = {
    **dict.fromkeys(MATHEMATICS, MATHEMATICS),
    **dict.fromkeys(BASE, BASE),
    "records": MATHEMATICS,
    "images": MATHEMATICS,
    "backbone": MATHEMATICS | {"images"},
    "runs": RUN,
    "stages": RUN,
    "pipeline": RUN | {"stages"},
    "learning": RUN,
    "comparison": RUN | {"stages", "pipeline", "speed", "learning"},
    "speed": RUN | {"learning"},
    "segmentation": RUN | {"speed"},
    "deploy": RUN | {"speed", "learning"},
    "report": MATHEMATICS | {"records", "images"},
    "demo": MATHEMATICS | {"images", "records"},
    "redi": {"_version"},  # the root; it finds its public names when they are first used
}
FREE = {"api", "cli", "__main__", "demo.runner"}  # they bring the rooms together


def name_of(file: Path) -> str:
    parts = ("redi", *file.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(file): file for file in ROOT.rglob("*.py")}


def imports(source: str, for_typing: bool = False) -> set[str]:
    """Modules of the package that a source imports anywhere; those for type checking alone only on demand."""
    tree = ast.parse(source)
    typing = [node for node in ast.walk(tree) if isinstance(node, ast.If) and not for_typing]
    typing = [node for node in typing if "TYPE_CHECKING" in ast.dump(node.test)]
    skipped = {id(inner) for node in typing for inner in ast.walk(node)}
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and id(node) not in skipped:
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and id(node) not in skipped and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    full = {name if name in MODULES else name.rpartition(".")[0] for name in names}
    return full & set(MODULES)


def room(module: str) -> str:
    return module.removeprefix("redi.").partition(".")[0]


def forbidden(module: str, source: str) -> set[str]:
    """The rooms that a module imports against the rule."""
    if {room(module), module.removeprefix("redi.")} & FREE:
        return set()
    return {room(name) for name in imports(source)} - {room(module)} - ALLOWED[room(module)]


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_only_what_its_room_may_see(module: str) -> None:
    assert not forbidden(module, MODULES[module].read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("module", "source", "room"),
    [
        ("redi.report.new", "from redi.runs.folder import Run", "runs"),
        ("redi.records.new", "def late():\n    import redi.backbone.model", "backbone"),
        ("redi.reduction.new", "from redi import pipeline", "pipeline"),
        ("redi.records.new", "from redi import __version__", "redi"),
        ("redi.segmentation.new", "from redi.report.dense import row_title", "report"),
        ("redi.report.new", "from redi.segmentation.head import majority", "segmentation"),
    ],
)
def test_an_edge_that_breaks_the_rule_is_noticed(module: str, source: str, room: str) -> None:
    assert forbidden(module, source) == {room}


def test_there_is_no_import_cycle() -> None:
    """The root counts as importing what it declares for type checkers: it loads that when a name is first used."""
    graph = {name: imports(file.read_text("utf-8"), name == "redi") - {name} for name, file in MODULES.items()}
    assert len(list(TopologicalSorter(graph).static_order())) == len(MODULES)


def test_pil_lives_in_images_and_the_demo_alone() -> None:
    users = {room(name) for name, file in MODULES.items() if "from PIL" in file.read_text("utf-8")}
    assert users == {"images", "demo"}
