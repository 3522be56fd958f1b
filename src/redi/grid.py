"""The patch grid: the row, column and summary cell of a patch, and the distance between two patches.

Patch ``i`` of a ``(rows, columns)`` grid lies in row ``i // columns``, column ``i % columns``.
"""

from math import hypot, isqrt

from jaxtyping import Float, Int
from torch import Tensor

from redi.errors import InvalidInput

Grid = tuple[int, int]


def resolve_grid(patches: int, grid: Grid | None) -> Grid:
    """The given grid, or the square grid if it is None; an error if it does not fit the number of patches."""
    if grid is None:
        side = isqrt(patches)
        if side * side != patches:
            raise InvalidInput(f"{patches} patches do not form a square grid; pass grid=(rows, columns).")
        return side, side
    if not (isinstance(grid, tuple) and len(grid) == 2 and all(isinstance(n, int) for n in grid)):
        raise InvalidInput(f"The grid must be (rows, columns), not {grid!r}.")
    rows, columns = grid
    if rows < 1 or columns < 1 or rows * columns != patches:
        raise InvalidInput(f"The grid {rows}x{columns} has {rows * columns} patches, but there are {patches}.")
    return rows, columns


def proximity(
    first: Int[Tensor, "batch first"], second: Int[Tensor, "batch second"], grid: Grid
) -> Float[Tensor, "batch first second"]:
    """Eq. mergeassignment: rho_ir = 1 - |g_i - g_r| / (the grid's diagonal), in [0, 1].

    The diagonal is 13 sqrt(2) on the paper's 14x14 grid. On a 1x1 grid every distance is 0.
    """
    rows, columns = grid
    down = first[:, :, None] // columns - second[:, None, :] // columns
    across = first[:, :, None] % columns - second[:, None, :] % columns
    diagonal = hypot(rows - 1, columns - 1) or 1.0
    return 1 - (down.square() + across.square()).float().sqrt() / diagonal


def cell_of(index: Int[Tensor, "*axes"], grid: Grid, cells: int) -> Int[Tensor, "*axes"]:
    """Raster index of the summary cell of a patch: row r lies in cell row ``r * cells // rows``."""
    rows, columns = grid
    return (index // columns * cells // rows) * cells + index % columns * cells // columns
