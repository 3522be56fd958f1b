"""Acceleration of a frozen ViT without labels or a dense pass, with the same call and the same kind of outputs.

``accelerate`` wraps a model, a ``Setting`` says how much it may cost, ``tune`` finds a setting for a backbone and a
tolerance, and ``export`` writes ONNX.
"""

from redi.deploy.model import Accelerated, ReducedOutput, accelerate
from redi.records.setting import Setting

__all__ = ["Accelerated", "ReducedOutput", "Setting", "accelerate"]
