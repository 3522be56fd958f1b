"""Self-contained pages: markup, style and scripts of ``page/`` in one file, with a policy that forbids every request.

Class and file names are untrusted: they reach a page as escaped text or as data, never as markup.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files

from redi._version import __version__


def assemble(template: str, styles: Sequence[str], scripts: Sequence[str], slots: Mapping[str, str]) -> bytes:
    """A page from a template, with its styles, scripts and the given slots."""
    page = files("redi.report") / "page"
    style = "\n".join((page / f"{name}.css").read_text(encoding="utf-8") for name in styles)
    parts = [(page / f"{name}.js").read_text(encoding="utf-8") for name in scripts]
    script = "\n".join(['"use strict";', "(() => {", *parts, "})();"])
    values = {**slots, "policy": _policy(script, style), "version": __version__, "style": style, "script": script}
    # One pass over the template, so that no text in a value is taken for a slot.
    text = re.sub(
        r"\{\{(\w+)\}\}", lambda match: values[match[1]], (page / f"{template}.html").read_text(encoding="utf-8")
    )
    # File names may hold bytes that are not UTF-8.
    return text.encode("utf-8", errors="replace")


def inline_json(data: object) -> str:
    """JSON that can stand in a script element: no ``<``, so nothing in it can end the element."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def base64_text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _policy(script: str, style: str) -> str:
    def source(text: str) -> str:
        return f"'sha256-{base64_text(hashlib.sha256(text.encode('utf-8')).digest())}'"

    return (
        f"default-src 'none'; script-src {source(script)}; style-src {source(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
