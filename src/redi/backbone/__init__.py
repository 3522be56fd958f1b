"""Frozen Vision Transformers behind one interface: embed -> encode (blocks) -> final norm -> classify."""

from redi.backbone import libraries  # noqa: F401  # before the others: it says why transformers cannot be imported

# isort: split
from redi.backbone.classifier import Classifier
from redi.backbone.loading import load_backbone
from redi.backbone.model import Backbone
from redi.backbone.progressive import Shortened
from redi.backbone.tokens import Tokens
from redi.backbone.watch import AttentionScores, Watch

__all__ = ["AttentionScores", "Backbone", "Classifier", "Shortened", "Tokens", "Watch", "load_backbone"]
