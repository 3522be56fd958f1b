"""REDI without a label and without a dense pass: the approximations that the paper leaves to future work.

Everything that a score needs (visual words, a class, attention) comes from one place in a forward pass:

* ``block4``: the first four blocks of the same forward. The rest of its blocks work on the reduced sequence.
* ``glance``: all blocks on the image at half its resolution, which has a quarter of the patches. The forward at full
  resolution is then reduced from its beginning.

A place has words of its own features, a TF-IDF table of these words, and a linear probe whose posterior replaces the
true class. Maps of a glance are enlarged to the grid of the full resolution.
"""

import re
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import interpolate

from redi.attention import ATTENTION_SCORES
from redi.cost import Geometry
from redi.errors import ConfigError
from redi.grid import Grid
from redi.vocabulary import N_WORDS

#: The place that is a forward at half the resolution.
GLANCE = "glance"
_BLOCK = "block"


def early_blocks(depth: int) -> list[int]:
    """A quarter, a third and half of the depth (3, 4 and 6 of 12), before the last block."""
    return sorted({block for parts in (4, 3, 2) if (block := max(1, round(depth / parts))) < depth})


def early_places(depth: int) -> list[str]:
    """The places that the study ``early`` compares."""
    return [*(block_place(block) for block in early_blocks(depth)), GLANCE]


def block_place(block: int) -> str:
    """The place after a block, counted from 1."""
    return f"{_BLOCK}{block}"


def block_of_place(place: str) -> int:
    """The blocks of the reduced forward that a place needs: 0 for a glance, which has a forward of its own."""
    return 0 if place == GLANCE else int(place.removeprefix(_BLOCK))


def place_title(place: str) -> str:
    """A place in words, to follow the title of a score."""
    return "of a glance" if place == GLANCE else f"of block {block_of_place(place)}"


def require_place(place: str) -> None:
    """A :class:`ConfigError` if this is no name of a place."""
    number = place.removeprefix(_BLOCK)
    if place != GLANCE and not (place.startswith(_BLOCK) and re.fullmatch("[1-9][0-9]{0,3}", number)):
        raise ConfigError(f"A place is {GLANCE} or {_BLOCK} with the number of a block, not {place!r}.")


def glance_grid(grid: Grid) -> Grid:
    """Half of the rows and columns, rounded up."""
    return (grid[0] + 1) // 2, (grid[1] + 1) // 2


def shrink(
    pixels: Float[Tensor, "batch channels height width"], grid: Grid
) -> Float[Tensor, "batch channels small_height small_width"]:
    """The pixels of a glance: resized without aliasing, so that their patches make the grid of a glance."""
    rows, columns = glance_grid(grid)
    size = (pixels.shape[2] // grid[0] * rows, pixels.shape[3] // grid[1] * columns)
    return interpolate(pixels, size=size, mode="bicubic", align_corners=False, antialias=True)


def enlarge(maps: Float[Tensor, "batch small"], grid: Grid) -> Float[Tensor, "batch patches"]:
    """Maps of a glance on the full grid: bilinear between the centres of its patches; others are returned unchanged."""
    if maps.shape[1] == grid[0] * grid[1]:
        return maps
    small = maps.unflatten(1, glance_grid(grid))[:, None]
    return interpolate(small, size=grid, mode="bilinear", align_corners=False).flatten(1)


@dataclass(frozen=True)
class CorpusSize:
    """The sizes of a corpus that determine the cost of a place."""

    words: int = N_WORDS  # of the run's own vocabulary, which a glance uses
    block_words: int = N_WORDS  # of the codebook of each block
    classes: int = 1000


def place_cost(on: Geometry, place: str, size: CorpusSize, uses_corpus: bool, source: str, attention: str) -> int:
    """Multiply-adds that a place adds to those of the reduced forward.

    With n patches, T tokens and width D: a glance adds all its blocks. A corpus term of K words adds n K D for the
    assignment. A class that is not given adds D C for the probe over C classes; their posterior adds C K for the mean
    of their TF-IDF, which is one row of the table otherwise. The attention of all queries (``mass``) adds T^2 D, that
    of CLS alone T D, as the score declares: a fused kernel does not give it away. The lookup of the patches' words
    multiplies nothing.
    """
    glance = place == GLANCE
    grid = glance_grid(on.grid) if glance else on.grid
    patches, words = grid[0] * grid[1], size.words if glance else size.block_words
    tokens = on.prefix + patches
    cost = on.depth * on.block.cost(tokens, tokens) if glance else 0
    if uses_corpus:
        cost += patches * words * on.width
        cost += size.classes * on.width if source in ("predicted", "posterior") else 0
        cost += size.classes * words if source == "posterior" else 0
    if attention:
        cost += ATTENTION_SCORES[attention].queries(tokens) * tokens * on.width
    return cost
