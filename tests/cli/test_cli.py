"""The command line and the cost of importing the package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import redi


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "redi", *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("code", ["import redi", "import redi.cli"])
def test_importing_loads_neither_torch_nor_transformers(code: str) -> None:
    check = f"import sys; {code}; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_resolves() -> None:
    for name in redi.__all__:
        assert getattr(redi, name) is not None
    for module in ("score", "views", "tfidf", "vocabulary", "attention", "reduction", "cost", "probe"):
        assert getattr(redi, module).__name__ == f"redi.{module}"
    assert set(redi.__all__) < set(dir(redi))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        redi.nothing  # noqa: B018


def test_help_comes_without_delay() -> None:
    """Help needs none of the libraries that take long to import."""
    heavy = ("torch", "numpy", "transformers", "matplotlib", "PIL", "safetensors")
    code = (
        "import sys\nfrom redi.cli import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert "compare" in done.stdout
    assert done.stderr.strip() == "[]"


def test_help_and_version() -> None:
    assert "cost" in run("--help").stdout
    assert run("--version").stdout.strip() == f"redi {redi.__version__}"


def test_cost_prints_table_3() -> None:
    done = run("cost")
    assert done.returncode == 0
    for number in ("50.0 %", "48.0 %", "46.8 %", "71.7 %", "47.8 %"):
        assert number in done.stdout


def test_cost_of_another_mlp_prints_both_numbers() -> None:
    narrow = run("cost", "--width", "48", "--mlp", "96")
    assert narrow.returncode == 0
    assert "59.5 %" in narrow.stdout
    assert "0.405 counts the products" in narrow.stdout
    assert "gives 0.430." in " ".join(narrow.stdout.split())
    gated = run("cost", "--width", "384", "--mlp", "1536", "--gated").stdout
    share = (16 * 107 * 384 + 2 * 107**2) / (16 * 201 * 384 + 2 * 201**2)
    assert f"{share:.3f} counts the products" in gated
    wrong = run("cost", "--mlp", "-1")
    assert wrong.returncode == 2
    assert wrong.stderr.strip().count("\n") == 0


def test_a_closed_output_is_no_failure() -> None:
    command = f"{sys.executable} -m redi cost >&-"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_letters_that_an_output_cannot_show_are_escaped() -> None:
    code = "from redi.cli import main; import sys; sys.argv = ['redi', 'cost', '--help']; main()"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage" in done.stdout


def test_a_users_mistake_is_one_line_and_a_failure() -> None:
    done = run("cost", "--keep", "0.9", "--merge", "0.5")
    assert done.returncode == 1
    assert done.stderr.strip() == "redi: keep + merge must be at most 1, but is 0.9 + 0.5."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bench", "--reducer", "melt"), "redi: There is no reducer 'melt'; choose one of"),
        (("bench", "--model-size", "huge"), "redi: There is no model size 'huge'; choose one of tiny, small, base."),
        (
            ("run", *"--backbone b --train t --val v --out o --resize sharp".split()),
            "redi: resize must be one of nearest, box, bilinear, hamming, bicubic, lanczos",
        ),
        (
            ("diagnose", *"--backbone b --train t --val v --out o --resize sharp".split()),
            "redi: resize must be one of nearest",
        ),
        (("compare", "nowhere"), "redi: nowhere is not a run folder: it has no run.json of ours."),
        (("accelerate", "b"), "redi: accelerate is a function of Python, redi.accelerate(MODEL, cost=0.65), not a"),
        (("report", "nowhere"), "redi: nowhere is not a run folder"),
        (("audit", "nowhere"), "redi: nowhere is not a run folder"),
        (("figures", "nowhere"), "redi: nowhere is not a run folder"),
        (("cost", "--cells", "99"), "redi: keep=0.5, merge=0.25 and cells=99 would make 9,899 tokens of 196 patches"),
        (("bench", "--out", "."), "redi: --out . is a folder: name a file that ends in .json."),
        (("bench", "--out", "photo.jpg"), "redi: --out photo.jpg must end in .json."),
        (("export", "model", "--out", "photo.jpg"), "redi: --out photo.jpg must end in .onnx."),
    ],
)
def test_mistakes_of_the_commands_are_one_line(arguments: tuple[str, ...], message: str) -> None:
    done = run(*arguments)
    assert done.returncode == 1
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1
    assert not Path("never").exists()


def test_a_python_without_docstrings_is_one_line() -> None:
    """transformers cannot be imported there."""
    command = [sys.executable, "-OO", "-m", "redi", "export", "model"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        "redi: transformers needs docstrings: run Python without -OO, and without PYTHONOPTIMIZE=2.\n"
    )


def test_a_number_beyond_its_bounds_is_one_line_before_any_work() -> None:
    done = run("demo", "--out", "never/made", "--threads", "100000")
    assert done.returncode == 2
    assert done.stderr == "redi: --threads must lie in 0 to 1,024, not at 100,000.\n"
    assert not Path("never").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [("cost",), ("--help",), ("--version",)])
def test_a_full_disk_under_the_output_is_one_line(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "redi", *arguments]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "redi: The output: No space left on device.\n"


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m redi --help | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""
