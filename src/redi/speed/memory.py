"""Peak memory of a call."""

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveTensors(TorchDispatchMode):
    """Bytes of the tensor storages made inside the context: alive now, and at their peak.

    Storages that existed before (weights, input) and views add nothing. Memory that a kernel allocates and frees
    internally is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        self._track((args, kwargs), new=False)  # an input not seen so far existed before
        output = func(*args, **(kwargs or {}))
        self._track(output, new=True)
        return output

    def _track(self, values: Any, new: bool) -> None:
        for tensor in tree_leaves(values):
            if not isinstance(tensor, Tensor):
                continue
            storage = tensor.untyped_storage()
            address: int = storage._cdata
            if address not in self._storages:
                size = storage.nbytes() if new else 0
                # torch keeps the Python object of a storage for as long as the storage lives.
                self._storages[address] = weakref.ref(storage, partial(self._forget, address, size))
                self.live += size
                self.peak = max(self.peak, self.live)

    def _forget(self, address: int, size: int, _storage: object) -> None:
        del self._storages[address]
        self.live -= size


def peak_memory(call: Callable[[], object], device: torch.device) -> int:
    """Peak bytes of a call beyond what exists before it (weights, input). Its output counts."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device)) - int(before)
    # Not in inference mode, where composite operations would not be split into their parts.
    tensors = LiveTensors()
    with torch.inference_mode(False), torch.no_grad(), tensors:
        call()
    return tensors.peak
