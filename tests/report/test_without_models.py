"""Reports, figures and the analytic cost need no model, so they need no library of models either."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

#: A program that runs the rest of its source where transformers and timm cannot be imported.
BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("transformers", "timm"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
"""
COMMAND = """
from redi.cli import main

sys.argv[0] = "redi"
main()
"""


@pytest.fixture
def folder(seen_run: Path, tmp_path: Path) -> Path:
    shutil.copytree(seen_run, tmp_path / "run")
    for made in ("report", "figures"):
        assert not (tmp_path / "run" / made).exists()
    return tmp_path / "run"


def python(source: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", source, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def blocked(source: str, *arguments: object) -> str:
    """What the program prints; it must succeed."""
    done = python(BLOCKED + source, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["transformers", "transformers.models", "timm", "timm.models"])
def test_the_libraries_are_out_of_reach(name: str) -> None:
    done = python(BLOCKED + f"import {name}")
    assert done.returncode == 1
    assert "ImportError" in done.stderr
    assert "is blocked" in done.stderr


def test_a_command_that_runs_a_model_fails_there(folder: Path) -> None:
    """So the other tests would notice a model."""
    done = python(BLOCKED + COMMAND, "run", "--config", folder / "config.toml")
    assert done.returncode == 1
    assert "transformers is blocked" in done.stderr


MODULES = ["build", "figures", "tables", "compare", "diagnose", "bench", "tune", "inspection", "dense", "dense_page"]
MODULES += ["tasks"]


@pytest.mark.parametrize("module", MODULES)
def test_importing_a_report_leaves_transformers_out(module: str) -> None:
    done = python(
        f"import sys, redi.report.{module}\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('transformers', 'timm')])"
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_a_report_is_built_without_models(folder: Path) -> None:
    source = "from pathlib import Path\nfrom redi.report.build import build_report\n"
    printed = blocked(source + "print(build_report(Path(sys.argv[1])))", folder)
    page = folder / "report" / "index.html"
    assert printed.strip() == str(page)
    assert page.stat().st_size > 100_000


def test_redi_report_works_without_models(folder: Path) -> None:
    page = folder / "report" / "index.html"
    assert blocked(COMMAND, "report", folder).strip() == f"report: {page}"
    assert page.stat().st_size > 100_000


def test_redi_figures_works_without_models(folder: Path) -> None:
    printed = blocked(COMMAND, "figures", folder)
    written = [Path(line.removeprefix("written: ")) for line in printed.splitlines()]
    assert {"figure1.pdf", "figure2.png", "table1-probe.tex", "table3.md"} <= {path.name for path in written}
    assert all(path.stat().st_size > 200 for path in written)


def test_redi_cost_works_without_models() -> None:
    assert "Total sequence tokens" in blocked(COMMAND, "cost")
