"""What the package registers with transformers: model types with redi.deploy, and its attention when it is used."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from families import save_checkpoint

#: A function that says which attention and which models transformers has been given.
REPORT = """
import json
from transformers import AttentionInterface, AutoModelForImageClassification

def registered():
    added = AutoModelForImageClassification._model_mapping._extra_content
    return {"attention": "redi" in AttentionInterface(), "models": [kind.model_type for kind in added]}

"""


def reports(code: str, *arguments: str | Path) -> list[Any]:
    """What a fresh process prints, one JSON value per line."""
    command = [sys.executable, "-c", REPORT + code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_an_import_registers_model_types_and_use_registers_attention(tmp_path: Path) -> None:
    """``accelerate`` takes a model that transformers has loaded, without ``load_backbone``."""
    code = """
import sys
import redi, redi.backbone
print(json.dumps(registered()))
import redi.deploy
from transformers import ViTForImageClassification
model = ViTForImageClassification.from_pretrained(sys.argv[1])
print(json.dumps(registered()))
for _ in range(2):
    redi.accelerate(model, cost=0.9)
    print(json.dumps(registered()))
"""
    types = ["redi_accelerated"]
    used = {"attention": True, "models": types}
    assert reports(code, save_checkpoint("vit_head", tmp_path)) == [
        {"attention": False, "models": []},
        {"attention": False, "models": types},
        used,
        used,
    ]


def test_a_backbone_registers_its_attention_alone(tmp_path: Path) -> None:
    code = """
import sys
from redi.backbone import load_backbone

load_backbone(sys.argv[1])
print(json.dumps(registered()))
"""
    assert reports(code, save_checkpoint("vit_head", tmp_path)) == [{"attention": True, "models": []}]
