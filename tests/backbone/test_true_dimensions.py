"""The paper's own dimensions: a random DINOv3 ViT-B/16 through score, reduction and encoder, 201 tokens to 107.

The reference is written in numpy and float64 from the paper and the definition of DINOv3. It uses no function of the
package and none of transformers, only the weights.
"""

from dataclasses import dataclass
from math import hypot, pi, sqrt

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import DINOv3ViTConfig, DINOv3ViTModel

from families import scramble
from redi.backbone import AttentionScores, Backbone, Tokens
from redi.deploy.parts import wrap
from redi.reduction import Reduction, reduce
from redi.score import hybrid

Array = npt.NDArray[np.float64]

BLOCKS, WIDTH, HEADS, MLP, REGISTERS, PATCH, SIDE = 12, 768, 12, 3072, 4, 16, 14
PREFIX, PATCHES = 1 + REGISTERS, SIDE * SIDE
#: FP32 against float64, relative to the largest value; 2e-6 is measured.
TOLERANCE = 2e-5


class Reference:
    """DINOv3 for one image, from its weights."""

    def __init__(self, model: DINOv3ViTModel) -> None:
        self.weights = {name: tensor.double().numpy() for name, tensor in model.state_dict().items()}

    def embed(self, pixels: Array) -> Array:
        """CLS, registers, and the product of each 16x16 patch with the kernel."""
        kernel = self.weights["embeddings.patch_embeddings.weight"].reshape(WIDTH, -1)
        patches = [
            kernel @ pixels[:, row : row + PATCH, column : column + PATCH].ravel()
            for row in range(0, SIDE * PATCH, PATCH)
            for column in range(0, SIDE * PATCH, PATCH)
        ]
        patches = [patch + self.weights["embeddings.patch_embeddings.bias"] for patch in patches]
        cls, registers = self.weights["embeddings.cls_token"][0], self.weights["embeddings.register_tokens"][0]
        return np.concatenate([cls, registers, patches])

    def encode(self, tokens: Array, positions: list[int]) -> tuple[Array, list[Array]]:
        """Return (tokens after the last block, attention ``[heads, tokens, tokens]`` of each block)."""
        turns = [turn(position) for position in positions]
        attention = []
        for block in range(BLOCKS):
            heads, mixed = self.attend(block, self.norm(f"model.layer.{block}.norm1", tokens), turns)
            attention.append(heads)
            tokens = tokens + mixed * self.weights[f"model.layer.{block}.layer_scale1.lambda1"]
            hidden = self.linear(block, "mlp.up_proj", self.norm(f"model.layer.{block}.norm2", tokens))
            hidden = hidden * (1 + torch.from_numpy(hidden / sqrt(2)).erf().numpy()) / 2
            hidden = self.linear(block, "mlp.down_proj", hidden)
            tokens = tokens + hidden * self.weights[f"model.layer.{block}.layer_scale2.lambda1"]
        return tokens, attention

    def attend(self, block: int, tokens: Array, turns: list[Array]) -> tuple[Array, Array]:
        query, key, value = (self.linear(block, f"attention.{name}_proj", tokens) for name in "qkv")
        size = WIDTH // HEADS
        matrices, outputs = [], []
        for head in range(HEADS):
            columns = slice(head * size, (head + 1) * size)
            products = rotate(query[:, columns], turns) @ rotate(key[:, columns], turns).T / sqrt(size)
            powers = np.exp(products - products.max(axis=1, keepdims=True))
            matrices.append(powers / powers.sum(axis=1, keepdims=True))
            outputs.append(matrices[-1] @ value[:, columns])
        return np.array(matrices), self.linear(block, "attention.o_proj", np.concatenate(outputs, axis=1))

    def linear(self, block: int, name: str, tokens: Array) -> Array:
        """DINOv3's keys have no bias."""
        weight: Array = self.weights[f"model.layer.{block}.{name}.weight"]
        bias: Array = self.weights.get(f"model.layer.{block}.{name}.bias", np.zeros(1))
        return tokens @ weight.T + bias

    def norm(self, name: str, tokens: Array) -> Array:
        centred = tokens - tokens.mean(axis=1, keepdims=True)
        scaled: Array = centred / np.sqrt(centred.var(axis=1, keepdims=True) + 1e-5)
        weight: Array = self.weights[f"{name}.weight"]
        bias: Array = self.weights[f"{name}.bias"]
        return scaled * weight + bias


def turn(position: int) -> Array:
    """RoPE of a patch: 16 frequencies for its row, then 16 for its column; centres lie in -1 to 1."""
    centres = [2 * (index + 0.5) / SIDE - 1 for index in divmod(position, SIDE)]
    return np.array([2 * pi * centre / 100 ** (k / 16) for centre in centres for k in range(16)])


def rotate(vectors: Array, turns: list[Array]) -> Array:
    """Turn component k and component k + 32 of each patch as one complex number; the prefix has no position."""
    rotated = vectors.copy()
    for row, angles in enumerate(turns, start=PREFIX):
        plane = (vectors[row, :32] + 1j * vectors[row, 32:]) * np.exp(1j * angles)
        rotated[row] = np.concatenate([plane.real, plane.imag])
    return rotated


def norm01(values: Array) -> Array:
    span = values.max() - values.min()
    return (values - values.min()) / (span + 1e-8) if span > 1e-8 else np.zeros_like(values)


def attention_maps(attention: list[Array]) -> dict[str, Array]:
    """The four maps of Sec. "Attention scores", from the attention of all blocks."""
    last = attention[-1]
    path = np.eye(PREFIX + PATCHES)
    for heads in attention:
        step = heads.mean(axis=0) + np.eye(PREFIX + PATCHES)
        path = step / step.sum(axis=1, keepdims=True) @ path
    received = [sum(last[head, :, PREFIX + patch].sum() for head in range(HEADS)) for patch in range(PATCHES)]
    return {
        "mass": norm01(np.array(received) / (HEADS * (PREFIX + PATCHES))),
        "rollout": norm01(path[0, PREFIX:]),
        "cls_max": norm01(last[:, 0, PREFIX:].max(axis=0)),
        "cls_mean": norm01(last[:, 0, PREFIX:].mean(axis=0)),
    }


def keep_merge_compress(patches: Array, scores: Array) -> tuple[Array, list[int], list[int]]:
    """Return (tokens, the patch whose position each token has, the token that each patch went into)."""
    ranking = sorted(range(PATCHES), key=lambda patch: (-scores[patch], patch))
    kept, merged, compressed = sorted(ranking[:98]), ranking[98:147], ranking[147:]
    weight = [max(score, 0) + 1e-4 for score in scores]
    source = {patch: token for token, patch in enumerate(kept)}
    sums = {patch: (patches[patch].copy(), 1.0) for patch in kept}
    for patch in merged:
        best = max(kept, key=lambda other: (closeness(patches, patch, other), -other))
        total, mass = sums[best]
        sums[best] = total + weight[patch] * patches[patch], mass + weight[patch]
        source[patch] = source[best]
    tokens, positions = [total / mass for total, mass in sums.values()], list(kept)
    cell = {patch: 2 * (patch // SIDE // 7) + patch % SIDE // 7 for patch in compressed}
    for number in range(4):
        members = [patch for patch in compressed if cell[patch] == number] or compressed
        mass = sum(weight[patch] for patch in members)
        tokens.append(sum(weight[patch] * patches[patch] for patch in members) / mass)
        positions.append(members[0])
    source |= {patch: 98 + cell[patch] for patch in compressed}
    return np.array(tokens), positions, [source[patch] for patch in range(PATCHES)]


def closeness(patches: Array, first: int, second: int) -> float:
    """Eq. mergeassignment's criterion."""
    a, b = patches[first], patches[second]
    apart = hypot(first // SIDE - second // SIDE, first % SIDE - second % SIDE)
    return float(a @ b / sqrt((a @ a) * (b @ b)) + 0.30 * (1 - apart / (13 * sqrt(2))))


@dataclass(frozen=True)
class Both:
    """What the package computes for one image, and what the reference computes."""

    backbone: Backbone
    dense: tuple[torch.Tensor, Array]
    maps: tuple[dict[str, torch.Tensor], dict[str, Array]]
    score: tuple[torch.Tensor, Array]
    tokens: Tokens
    reduction: tuple[Reduction, tuple[Array, list[int], list[int]]]
    reduced: tuple[torch.Tensor, Array]
    normed: tuple[torch.Tensor, Array]


@pytest.fixture(scope="module")
def both() -> Both:
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": BLOCKS, "num_attention_heads": HEADS}
    sizes |= {"intermediate_size": MLP, "num_register_tokens": REGISTERS, "patch_size": PATCH, "image_size": 224}
    model: DINOv3ViTModel = scramble(DINOv3ViTModel(DINOv3ViTConfig(**sizes)))  # type: ignore[arg-type, assignment]
    generator = torch.Generator().manual_seed(3)
    pixels = torch.randn(1, 3, 224, 224, generator=generator)
    corpus = torch.rand(1, PATCHES, generator=generator)

    backbone = wrap(model)
    watched = AttentionScores(backbone.depth, backbone.prefix)
    tokens = backbone.embed(pixels)
    dense = backbone.encode(tokens, watch=watched.watches)
    maps = watched.maps()
    score = hybrid(corpus, maps["mass"])
    reduction = reduce(tokens.patches, score)
    shortened = tokens.reduced(reduction)
    reduced = backbone.encode(shortened)

    reference = Reference(model)
    sequence = reference.embed(pixels[0].double().numpy())
    hidden, attention = reference.encode(sequence, list(range(PATCHES)))
    own_maps = attention_maps(attention)
    own_score = norm01(norm01(corpus[0].double().numpy()) * norm01(own_maps["mass"]))
    own_reduction = keep_merge_compress(sequence[PREFIX:], own_score)
    short, _ = reference.encode(np.concatenate([sequence[:PREFIX], own_reduction[0]]), own_reduction[1])
    return Both(
        backbone,
        (dense, hidden),
        (maps, own_maps),
        (score, own_score),
        shortened,
        (reduction, own_reduction),
        (reduced, short),
        (backbone.final_norm(reduced), reference.norm("norm", short)),
    )


def differs(ours: torch.Tensor, expected: Array) -> float:
    """The largest difference, relative to the largest value."""
    return float(np.abs(ours[0].double().numpy() - expected).max() / np.abs(expected).max())


def test_the_dimensions_are_the_papers(both: Both) -> None:
    geometry = both.backbone.geometry
    assert (geometry.depth, geometry.width, geometry.grid, geometry.prefix) == (12, 768, (14, 14), 5)
    assert both.dense[0].shape == (1, 201, 768)
    assert both.tokens.sequence.shape == both.reduced[0].shape == (1, 107, 768)


def test_the_dense_pass_equals_the_reference(both: Both) -> None:
    assert differs(*both.dense) < TOLERANCE


@pytest.mark.parametrize("name", ["mass", "rollout", "cls_max", "cls_mean"])
def test_attention_scores_equal_the_reference(both: Both, name: str) -> None:
    ours, expected = both.maps[0][name], both.maps[1][name]
    assert expected.std() > 0.05, "the map says something"
    assert differs(ours, expected) < TOLERANCE


def test_the_hybrid_score_equals_the_reference(both: Both) -> None:
    assert differs(*both.score) < TOLERANCE


def test_the_operator_equals_the_reference(both: Both) -> None:
    ours, (tokens, positions, source) = both.reduction
    assert ours.positions[0].tolist() == positions
    assert ours.source[0].tolist() == source
    assert differs(ours.tokens, tokens) < TOLERANCE


def test_the_reduced_pass_equals_the_reference(both: Both) -> None:
    assert differs(*both.reduced) < TOLERANCE
    assert differs(*both.normed) < TOLERANCE
