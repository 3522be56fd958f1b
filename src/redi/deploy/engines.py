"""The engines that an exported file is run in, and the one operator that their readings of ONNX differ in."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from redi.errors import ConfigError

#: Takes normalised pixels and returns the outputs of a file.
Run = Callable[[Float[Tensor, "batch channels height width"]], list[Tensor]]


def in_onnxruntime(file: Path, threads: int = 0) -> Run:
    """Open a file in onnxruntime, on the CPU. No number of threads means onnxruntime's own choice."""
    runtime, _ = onnx_libraries()
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = runtime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    return lambda pixels: [torch.from_numpy(output) for output in session.run(None, {given.name: pixels.cpu().numpy()})]


def in_openvino(file: Path) -> Run:
    """Open a file in OpenVINO, on the CPU and in FP32: where the processor can, OpenVINO's own choice is BF16."""
    import openvino

    model = openvino.Core().compile_model(file, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def run(pixels: Tensor) -> list[Tensor]:
        outputs = model(pixels.cpu().numpy())
        return [torch.from_numpy(outputs[output].copy()) for output in model.outputs]

    return run


#: Operators whose indices leave the order of equal values open. Every engine may choose another.
UNORDERED = (torch.ops.aten.sort.default, torch.ops.aten.topk.default)
#: What opens a file in each engine, by the name under which the engine is imported and installed.
ENGINES: dict[str, Callable[[Path], Run]] = {"onnxruntime": in_onnxruntime, "openvino": in_openvino}


def installed() -> dict[str, Callable[[Path], Run]]:
    """The engines of this machine. onnxruntime has to be among them."""
    onnx_libraries()
    return {name: load for name, load in ENGINES.items() if find_spec(name) is not None}


def onnx_libraries() -> tuple[Any, Any]:
    """Return (onnxruntime, a stable sort), because torch's exporter lacks a stable sort.

    ONNX's TopK of all entries sorts them, but OpenVINO does not put the lower index first if two are equal, and the
    reducers rely on that order. So equal values get one number, and a second TopK sorts the pairs (number, index), of
    which no two are equal.
    """
    try:
        import onnxruntime
        from onnxscript import INT64, opset18
    except ImportError:
        raise ConfigError("ONNX needs onnx, onnxruntime and onnxscript: pip install 'redi-vit[onnx]'.") from None

    op: Any = opset18

    def sort(values: Any, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
        assert stable
        one, axis = op.Constant(value_ints=[1]), op.Constant(value_ints=[dim])
        count = op.Gather(op.Shape(values), axis)
        ordered, index = op.TopK(values, count, axis=dim, largest=int(descending), sorted=1)
        first, zero = op.Sub(one, one), op.Sub(index, index)
        differs = op.Not(
            op.Equal(op.Slice(ordered, one, count, axis), op.Slice(ordered, first, op.Sub(count, one), axis))
        )
        steps = op.Concat(op.Slice(zero, first, one, axis), op.Cast(differs, to=INT64.dtype), axis=dim)
        pairs = op.Add(op.Mul(op.CumSum(steps, axis), count), index)
        _, place = op.TopK(pairs, count, axis=dim, largest=0, sorted=1)
        return ordered, op.GatherElements(index, place, axis=dim)

    return onnxruntime, sort
