"""How the threads of a command wait: briefly, unless the user has decided."""

import os
import subprocess
import sys

import pytest

from redi.__main__ import WAITING, wait_briefly

PROGRAM = """
import os, sys
from redi.__main__ import main
assert "torch" not in sys.modules, "OpenMP has already read its settings"
sys.argv = ["redi", "--help"]
try:
    main()
finally:
    print(os.environ.get("GOMP_SPINCOUNT"), file=sys.stderr)
"""


def test_a_command_waits_briefly() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"PATH": os.environ.get("PATH", ""), "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == "1000\n"


@pytest.mark.parametrize("name", WAITING)
def test_the_users_own_setting_wins(name: str) -> None:
    environment = {name: "ACTIVE"}
    wait_briefly(environment)
    assert environment == {name: "ACTIVE"}
