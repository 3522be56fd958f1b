"""Some images of a data set as pixels in memory."""

import torch
from jaxtyping import UInt8
from torch import Tensor

from redi.images.labelled import refuse_damage
from redi.images.loader import ViewDataset
from redi.runs.progress import say, track


def decode(
    dataset: ViewDataset, chosen: list[int], workers: int
) -> tuple[UInt8[Tensor, "images channels height width"], list[int]]:
    """The reference crops of the chosen images, and which of them could be decoded."""
    plan = [chosen[start : start + 32] for start in range(0, len(chosen), 32)]
    pixels, kept, skipped = [], [], list[tuple[int, str]]()
    with track("images", len(chosen)) as advance:
        for batch in dataset.batches(plan, workers):
            pixels.append(batch.pixels[:, 0])
            kept += batch.indices
            skipped += batch.skipped
            advance(len(batch.indices) + len(batch.skipped))
    if skipped:
        refuse_damage(len(skipped), len(chosen), skipped[0][1])
        say(f"  {len(skipped)} images cannot be decoded and are left out")
    return torch.cat(pixels), kept
