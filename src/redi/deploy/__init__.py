"""A frozen ViT that is faster for real: no label, no dense pass, the same call and the same outputs.

``accelerate`` wraps a model, a ``Setting`` says how far it goes, ``tune`` finds one for a backbone and
a tolerance, ``export`` writes ONNX.
"""

from redi.deploy.model import Accelerated, ReducedOutput, accelerate
from redi.deploy.setting import Setting

__all__ = ["Accelerated", "ReducedOutput", "Setting", "accelerate"]
