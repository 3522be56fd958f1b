"""Patch features of the corpus: one forward pass per image serves every codebook."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from redi.images.loader import Batch
from redi.run.cache import CachedImages, FeatureCache
from redi.run.folder import Run
from redi.run.passes import Pass
from redi.stages.words import figure_blocks

#: Name of the TF-IDF codebook. The codebooks of Figure 2 are called "block3" and so on.
MAIN = "main"

Step = Callable[[Batch, Mapping[str, Any]], Mapping[str, Tensor]]


def block_of(run: Run, book: str) -> int:
    """The block after which a codebook's features are taken."""
    return run.backbone.depth if book == MAIN else int(book.removeprefix("block"))


def patch_features(
    run: Run, batch: Batch, fill_cache: bool = False, embedding: bool = False
) -> tuple[Tensor, dict[int, Tensor]]:
    """Return (final tokens, patch features after each block of Figure 2, the last block included).

    With ``embedding`` there are only the features before block 1, under key 0, and no final tokens. A cached batch
    has no final tokens either. A run with a cache rounds features to FP16 in every pass, whether they come from the
    cache or not.
    """
    if batch.features is not None:
        cached = {block: half.to(run.device).float() for block, half in batch.features.items()}
        return torch.empty(0), cached
    backbone = run.backbone
    tokens = backbone.embed(backbone.preprocessing.normalise(batch.pixels[:, 0].to(run.device)))
    if embedding:
        return torch.empty(0), {0: tokens.patches}
    patches: dict[int, Tensor] = {}
    hidden, at = tokens.sequence, 0
    for block in figure_blocks(backbone.depth):
        hidden = backbone.encode(tokens.advanced(hidden), start=at, stop=block)
        patches[block] = hidden[:, backbone.prefix :]
        at = block
    cache = feature_cache(run)
    if cache is not None:
        patches = {block: features.half().float() for block, features in patches.items()}
        if fill_cache:
            cache.write(batch.indices, patches)
    return hidden, patches


def corpus_pass(
    run: Run, name: str, step: Step, sums: Callable[[], dict[str, Any]], first: bool = False, embedding: bool = False
) -> Pass:
    """A pass over the corpus that reads the cache if it is complete, and the images otherwise.

    The ``first`` pass and a pass over embeddings always read the images. Later passes leave out the images that the
    first pass could not decode.
    """
    if first:
        return Pass(name, run.dataset(run.training), step, sums)
    decoded = run.load("decoded")["indices"].tolist()
    cache = feature_cache(run)
    if cache is not None and not embedding and run.ranks.share(lambda: cache.is_complete(cache_key(run))):
        return Pass(name, CachedImages(cache, run.training.labels), step, sums, decoded)
    return Pass(name, run.dataset(run.training), step, sums, decoded)


def cache_key(run: Run) -> dict[str, Any]:
    return run.key("cache", "train")


def feature_cache(run: Run) -> FeatureCache | None:
    if run.config.runtime.cache == "none":
        return None
    geometry = run.backbone.geometry
    blocks = tuple(figure_blocks(geometry.depth))
    return FeatureCache(run.folder / "cache", blocks, len(run.training.labels), geometry.patches, geometry.width)
