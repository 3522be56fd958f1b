"""What the site (``make docs``) adds to the files in docs/: the root's documents, and the API reference.

Documents link to each other, and to source files, by their places in the repository. Here these links become links
between the pages of the site. A link that leads to no page stays as it is, and the strict build refuses it.
"""

import ast
import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
#: Documents outside docs/, and the pages that they become.
DOCUMENTS = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "benchmarks/README.md": "benchmarks.md",
    "experiments/README.md": "experiments.md",
}
PLACES = {page: document for document, page in DOCUMENTS.items()}
LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?(?=\))")
#: reStructuredText roles in docstrings, e.g. :func:`redi.reduction.reduce`.
ROLE = re.compile(r":(?:class|func|meth|mod|attr):(?=<code>)")
API = """# API

Every name on this page is an attribute of `redi`, e.g. `redi.accelerate`. `import redi` loads neither torch nor
transformers; they are loaded when a name is first used. The modules are public too, e.g. `redi.score.minmax`; names
that begin with an underscore are not.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    linked = set[str]()
    for document, page in DOCUMENTS.items():
        files.append(File.generated(config, page, content=(ROOT / document).read_text(encoding="utf-8")))
    files.append(File.generated(config, "api.md", content=_api()))
    for file in files.documentation_pages():
        for place, _ in LINK.findall(file.content_string):
            target = _in_repository(file.src_uri, place)
            if target.startswith("src/") and (ROOT / target).is_file():
                linked.add(target)
    for source in sorted(linked):
        content = f"# {_module(source)}\n\n::: {_module(source)}\n"
        files.append(File.generated(config, _page(source), content=content, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: object) -> str:
    def to_page(match: re.Match[str]) -> str:
        target = _page(_in_repository(page.file.src_uri, match[1]))
        if files.get_file_from_path(target) is None:
            return match[0]
        return relpath(target, PurePosixPath(page.file.src_uri).parent) + (match[2] or "")

    return LINK.sub(to_page, markdown)


def on_page_content(html: str, **_: object) -> str:
    return ROLE.sub("", html)


def _in_repository(page: str, link: str) -> str:
    """Where in the repository a link of a page leads."""
    return normpath(PurePosixPath(PLACES.get(page, f"docs/{page}")).parent / link)


def _page(place: str) -> str:
    """The page of the site that a file of the repository becomes."""
    if place.startswith("src/"):
        return f"source/{_module(place)}.md"
    return DOCUMENTS.get(place, place.removeprefix("docs/"))


def _module(source: str) -> str:
    return source.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _api() -> str:
    """The public names of redi, by module, read from the imports that it declares for type checkers."""
    tree = ast.parse((ROOT / "src/redi/__init__.py").read_text(encoding="utf-8"))
    lines = [API]
    declared = [node for block in tree.body if isinstance(block, ast.If) for node in block.body]
    for node in declared:
        if isinstance(node, ast.ImportFrom) and node.module:
            lines.append(f"## {node.module}\n")
            names = sorted((alias.name for alias in node.names), key=lambda name: name[0].isupper())  # functions first
            lines += [f"::: {node.module}.{name}\n" for name in names]
    return "\n".join(lines)
