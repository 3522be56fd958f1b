"""Files of learned reducers with untrained parameters, which work as well as trained ones."""

from pathlib import Path

import torch

from redi.backbone import Backbone
from redi.learning.files import LearnedFile, save_learned
from redi.records.learning import Check, LearnConfig, Training
from redi.reduction.learned import LEARNED
from redi.runs.identity import identify


def write_learned(path: Path, backbone: Backbone, name: str, seed: int = 0) -> LearnedFile:
    """Write a file for a backbone; each seed has other parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        method = LEARNED[name](backbone.geometry)
    check = Check(0, None, {"0.65": 1.0})
    config = LearnConfig("model", "images", name)
    grid = backbone.geometry.grid
    training = Training(name, identify(backbone), grid, 64, 16, 1, 1, 1.0, "KL from dense", [check], config)
    return save_learned(path, method, training, {"learned": name})
