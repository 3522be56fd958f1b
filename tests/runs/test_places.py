"""The places that a data set is read from."""

import os
from pathlib import Path

import pytest

from redi.runs.places import data_places


def real(where: str) -> set[str]:
    return {os.path.realpath(place) for place in data_places(where)}


def test_links_below_a_folder_lead_to_further_places_each_once(tmp_path: Path) -> None:
    for folder in ("data/cat/deep", "pool/more", "far"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "data" / "dog").symlink_to(tmp_path / "pool")
    (tmp_path / "data" / "cat" / "deep" / "link").symlink_to(tmp_path / "pool")
    (tmp_path / "data" / "cat" / "loop").symlink_to(tmp_path / "data")
    (tmp_path / "pool" / "more" / "link").symlink_to(tmp_path / "far")
    (tmp_path / "pool" / "dangling").symlink_to("nowhere")
    assert real(str(tmp_path / "data")) == {str(tmp_path.resolve() / name) for name in ("data", "pool", "far")}


def test_shards_and_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.tar").touch()
    assert data_places(str(tmp_path / "*.tar")) == [tmp_path / "a.tar"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "local").mkdir()
    assert data_places("hf:./local:train") == [Path("local")]
    assert data_places("hf:owner/name:train") == []
