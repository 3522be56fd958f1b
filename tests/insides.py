"""Made-up blocks for progressive reducers to look at."""

import torch
from torch.nn.functional import pad

from redi.reduction import Inside


def make_inside(n: int, prefix: int, block: int = 0, batch: int = 3, seed: int = 0) -> Inside:
    """Random tokens that already stand for one to four patches each."""
    generator = torch.Generator().manual_seed(seed)
    query, key, value = torch.randn(3, batch, 4, prefix + n, 6, generator=generator)
    sizes = torch.randint(1, 5, (batch, n), generator=generator).float()
    return Inside(
        patches=torch.randn(batch, n, 5, generator=generator),
        sizes=sizes,
        scores=None,
        query=query,
        key=key,
        value=value,
        bias=pad(sizes.log(), (prefix, 0))[:, None, None],
        scale=6**-0.5,
        prefix=prefix,
        block=block,
        depth=4,
    )
