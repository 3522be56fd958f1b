"""Acceleration of a frozen ViT without labels or a dense pass, with the same call and the same kind of outputs.

``accelerate`` wraps a model, a ``Setting`` says how much it may cost, ``tune`` finds a setting for a backbone and a
tolerance, and ``export`` writes ONNX. Importing this package teaches transformers' Auto classes and pipelines to load
saved accelerated models.
"""

from redi.backbone import libraries  # noqa: F401  # before transformers: it says why that cannot be imported

# isort: split
from transformers import (
    AutoBackbone,
    AutoConfig,
    AutoImageProcessor,
    AutoModel,
    AutoModelForDepthEstimation,
    AutoModelForImageClassification,
    AutoModelForImageTextToText,
    AutoModelForSemanticSegmentation,
)

from redi.deploy.flattened import AcceleratedFlattened
from redi.deploy.language import AcceleratedLanguageModel
from redi.deploy.maps import AcceleratedBackbone
from redi.deploy.model import KINDS, Accelerated, ReducedOutput
from redi.deploy.processor import AcceleratedImageProcessor
from redi.deploy.saved import (
    CONFIGS,
    AcceleratedBackboneConfig,
    AcceleratedConfig,
    AcceleratedDepthConfig,
    AcceleratedEncoderConfig,
    AcceleratedLanguageConfig,
    AcceleratedSegmentationConfig,
)
from redi.deploy.whole import AcceleratedModel
from redi.deploy.wrapping import accelerate
from redi.records.setting import Setting

KINDS[:] = [AcceleratedLanguageModel, AcceleratedModel, AcceleratedBackbone, AcceleratedFlattened]
_PROCESSORS: dict[str, type] = {"pil": AcceleratedImageProcessor, "torchvision": AcceleratedImageProcessor}
for _config in CONFIGS.values():
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
    AutoImageProcessor.register(_config, image_processor_classes=_PROCESSORS, exist_ok=True)
AutoModelForImageClassification.register(AcceleratedConfig, Accelerated, exist_ok=True)
AutoModel.register(AcceleratedEncoderConfig, Accelerated, exist_ok=True)
AutoBackbone.register(AcceleratedBackboneConfig, AcceleratedBackbone, exist_ok=True)
AutoModelForDepthEstimation.register(AcceleratedDepthConfig, AcceleratedModel, exist_ok=True)
AutoModelForSemanticSegmentation.register(AcceleratedSegmentationConfig, AcceleratedModel, exist_ok=True)
AutoModelForImageTextToText.register(AcceleratedLanguageConfig, AcceleratedLanguageModel, exist_ok=True)

__all__ = [
    "Accelerated",
    "AcceleratedBackbone",
    "AcceleratedLanguageModel",
    "AcceleratedModel",
    "ReducedOutput",
    "Setting",
    "accelerate",
]
