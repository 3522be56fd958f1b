"""Accelerated models are frozen, so no test here needs gradients."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield
