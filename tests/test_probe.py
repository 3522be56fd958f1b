"""The image feature and the linear classifier."""

from math import cos, pi

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from redi.errors import CorpusError, InvalidInput
from redi.probe import LinearProbe, image_feature


def blobs(images: int = 300, classes: int = 5, width: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(classes, width, generator=generator)
    labels = torch.arange(images) % classes
    noise = torch.randn(images, width, generator=generator)
    return normalize(centres[labels] + 0.8 * noise, dim=1), labels


def test_feature_by_hand_leaves_registers_out() -> None:
    cls, register, patches = [3.0, 4.0], [99.0, -99.0], [[0.0, 1.0], [0.0, 3.0]]
    feature = image_feature(torch.tensor([[cls, register, *patches]]), prefix=2)
    expected = normalize(torch.tensor([[0.3, (0.8 + 1.0) / 2]]), dim=1)
    torch.testing.assert_close(feature, expected)


def test_feature_equals_a_naive_loop_and_ignores_the_order_of_patches() -> None:
    tokens = torch.randn(4, 11, 6)
    feature = image_feature(tokens, prefix=3)
    for image in range(4):
        cls = tokens[image, 0] / tokens[image, 0].norm()
        mean = sum((tokens[image, t] for t in range(3, 11)), torch.zeros(6)) / 8
        both = (cls + mean / mean.norm()) / 2
        torch.testing.assert_close(feature[image], both / both.norm())
    order = torch.cat([torch.arange(3), 3 + torch.randperm(8)])
    torch.testing.assert_close(image_feature(tokens[:, order], prefix=3), feature)


def test_steps_equal_adamw_with_cosine_decay_written_out() -> None:
    """Several batches per epoch and a strong decay, in float64, against the textbook's formulas."""
    features, labels = blobs(images=70)
    settings = {"batch_size": 32, "learning_rate": 0.05, "weight_decay": 0.5}
    probe = LinearProbe(5, epochs=3, min_steps=1, **settings).fit(features, labels)  # type: ignore[arg-type]
    assert probe.steps_ == 9
    generator = torch.Generator().manual_seed(0)
    parameters = torch.zeros(5, 17, dtype=torch.float64)  # weight and bias side by side
    first, second = torch.zeros(2, 5, 17, dtype=torch.float64)
    inputs = torch.cat([features, torch.ones(70, 1)], dim=1).double()
    step = 0
    for _ in range(3):
        batches = list(torch.randperm(70, generator=generator).split(32))
        assert sorted(torch.cat(batches).tolist()) == list(range(70)), "an epoch sees every image"
        for chosen in reversed(batches):
            x, target = inputs[chosen], torch.eye(5, dtype=torch.float64)[labels[chosen]]
            gradient = ((x @ parameters.T).softmax(1) - target).T @ x / len(chosen)
            rate = 0.05 * (1 + cos(pi * step / 9)) / 2
            step += 1
            first = 0.9 * first + 0.1 * gradient
            second = 0.999 * second + 0.001 * gradient**2
            corrected = second / (1 - 0.999**step)
            parameters = parameters * (1 - rate * 0.5)
            parameters -= rate * (first / (1 - 0.9**step)) / (corrected.sqrt() + 1e-8)
    torch.testing.assert_close(probe.weight_, parameters[:, :16].float(), atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(probe.bias_, parameters[:, 16].float(), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("kind", [torch.float16, torch.float64])
def test_other_precisions_and_small_labels_are_taken_in_any_mode(kind: torch.dtype) -> None:
    features, labels = blobs()
    expected = LinearProbe(5, min_steps=30).fit(features.to(kind).float(), labels)
    with torch.inference_mode():
        probe = LinearProbe(5, min_steps=30).fit(features.to(kind), labels.to(torch.int16))
    torch.testing.assert_close(probe.weight_, expected.weight_)


def test_the_recipe_is_the_papers() -> None:
    probe = LinearProbe(1000)
    assert (probe.epochs, probe.batch_size, probe.learning_rate, probe.weight_decay) == (20, 4096, 3e-3, 1e-2)


def test_steps_are_the_papers_epochs_on_large_data_and_enough_on_small() -> None:
    features, labels = blobs()
    small = LinearProbe(5, min_steps=30, batch_size=100).fit(features, labels)
    assert small.steps_ == 60  # 20 epochs of 3 batches
    assert LinearProbe(5, min_steps=75, batch_size=100).fit(features, labels).steps_ == 75


def test_first_step_equals_a_hand_made_adamw_step() -> None:
    # From zero weights AdamW's first step is lr * sign(gradient); decay of zero is zero.
    features, labels = blobs(images=50)
    probe = LinearProbe(5, epochs=1, min_steps=1).fit(features, labels)
    residual = torch.full((50, 5), 0.2)
    residual[torch.arange(50), labels] -= 1
    gradient = residual.T @ features / 50
    expected = -3e-3 * gradient / (gradient.abs() + 1e-8)
    torch.testing.assert_close(probe.weight_, expected, atol=1e-6, rtol=1e-3)


def test_it_finds_the_optimum_that_a_second_order_method_finds() -> None:
    """Without weight decay and with overlapping classes the optimum is finite; L-BFGS gives it."""
    features, labels = blobs(images=400, width=4)
    probe = LinearProbe(5, min_steps=1500, learning_rate=0.1, weight_decay=0).fit(features, labels)
    weight = torch.zeros(5, 4, requires_grad=True)
    bias = torch.zeros(5, requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=500, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(features @ weight.T + bias, labels)
        loss.backward()
        return loss

    optimiser.step(closure)
    best = closure().item()
    loss = torch.nn.functional.cross_entropy(probe.logits(features), labels).item()
    assert loss == pytest.approx(best, abs=1e-3)


def test_same_seed_same_weights() -> None:
    features, labels = blobs()
    first, second = (LinearProbe(5, min_steps=40, batch_size=64).fit(features, labels) for _ in "ab")
    assert torch.equal(first.weight_, second.weight_)
    other = LinearProbe(5, min_steps=40, batch_size=64, seed=1).fit(features, labels)
    assert not torch.equal(first.weight_, other.weight_)
    accuracy = (first.logits(features).argmax(1) == labels).float().mean()
    assert accuracy > 0.8


@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_refused() -> None:
    features, labels = blobs()
    with pytest.raises(InvalidInput, match="Labels must lie in"):
        LinearProbe(4).fit(features, labels)
    with pytest.raises(InvalidInput, match="finite"):
        LinearProbe(5).fit(features / 0, labels)
    with pytest.raises(InvalidInput, match="300 features but 299 labels"):
        LinearProbe(5).fit(features, labels[1:])
    with pytest.raises(CorpusError, match="no training images"):
        LinearProbe(5).fit(features[:0], labels[:0])
    with pytest.raises(InvalidInput, match="positive batch size"):
        LinearProbe(5, batch_size=0).fit(features, labels)
    with pytest.raises(InvalidInput, match="prefix must be"):
        image_feature(torch.rand(1, 4, 3), prefix=4)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["learning_rate", "weight_decay"])
def test_rates_that_are_negative_or_not_finite_are_refused(name: str, value: float) -> None:
    probe = LinearProbe(2)
    setattr(probe, name, value)
    with pytest.raises(InvalidInput, match=f"{name.replace('_', ' ')} must be finite and not negative, not {value}"):
        probe.fit(torch.eye(2), torch.arange(2))
