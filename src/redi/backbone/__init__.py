"""Frozen Vision Transformers behind one interface: embed -> encode(blocks) -> final norm -> classify."""

from redi.backbone.loading import load_backbone
from redi.backbone.model import Backbone, Preprocessing, Shortened
from redi.backbone.tokens import Tokens
from redi.backbone.watch import AttentionScores, Watch

__all__ = [
    "AttentionScores",
    "Backbone",
    "Preprocessing",
    "Shortened",
    "Tokens",
    "Watch",
    "load_backbone",
]
