"""What the package registers with transformers, and when: nothing before it is used."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from families import save_checkpoint

#: A function that says which attention and which models transformers has been given.
REPORT = """
import json
from transformers import AttentionInterface, AutoModelForImageClassification

def registered():
    added = AutoModelForImageClassification._model_mapping._extra_content
    return {"attention": "redi" in AttentionInterface(), "models": [kind.model_type for kind in added]}

"""
NOTHING = {"attention": False, "models": []}


def reports(code: str, *arguments: str | Path) -> list[Any]:
    """What a fresh process prints, one JSON value per line."""
    command = [sys.executable, "-c", REPORT + code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("module", ["redi", "redi.backbone", "redi.deploy"])
def test_an_import_registers_nothing(module: str) -> None:
    code = f"import {module}\nprint(json.dumps(registered()))"
    assert reports(code) == [NOTHING]


def test_the_names_of_the_package_register_nothing() -> None:
    code = """
import redi
for name in redi.__all__:
    getattr(redi, name)
print(json.dumps(registered()))
"""
    assert reports(code) == [NOTHING]


def test_what_is_used_is_registered_and_no_more(tmp_path: Path) -> None:
    code = """
import sys
from redi.backbone import load_backbone
from redi.deploy import Accelerated, Setting

backbone = load_backbone(sys.argv[1])
print(json.dumps(registered()))
for _ in range(2):
    Accelerated(backbone, Setting(cost=0.9))
    print(json.dumps(registered()))
"""
    folder = save_checkpoint("vit_head", tmp_path)
    loaded = {"attention": True, "models": []}
    accelerated = {"attention": True, "models": ["redi_accelerated"]}
    assert reports(code, folder) == [loaded, accelerated, accelerated]


def test_a_wrapped_model_registers_its_attention(tmp_path: Path) -> None:
    """``accelerate`` takes a model that transformers has loaded, without ``load_backbone``."""
    code = """
import sys
from transformers import ViTForImageClassification
from redi.deploy import accelerate

model = ViTForImageClassification.from_pretrained(sys.argv[1])
print(json.dumps(registered()))
accelerate(model, cost=0.9)
print(json.dumps(registered()))
"""
    folder = save_checkpoint("vit_head", tmp_path)
    accelerated = {"attention": True, "models": ["redi_accelerated"]}
    assert reports(code, folder) == [NOTHING, accelerated]
