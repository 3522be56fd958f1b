"""A short campaign against the program; `make chaos` runs the long one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

pytestmark = pytest.mark.timeout(900)  # one test waits for the whole campaign


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    out = tmp_path_factory.mktemp("chaos") / "chaos.json"
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    subprocess.run(
        [sys.executable, "-m", "chaos.campaign", "--short", "--out", str(out)],
        env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    tallies: dict[str, dict[str, object]] = json.loads(out.read_text())
    return tallies


PARTS = ("kills", "Ctrl-C", "bad inputs", "damaged folders", "full disks", "saves", "planted links", "the user's files")


@pytest.mark.parametrize("part", PARTS)
def test_nothing_is_lost_and_nothing_is_silently_wrong(campaign: dict[str, dict[str, object]], part: str) -> None:
    tallies = {name: tally for name, tally in campaign.items() if name.startswith(part)}
    assert tallies
    assert all(tally["tried"] for tally in tallies.values())
    assert [fault for tally in tallies.values() for fault in tally["faults"]] == []  # type: ignore[attr-defined]
