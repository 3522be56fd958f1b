"""Run notebooks in an empty folder and store them with their outputs; a cell that raises is an error.

python scripts/run_notebooks.py                                    # all of docs/notebooks, in place
python scripts/run_notebooks.py docs/notebooks/engineer.ipynb --to OTHER
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parent.parent / "docs" / "notebooks"


def run_notebook(source: Path, target: Path) -> None:
    notebook = nbformat.read(source, as_version=4)
    with TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=300, resources=resources, record_timing=False).execute()
    nbformat.write(notebook, target)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", type=Path, nargs="*", default=sorted(NOTEBOOKS.glob("*.ipynb")))
    parser.add_argument("--to", type=Path, help="folder for the results; the default is in place")
    options = parser.parse_args()
    for path in options.notebooks:
        run_notebook(path, options.to / path.name if options.to else path)
