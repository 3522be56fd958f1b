"""Copies of a model, as torch.save and copy.deepcopy make them."""

import io
from copy import deepcopy
from typing import Any

import torch
from transformers import AttentionInterface

from redi.backbone.hook import IMPLEMENTATION


def copies(model: Any) -> tuple[Any, Any]:
    """The model from a file, read as by a process that has used no backbone yet; and its deep copy."""
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    AttentionInterface._global_mapping.pop(IMPLEMENTATION, None)
    return torch.load(file, weights_only=False), deepcopy(model)
