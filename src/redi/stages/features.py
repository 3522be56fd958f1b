"""Patch features of the corpus: one forward pass per image serves every codebook."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from redi.errors import ImageError
from redi.images.loader import Batch
from redi.runs.cache import CachedImages, FeatureCache, Features
from redi.runs.folder import Run
from redi.runs.passes import Pass
from redi.stages.words import codebook_blocks

#: Name of the TF-IDF codebook. The codebooks of other blocks are called "block3" and so on.
MAIN = "main"

Step = Callable[[Batch, Mapping[str, Any]], Mapping[str, Tensor]]


def block_of(run: Run, book: str) -> int:
    """The block after which a codebook's features are taken."""
    return run.backbone.depth if book == MAIN else int(book.removeprefix("block"))


def patch_features(
    run: Run, batch: Batch, fill_cache: bool = False, embedding: bool = False
) -> tuple[Tensor, dict[int, Tensor]]:
    """Return (final tokens, patch features after each block with a codebook, the last block included).

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
    for block in codebook_blocks(backbone.depth):
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
    cache = feature_cache(run)
    if first:
        return Pass(name, run.dataset(run.training), step, sums, flush=cache.flush if cache else None)
    decoded = run.load("decoded")["indices"].tolist()
    if cache is not None and not embedding and run.ranks.share(partial(cache.open, cache_key(run))):
        if not run.ranks.is_main:
            cache.open(cache_key(run))
        images = CachedImages(cache, run.training.labels, partial(_recomputed, run, cache))
        return Pass(name, images, step, sums, decoded, forwards=0)
    return Pass(name, run.dataset(run.training), step, sums, decoded)


def _recomputed(run: Run, cache: FeatureCache, indices: Sequence[int]) -> Features:
    """The features of images from the images themselves; they replace those in the cache."""
    (batch,) = run.dataset(run.training).batches([indices], workers=0)
    if batch.skipped:
        raise ImageError(f"{batch.skipped[0][1]} It could be decoded when the cache was made: restore the file.")
    patch_features(run, batch, fill_cache=True)
    features = cache.read(indices)
    assert features is not None
    return features


def cache_key(run: Run) -> dict[str, Any]:
    return run.key("cache", "train", blocks=codebook_blocks(run.backbone.depth))


def feature_cache(run: Run) -> FeatureCache | None:
    if run.config.runtime.cache == "none":
        return None
    if run.cache is None:
        geometry, images = run.backbone.geometry, len(run.training.labels)
        blocks = tuple(codebook_blocks(geometry.depth))
        run.cache = FeatureCache(run.folder / "cache", blocks, images, geometry.patches, geometry.width)
    return run.cache
