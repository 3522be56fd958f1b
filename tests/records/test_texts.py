"""Files with embeddings of class names: written, read, taken apart, and refused."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from redi.errors import ConfigError
from redi.records import artifacts
from redi.records.texts import ClassTexts, is_texts, read_texts

TEXTS = ClassTexts(
    classes=["n1", "n2", "caf\udce9"],
    names=["tench", "eel", "caf\\xe9"],
    templates=["a {}.", "the {}."],
    checkpoint="0123",
    embeddings=torch.nn.functional.normalize(torch.arange(12.0).view(3, 4), dim=1),
    scale=99.5,
    bias=-12.75,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    TEXTS.write(tmp_path / "text.safetensors")
    return tmp_path / "text.safetensors"


def test_a_file_comes_back_as_it_was(file: Path) -> None:
    again = read_texts(file)
    assert torch.equal(again.embeddings, TEXTS.embeddings)
    assert (again.key, again.scale, again.bias) == (TEXTS.key, TEXTS.scale, TEXTS.bias)
    assert is_texts(file)


def test_some_classes_are_chosen_in_their_order() -> None:
    chosen = TEXTS.select(["n2", "n1"], "file")
    assert (chosen.classes, chosen.names) == (["n2", "n1"], ["eel", "tench"])
    assert torch.equal(chosen.embeddings, TEXTS.embeddings[[1, 0]])
    assert (chosen.templates, chosen.scale, chosen.checkpoint) == (TEXTS.templates, 99.5, "0123")


def test_the_first_class_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^text\.st has no embedding of the class 'crane' \(2 of 3 are missing\)"):
        TEXTS.select(["n1", "crane", "bird"], "text.st")


@pytest.mark.parametrize("what", ["nothing", "weights", "artefact", "damage", "text", "nan", "fewer", "flat"])
def test_another_file_is_refused_in_one_line_and_nobody_is_told_to_delete_it(file: Path, what: str) -> None:
    if what == "nothing":
        file.unlink()
    elif what == "weights":
        save_file({"embeddings": torch.zeros(2, 2)}, file)
    elif what == "artefact":
        artifacts.save(file, {"table": torch.zeros(2, 2)}, {"stage": "tfidf"})
    elif what in ("nan", "fewer", "flat"):
        wrong = {"nan": TEXTS.embeddings / 0, "fewer": TEXTS.embeddings[:2], "flat": torch.tensor(1.0)}[what]
        artifacts.save(file, {**TEXTS.tensors, "embeddings": wrong}, {"stage": "text", **TEXTS.key}, bias=0.0)
    elif what == "damage":
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    else:
        file.write_text("embeddings")
    with pytest.raises(ConfigError) as caught:
        read_texts(file)
    message = str(caught.value)
    assert "\n" not in message
    assert "`redi text`" in message
    assert "elete" not in message
    assert is_texts(file) == (what in ("damage", "nan", "fewer", "flat"))
