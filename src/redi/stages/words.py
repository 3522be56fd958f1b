"""Which blocks have codebooks of their own, and the typical patches of each word."""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from redi.early import early_blocks


def figure_blocks(depth: int) -> list[int]:
    """The blocks of Figure 2: a quarter, half, three quarters and the whole depth (3, 6, 9, 12)."""
    return sorted({max(1, round(depth * quarter / 4)) for quarter in (1, 2, 3, 4)})


def codebook_blocks(depth: int) -> list[int]:
    """The blocks that have a codebook besides the run's own: those of Figure 2 and those of the study ``early``."""
    return sorted({*figure_blocks(depth), *early_blocks(depth)})


class TypicalPatches:
    """The patches closest to each word's centroid, as (image, patch) with their cosine similarity.

    They are ordered by similarity, then image, then patch, so parts merge to the same result in any order. Empty
    places have image -1 and similarity -2.
    """

    def __init__(self, n_words: int, n_patches: int) -> None:
        self.similarity = torch.full((n_words, n_patches), -2.0)
        self.image = torch.full((n_words, n_patches), -1, dtype=torch.int64)
        self.patch = torch.full((n_words, n_patches), -1, dtype=torch.int64)

    def update(
        self,
        images: Int[Tensor, " batch"],
        words: Int[Tensor, "batch patches"],
        similarity: Float[Tensor, "batch patches"],
    ) -> None:
        words, similarity = words.cpu(), similarity.cpu()
        place = torch.arange(words.shape[1]).expand_as(words)
        image = images[:, None].expand_as(words)
        near = similarity >= self.similarity[words, -1]  # after a few batches almost none
        self._keep(words[near], similarity[near], image[near], place[near])

    def state(self) -> dict[str, Tensor]:
        return {"similarity": self.similarity, "image": self.image, "patch": self.patch}

    def merge_state(self, state: Mapping[str, Tensor]) -> None:
        words = torch.arange(len(self.image))[:, None].expand_as(self.image)
        self._keep(words.flatten(), state["similarity"].flatten(), state["image"].flatten(), state["patch"].flatten())

    def _keep(self, words: Tensor, similarity: Tensor, image: Tensor, patch: Tensor) -> None:
        """Merge candidates with the current patches and keep the best per word."""
        n_words, places = self.image.shape
        own = torch.arange(n_words)[:, None].expand_as(self.image).flatten()
        words = torch.cat([own, words])
        similarity = torch.cat([self.similarity.flatten(), similarity])
        image = torch.cat([self.image.flatten(), image])
        patch = torch.cat([self.patch.flatten(), patch])
        order = torch.arange(len(words))
        for column, descending in ((patch, False), (image, False), (similarity, True), (words, False)):
            order = order[column[order].argsort(stable=True, descending=descending)]
        counts = torch.bincount(words, minlength=n_words)
        first = counts.cumsum(0) - counts  # every word has at least its own places
        chosen = order[first[:, None] + torch.arange(places)]
        self.similarity, self.image, self.patch = similarity[chosen], image[chosen], patch[chosen]
