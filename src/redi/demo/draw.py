"""Random numbers that depend only on (seed, index).

Only the raw uniform stream of PCG64 is used. NumPy keeps that stream stable, but reserves the right to change how
`normal`, `integers` or `choice` consume it, so this module does not use them.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Field = NDArray[np.floating[Any]]  # float32 in practice; NumPy's stubs widen results with Python floats


class Draw:
    """The random source of one picture. Another ``stream`` gives independent numbers for the same picture."""

    def __init__(self, seed: int, index: int, stream: int = 0) -> None:
        words = [seed, index, stream] if stream else [seed, index]
        self._stream = np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        return low + (high - low) * float(self._stream.random())

    def below(self, n: int) -> int:
        """An integer in [0, n)."""
        return min(int(self.uniform() * n), n - 1)

    def coin(self, probability: float) -> bool:
        return self.uniform() < probability

    def white(self, *shape: int) -> Field:
        """Independent uniform values in [0, 1)."""
        return self._stream.random(shape, dtype=np.float32)

    def noise(self, rows: int, columns: int, cell: float, stretch: float = 1.0) -> Field:
        """Smooth noise in [0, 1] whose blobs are about `cell` pixels high and `stretch` times as wide."""
        coarse = self.white(max(2, round(rows / cell) + 1), max(2, round(columns / (cell * stretch)) + 1))
        return resized(coarse, rows, columns)

    def fractal(self, rows: int, columns: int, cell: float, octaves: int = 3) -> Field:
        """Noise summed over octaves, each half as coarse and half as strong as the one before."""
        total = np.zeros((rows, columns), np.float32)
        weight = 0.0
        for octave in range(octaves):
            total += self.noise(rows, columns, cell / 2**octave) * np.float32(0.5**octave)
            weight += 0.5**octave
        return total / np.float32(weight)


def resized(field: Field, rows: int, columns: int) -> Field:
    """Bicubic enlargement of a small field, clipped back to [0, 1]."""
    image = Image.fromarray(field).resize((columns, rows), Image.Resampling.BICUBIC)
    return clipped(np.asarray(image, np.float32))


def clipped(field: Field) -> Field:
    """The field clipped to [0, 1]."""
    limited: Field = np.clip(field, 0.0, 1.0)
    return limited
