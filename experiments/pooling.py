"""What should an attention pooling head, such as SigLIP's, read: the merged tokens with their sizes, or the full grid?

    python experiments/pooling.py --backbone CHECKPOINT --images FOLDER [--costs 0.55 0.65] [--train 1600]

No released tower with such a head is needed. A head of SigLIP's kind (a learned query attends to the patch tokens, then
an MLP) learns on dense patch tokens to give what the backbone's own head, or its CLS token, gives. It then reads the
tokens of the accelerated backbone on other images in three ways. Relevance is the rule for towers without a CLS token.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, normalize
from transformers import SiglipVisionConfig
from transformers.models.siglip.modeling_siglip import SiglipMultiheadAttentionPoolingHead

from common import arguments, development, mean_and_error
from redi.backbone import Backbone
from redi.backbone.families import FAMILIES
from redi.deploy import Accelerated, Setting
from redi.images.labelled import spread_evenly
from redi.reduction.relevance import default_relevance

BATCH = 50


class Pooled(nn.Module):
    """A pooling head under the name that the family's function looks for."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        config = SiglipVisionConfig(hidden_size=width, num_attention_heads=heads, intermediate_size=4 * width)
        self.head, self.use_head = SiglipMultiheadAttentionPoolingHead(config), True
        nn.init.normal_(self.head.probe, std=0.02)

    def forward(self, tokens: Tensor, sizes: Tensor | None = None) -> Tensor:
        pooled = FAMILIES["siglip_vision_model"].pool(self, tokens, sizes)
        assert pooled is not None
        return pooled


@torch.inference_mode()
def patches_and_cls(backbone: Backbone, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """The normed patch tokens and the CLS token of the dense model."""
    parts = []
    for chunk in pixels.split(BATCH):
        hidden = backbone.encode(backbone.embed(backbone.preprocessing.normalise(chunk)))
        parts.append(backbone.final_norm(hidden).half())
    tokens = torch.cat(parts)
    return tokens[:, backbone.prefix :], tokens[:, 0].float()


def train(pooled: Pooled, tokens: Tensor, goal: Tensor, steps: int) -> None:
    """Let the pooled output point where the CLS token points, image by image."""
    optimizer = torch.optim.AdamW(pooled.parameters(), lr=1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps)
    generator = torch.Generator().manual_seed(0)
    centre = goal.mean(dim=0)
    for _ in range(steps):
        batch = torch.randint(len(tokens), (64,), generator=generator)
        similarity = cosine_similarity(pooled(tokens[batch].float()), goal[batch] - centre, dim=-1)
        loss = (1 - similarity).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    print(f"trained: 1 - cosine to CLS {loss.item():.3f} on the last batch", flush=True)


@torch.inference_mode()
def readings(backbone: Backbone, pooled: Pooled, pixels: Tensor, cost: float) -> dict[str, Tensor]:
    """The pooled output of each image: of the merged tokens with and without sizes, and of the full grid."""
    relevance, prefix = default_relevance(has_cls=False), backbone.prefix
    found: dict[str, list[Tensor]] = {}
    for restore in ("residual", "copy"):
        plain = Backbone(backbone.encoder, backbone.family, None, backbone.preprocessing)  # type: ignore[arg-type]
        model = Accelerated(plain, Setting(cost, relevance=relevance, restore=restore))
        for chunk in pixels.split(BATCH):
            normalised = backbone.preprocessing.normalise(chunk)
            full = model(normalised).last_hidden_state[:, prefix:]
            found.setdefault(f"full grid, {restore}", []).append(pooled(full))
            if restore == "copy":
                short = model(normalised, reduced=True)
                tokens = short.last_hidden_state[:, prefix:]
                found.setdefault("merged tokens with sizes", []).append(pooled(tokens, short.sizes))
                found.setdefault("merged tokens, each once", []).append(pooled(tokens))
    return {name: torch.cat(parts) for name, parts in found.items()}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--costs", type=float, nargs="+", default=[0.55, 0.65, 0.75])
    parser.add_argument("--train", type=int, default=1000, help="images that the head learns on")
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    ground = development(options.backbone, options.images, options.limit + options.train, options.classes)
    backbone, pixels = ground.backbone, ground.pixels
    held = torch.zeros(len(pixels), dtype=torch.bool)
    held[spread_evenly(range(len(pixels)), options.limit)] = True
    tokens, cls = patches_and_cls(backbone, pixels[~held])
    torch.manual_seed(0)
    pooled = Pooled(backbone.width, backbone.config.num_attention_heads)
    with torch.enable_grad():
        train(pooled, tokens, cls, options.steps)
    pooled.eval()
    with torch.inference_mode():
        dense = normalize(pooled(patches_and_cls(backbone, pixels[held])[0].float()), dim=-1)
    print("\n| cost | what the head reads | 1 - cosine to dense (standard error) |\n|---|---|---|")
    for cost in options.costs:
        for name, output in readings(backbone, pooled, pixels[held], cost).items():
            mean, error = mean_and_error(1 - cosine_similarity(dense, output, dim=-1))
            print(f"| {cost:g} | {name} | {mean:.4f} ({error:.4f}) |", flush=True)


if __name__ == "__main__":
    main()
