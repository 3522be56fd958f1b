"""The notebooks of the documentation: every cell runs, and they are stored with their outputs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def cells(notebook: Path) -> list[dict[str, object]]:
    return [cell for cell in json.loads(notebook.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs(notebook: Path, tmp_path: Path) -> None:
    pytest.importorskip("ipykernel")
    command = [sys.executable, str(ROOT / "scripts" / "run_notebooks.py"), str(notebook), "--to", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [cell["source"] for cell in cells(tmp_path / notebook.name)] == [cell["source"] for cell in cells(notebook)]


def test_they_are_stored_with_small_outputs_and_no_path_of_a_machine() -> None:
    assert [notebook.stem for notebook in NOTEBOOKS] == ["engineer", "researcher"]
    for notebook in NOTEBOOKS:
        text = notebook.read_text("utf-8")
        assert len(text) < 700_000
        assert "/tmp/" not in text
        assert "site-packages" not in text
        assert '"display_data"' not in text, "a table is shown once, as the value of its cell"
        assert all(cell["execution_count"] for cell in cells(notebook)), "run scripts/run_notebooks.py"
        assert sum("image/png" in str(cell["outputs"]) for cell in cells(notebook)) >= 3
