"""The two classifiers of a row: the linear probe on the image feature, and the checkpoint's own head."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from families import save_checkpoint
from redi.backbone import Backbone, Classifier, load_backbone
from redi.backbone.classifier import NATIVE, PROBE, final_feature
from redi.errors import BackboneError
from redi.probe import LinearProbe

CLASSES = 5
#: The head's class for each of three classes of the data.
COLUMNS = torch.tensor([4, 0, 6])


@pytest.fixture(scope="module")
def headed(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    """A head that knows seven classes."""
    return load_backbone(save_checkpoint("vit_head", tmp_path_factory.mktemp("vit_head")))


@pytest.fixture(scope="module")
def probe() -> LinearProbe:
    generator = torch.Generator().manual_seed(3)
    features = normalize(torch.randn(20, 32, generator=generator), dim=1)
    return LinearProbe(CLASSES, min_steps=30).fit(features, torch.arange(20) % CLASSES)


def feature(tokens: Tensor, prefix: int) -> Tensor:
    """The image feature of one sequence after another, written out."""
    rows = []
    for sequence in tokens:
        cls, mean = sequence[0], sequence[prefix:].mean(dim=0)
        both = cls / cls.norm() + mean / mean.norm()
        rows.append(both / both.norm())
    return torch.stack(rows)


@pytest.mark.parametrize("prenorm", [False, True])
def test_the_probe_reads_the_feature_on_its_side_of_the_final_norm(
    dinov3: Backbone, pixels: Tensor, probe: LinearProbe, prenorm: bool
) -> None:
    hidden = dinov3.encode(dinov3.embed(pixels))
    expected = feature(hidden if prenorm else dinov3.final_norm(hidden), dinov3.prefix)
    torch.testing.assert_close(final_feature(dinov3, hidden, prenorm), expected)
    other = final_feature(dinov3, hidden, not prenorm)
    assert not torch.allclose(expected, other, atol=1e-3), "the final norm changes the feature"
    logits = Classifier(dinov3, probe, prenorm).logits(hidden)
    assert logits.shape == (3, CLASSES)
    torch.testing.assert_close(logits, expected @ probe.weight_.T + probe.bias_)


def test_a_probe_reads_after_the_norm_unless_told_otherwise(
    dinov3: Backbone, pixels: Tensor, probe: LinearProbe
) -> None:
    hidden = dinov3.encode(dinov3.embed(pixels))
    usual, after = Classifier(dinov3, probe), Classifier(dinov3, probe, prenorm=False)
    assert torch.equal(usual.logits(hidden), after.logits(hidden))


def test_a_probe_has_the_classes_of_the_data(dinov3: Backbone, probe: LinearProbe) -> None:
    classifier = Classifier(dinov3, probe)
    labels, logits = torch.tensor([2, 0, 4]), torch.randn(3, CLASSES)
    assert classifier.name == PROBE
    assert torch.equal(classifier.own_labels(labels), labels)
    assert torch.equal(classifier.of_data(logits), logits)


def test_the_native_head_gives_the_logits_of_all_its_classes(headed: Backbone, pixels: Tensor) -> None:
    hidden = headed.encode(headed.embed(pixels))
    classifier = Classifier(headed, columns=COLUMNS)
    assert classifier.name == NATIVE
    assert classifier.logits(hidden).shape == (3, 7)
    assert torch.equal(classifier.logits(hidden), headed.classify(hidden))


def test_columns_lead_from_the_classes_of_the_data_to_those_of_the_head(headed: Backbone) -> None:
    classifier = Classifier(headed, columns=COLUMNS)
    assert classifier.own_labels(torch.tensor([2, 0, 0, 1])).tolist() == [6, 4, 4, 0]
    logits = torch.arange(14.0).reshape(2, 7)
    assert classifier.of_data(logits).tolist() == [[4, 0, 6], [11, 7, 13]]


def test_a_decision_is_the_same_in_both_numberings(headed: Backbone, pixels: Tensor) -> None:
    """The best class of the data, in the head's numbering, is the best among the head's columns."""
    classifier = Classifier(headed, columns=COLUMNS)
    logits = classifier.logits(headed.encode(headed.embed(pixels)))
    best = classifier.of_data(logits).argmax(dim=1)
    for image, own in enumerate(classifier.own_labels(best).tolist()):
        assert logits[image, own] == logits[image, COLUMNS].max()


def test_a_head_with_the_classes_of_the_data_needs_no_columns(headed: Backbone) -> None:
    classifier = Classifier(headed)
    labels, logits = torch.tensor([6, 3]), torch.randn(2, 7)
    assert classifier.name == NATIVE
    assert torch.equal(classifier.own_labels(labels), labels)
    assert torch.equal(classifier.of_data(logits), logits)


def test_a_backbone_without_a_head_has_no_native_classifier(dinov3: Backbone, pixels: Tensor) -> None:
    hidden = dinov3.encode(dinov3.embed(pixels))
    with pytest.raises(BackboneError, match="no classifier of its own"):
        Classifier(dinov3).logits(hidden)
