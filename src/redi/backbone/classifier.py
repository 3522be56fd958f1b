"""The classifier of a row: the linear probe or the checkpoint's own head, applied to the final tokens."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from redi.backbone.model import Backbone
from redi.probe import LinearProbe, image_feature

PROBE, NATIVE = "probe", "native"


def final_feature(
    backbone: Backbone, hidden: Float[Tensor, "batch tokens dim"], prenorm: bool
) -> Float[Tensor, "batch dim"]:
    """The image feature for the probe, from the tokens before or after the final norm."""
    tokens = hidden if prenorm else backbone.final_norm(hidden)
    return image_feature(tokens, backbone.prefix, backbone.has_cls)


@dataclass(frozen=True)
class Classifier:
    """A classifier that maps the final tokens, before the norm, to logits.

    A native head has its own numbering of the classes; ``columns`` gives its class for each class of the data.
    """

    backbone: Backbone
    probe: LinearProbe | None = None  # None means the checkpoint's own head
    prenorm: bool = False
    columns: Int[Tensor, " classes"] | None = None

    @property
    def name(self) -> str:
        return NATIVE if self.probe is None else PROBE

    def logits(self, hidden: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch outputs"]:
        if self.probe is None:
            return self.backbone.classify(hidden)
        return self.probe.logits(final_feature(self.backbone, hidden, self.prenorm))

    def own_labels(self, labels: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        """Labels of the data in the classifier's own numbering."""
        return labels if self.columns is None else self.columns[labels]

    def of_data(self, logits: Float[Tensor, "batch outputs"]) -> Float[Tensor, "batch classes"]:
        """The logits of the data's classes; a head may have more classes."""
        return logits if self.columns is None else logits[:, self.columns]
