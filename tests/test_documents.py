"""The documents' code: every Python block runs, every command line is one that the program understands.

Blocks run as they stand. Models with names of the Hub come from a cache in the Hub's layout (HF_HUB_CACHE) that holds
small random models under these names. Shell blocks go through bash without a PATH, so that nothing in them is started:
bash expands variables and loops, and gives every command to :data:`RECORD`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from families import save_checkpoint, save_model
from language_families import save_llava
from map_families import make_whole
from redi import __version__
from redi.cli import app

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md", "experiments/README.md")]
DOCUMENTS += sorted((ROOT / "docs").glob("*.md"))
FENCED = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^(?: {4}.*)?\n)+", re.MULTILINE)
SHELL = re.compile(r"^ {4}(?:redi|make|pip|python|torchrun|srun|for) ", re.MULTILINE)
#: Ends the fields of a command, and the command.
FIELD, END = "\x1f", "\x1e"
RECORD = r"""
command_not_found_handle() { printf '%s\x1f' "$@" >&3; printf '\x1e' >&3; }
source() { :; }
"""
#: The small models that stand for models of the Hub.
HUB = {"google/vit-base-patch16-224": "vit_head", "facebook/dinov2-small": "dinov2"}
PROCESSOR = {
    "image_processor_type": "ViTImageProcessor",
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "size": {"height": 224, "width": 224},
}
DEPTH, LLAVA = "depth-anything/Depth-Anything-V2-Small-hf", "llava-hf/llava-1.5-7b-hf"
#: Runs the code of each document. A traceback names the document as its file.
RUN_ALL = """
import json, os, sys
folder = os.getcwd()
for name, code in json.loads(sys.argv[1]).items():
    os.chdir(os.path.join(folder, name))
    exec(compile(code, name, "exec"), {"__name__": "__main__"})
"""
SHOWN = {"report", "figures", "inspect", "cost"}


def python_blocks(document: Path) -> list[str]:
    return FENCED.findall(document.read_text())


def commands(document: Path) -> list[list[str]]:
    """Every command in the shell blocks of a document, with variables and loops expanded."""
    blocks = [block for block in INDENTED.findall(document.read_text()) if SHELL.search(block)]
    read, write = os.pipe()
    with os.fdopen(read) as recorded:
        for block in blocks:
            script = f"exec 3>&{write}\n{RECORD}\n" + re.sub("^ {4}", "", block, flags=re.MULTILINE)
            subprocess.run(
                ["/bin/bash", "-c", script],
                env={"PATH": "/nowhere"},
                pass_fds=[write],
                check=False,
                timeout=20,
                cwd="/",
            )
        os.close(write)
        return [line.split(FIELD)[:-1] for line in recorded.read().split(END) if line]


def calls_of_redi(document: Path) -> list[list[str]]:
    """The arguments of every call of redi, alone or as a module that another command starts."""
    found = [words[1:] for words in commands(document) if words[0] == "redi"]
    launched = (words for words in commands(document) if words[0] in ("torchrun", "srun", "python") and "-m" in words)
    return found + [words[words.index("redi") + 1 :] for words in launched if "redi" in words]


def write_photo(folder: Path) -> None:
    Image.effect_noise((120, 90), 80).convert("RGB").save(folder / "photo.jpg")


@pytest.fixture
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of the Hub with small models under the names that the documents use."""
    cache = tmp_path_factory.mktemp("hub")
    for name in (*HUB, DEPTH, LLAVA):
        folder = cache / f"models--{name.replace('/', '--')}"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_text("0" * 40)
        snapshot, processor = folder / "snapshots" / ("0" * 40), PROCESSOR
        if name == LLAVA:
            save_llava("clip", snapshot, side=160)  # 400 patches
            continue
        if name == DEPTH:
            save_model(make_whole("depth_anything"), snapshot)
            processor = {**PROCESSOR, "image_processor_type": "DPTImageProcessor"}
        else:
            save_checkpoint(HUB[name], snapshot)
        (snapshot / "preprocessor_config.json").write_text(json.dumps(processor))
    return cache


def test_python_blocks_run_as_they_stand(hub: Path, tmp_path: Path) -> None:
    """In one process, because to import torch takes longer than to run them; with names and a folder per document."""
    documents = {document.name: "\n".join(python_blocks(document)) for document in DOCUMENTS if python_blocks(document)}
    assert {"README.md", "ACCELERATE.md", "BACKBONES.md", "COMPARE.md", "DEMO.md"} <= set(documents)
    for name in documents:
        (tmp_path / name / "photos").mkdir(parents=True)
        write_photo(tmp_path / name)
        write_photo(tmp_path / name / "photos")
    environment = {**os.environ, "HF_HUB_CACHE": str(hub), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RUN_ALL, json.dumps(documents)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr


def test_every_command_line_is_understood() -> None:
    group: Any = typer.main.get_command(app)
    calls = [words for document in DOCUMENTS for words in calls_of_redi(document)]
    assert {words[0] for words in calls if words[0].startswith("-")} <= {name for o in group.params for name in o.opts}
    for command, *rest in (words for words in calls if not words[0].startswith("-")):
        assert command in group.commands, (command, rest)
        group.commands[command].make_context(command, rest)  # raises if it cannot be parsed
    assert len(calls) >= 30, "the blocks are found"


def test_other_commands_name_what_exists() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    scripts = set[str]()
    for document in DOCUMENTS:
        for words in commands(document):
            if words[0] == "make":
                assert words[1] in targets, words
            if words[0] == "python" and words[1] != "-m":
                scripts.add(words[1])
    assert len(scripts) >= 3
    assert all((ROOT / script).is_file() for script in scripts), scripts


def test_the_citation_and_the_changelog_name_this_version() -> None:
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert __version__ in (ROOT / "CHANGELOG.md").read_text()


def test_commands_that_show_a_run_do_so(seen_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command of README.md and docs/REPORT.md that only looks at a run, on a small one in runs/demo."""
    shutil.copytree(seen_run, tmp_path / "runs" / "demo")
    write_photo(tmp_path)
    monkeypatch.chdir(tmp_path)
    lines = {tuple(words) for name in ("README.md", "docs/REPORT.md") for words in calls_of_redi(ROOT / name)}
    shown = [words for words in sorted(lines) if words[0] in SHOWN and "--backbone" not in words]
    assert {words[0] for words in shown} == {"report", "figures", "inspect"}
    for words in shown:
        result = CliRunner().invoke(app, list(words))
        assert result.exit_code == 0, (words, result.output, result.exception)
