"""Localisation: does the best patch of a score map lie on the object, and how well does the map cover it?

``share`` is the fraction of each patch that the object fills, from a mask in pixels. So areas are exact: a set of
patches is compared with the object pixel by pixel.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from redi.checks import require_same_shape
from redi.errors import InvalidInput
from redi.score import minmax

#: A patch is on the object if the object fills at least this share of it.
ON_OBJECT = 0.5
#: Thresholds of a min-max map, from the whole image to the best patch.
THRESHOLDS = tuple(step / 100 for step in range(101))

Maps = Float[Tensor, "images patches"]


def object_patches(share: Maps) -> Bool[Tensor, "images patches"]:
    """The patches on the object: at least half of the patch is object.

    An object that fills no patch by half lies on the patch with most of it, the first in raster order.
    """
    best = torch.zeros_like(share, dtype=torch.bool).scatter(1, share.argmax(dim=1, keepdim=True), True)
    return (share >= ON_OBJECT) | (best & (share > 0))


def pointing_game(scores: Maps, share: Maps) -> Bool[Tensor, " images"]:
    """Whether the best patch lies on the object (Zhang et al., ECCV 2016, with patches instead of pixels).

    The first patch in raster order wins a tie. There is no tolerance around the object.
    """
    require_same_shape(scores, share, "Score maps and objects")
    return object_patches(share).gather(1, scores.argmax(dim=1, keepdim=True))[:, 0]


def threshold_iou(scores: Maps, share: Maps) -> Float[Tensor, "images thresholds"]:
    """IoU of the object with the patches whose min-max score is at least t, for every t in ``THRESHOLDS``.

    ::

        P = {i : N(s)_i >= t},  intersection = sum_{i in P} o_i,  union = |P| + sum_{i not in P} o_i

    o_i is the share of patch i that is object. All areas are in patches, so this is the IoU of the pixels. A constant
    map covers the whole image at t = 0 and nothing above.
    """
    require_same_shape(scores, share, "Score maps and objects")
    area = share.sum(dim=1)
    if not bool((area > 0).all()):
        raise InvalidInput("An image without an object has no IoU.")
    maps = minmax(scores.float())
    # Eq. norm01 divides by the range plus 1e-8, so the best patch may be a little below 1.
    maps = torch.where(maps == maps.amax(dim=1, keepdim=True), maps.ceil(), maps)
    columns = []
    for threshold in THRESHOLDS:
        covered = maps >= threshold
        inside = torch.where(covered, share, 0).sum(dim=1)
        columns.append(inside / (covered.sum(dim=1) + area - inside))
    return torch.stack(columns, dim=1)


def rank_map(scores: Maps) -> Maps:
    """The share of an image's patches that are no better than each patch; raster order wins a tie.

    A threshold of this map takes the same number of patches in every image, as the paper's operator does. What counts
    is the order of the scores alone, not how they are spread.
    """
    order = scores.argsort(dim=1, descending=True, stable=True)
    places = torch.arange(scores.shape[1], 0, -1, device=scores.device) / scores.shape[1]
    return torch.zeros_like(scores, dtype=torch.float32).scatter(1, order, places.expand(len(scores), -1))


def ceiling_iou(share: Maps) -> Float[Tensor, " images"]:
    """The highest IoU that any set of patches of each image has with the object.

    Among all sets of k patches, the k patches with most of the object have the highest IoU. So the maximum over k of
    those is the maximum over all sets.
    """
    inside = share.sort(dim=1, descending=True).values.cumsum(dim=1)
    count = torch.arange(1, share.shape[1] + 1, device=share.device)
    return (inside / (count + share.sum(dim=1, keepdim=True) - inside)).amax(dim=1)


def best_threshold(iou: Float[Tensor, "images thresholds"]) -> int:
    """The number of the threshold with the highest mean IoU over the images; the lowest one wins a tie."""
    return int(iou.double().mean(dim=0).argmax())


def held_out_iou(
    iou: Float[Tensor, "images thresholds"], half: Int[Tensor, " images"]
) -> tuple[Float[Tensor, " images"], tuple[int, int]]:
    """The IoU of each image at the threshold that is best on the other half; ``half`` is 0 or 1 for each image.

    So no threshold is chosen on the images that it is measured on. The second value has the number of the threshold for
    the images of each half.
    """
    first, second = half == 0, half == 1
    if not (bool(first.any()) and bool(second.any())):
        raise InvalidInput("To choose a threshold on other images than it is measured on takes two images or more.")
    chosen = best_threshold(iou[second]), best_threshold(iou[first])
    return torch.where(first, iou[:, chosen[0]], iou[:, chosen[1]]), chosen
