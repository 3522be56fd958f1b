"""Export to ONNX with fixed shapes: the numbers of tokens are constants of the graph."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from redi.deploy.model import Accelerated
from redi.errors import ConfigError, ExportError

#: Largest difference from PyTorch, relative to the largest output, that an export may have.
TOLERANCE = 1e-3
INPUT = "pixel_values"


@dataclass(frozen=True)
class Exported:
    """An exported file that was run and compared with PyTorch."""

    file: Path
    inputs: tuple[int, ...]
    outputs: tuple[str, ...]
    difference: float  # the largest from PyTorch, relative to the largest output
    bytes: int


@torch.no_grad()
def export(model: Accelerated, file: str | Path, pixels: Float[Tensor, "batch channels height width"]) -> Exported:
    """Write ``model`` for inputs of the shape of ``pixels``, run it in onnxruntime and compare.

    ``pixels`` should be real images, normalised: the tokens of noise are nearly equal, so rounding may change which
    ones are merged. The file is written only if the outputs agree.
    """
    runtime, sort = onnx_libraries()
    file = Path(file)
    if not file.parent.is_dir() or file.is_dir():
        raise ConfigError(f"{file} must be a file in a folder that exists.")
    if model.setting.second_look is not None:
        raise ConfigError("Second looks cannot be exported: a graph has one path for all images. Leave out adaptive.")
    if model.main_input_name != INPUT:
        raise ConfigError("A vision-language model cannot be exported: accelerate and export its image tower alone.")
    if model.dtype != torch.float32:
        raise ConfigError(f"Export a model in float32, not {model.dtype}: call model.float() first.")
    output = model(pixels)
    if not all(isinstance(value, Tensor) for value in output.values()):
        raise ConfigError("A backbone with feature maps cannot be exported: export the encoder or the whole model.")
    named = _Named(model, tuple(output.keys())).eval()
    expected = named(pixels)
    draft = file.with_name(f".{file.name}.draft")
    try:
        with _quiet_exporter():
            program = torch.onnx.export(
                named,
                (pixels,),
                dynamo=True,
                input_names=[INPUT],
                output_names=list(named.names),
                custom_translation_table={torch.ops.aten.sort.stable: sort},
                verbose=False,
            )
            assert program is not None
            program.save(draft, external_data=False)
        session = runtime.InferenceSession(draft, providers=["CPUExecutionProvider"])
        outputs = session.run(None, {INPUT: pixels.cpu().numpy()})
        difference = torch.tensor(list(map(_difference, outputs, expected))).max().item()  # max keeps nan
        if not difference <= TOLERANCE:
            raise ExportError(
                f"onnxruntime's outputs differ from PyTorch's by {difference:.1g} of the largest output, more than "
                f"{TOLERANCE:g}: nothing was written."
            )
        draft.replace(file)
    except ExportError:
        raise
    except OSError as error:
        raise ExportError(f"{file} cannot be written: {error.strerror or error}.") from error
    except Exception as error:  # whatever the exporter or the runtime raises
        message = " ".join(str(error).split())
        raise ExportError(f"The export failed ({type(error).__name__}): {message[:200]}") from error
    finally:
        draft.unlink(missing_ok=True)
    return Exported(file, tuple(pixels.shape), named.names, difference, file.stat().st_size)


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Silence torch's exporter, which warns about its own internals and about torchvision, which is not needed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


class _Named(nn.Module):
    """A model whose outputs are a plain tuple, in the order of ``names``."""

    def __init__(self, model: Accelerated, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, ...]:
        output = self.model(pixel_values)
        return tuple(output[name] for name in self.names)


def _difference(output: Any, expected: Tensor) -> float:
    expected = expected.float().cpu()
    scale = expected.abs().max().clamp(min=torch.finfo(torch.float32).tiny)
    return float((torch.from_numpy(output).float() - expected).abs().max() / scale)


def onnx_libraries() -> tuple[Any, Any]:
    """Return (onnxruntime, a stable sort), because torch's exporter lacks a stable sort.

    The sort is ONNX's TopK of all entries, which puts the lower index first if two are equal.
    """
    try:
        import onnxruntime
        from onnxscript import opset18
    except ImportError:
        raise ConfigError("ONNX needs onnx, onnxruntime and onnxscript: pip install 'redi-vit[onnx]'.") from None

    op: Any = opset18

    def sort(values: Any, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
        assert stable
        count = op.Gather(op.Shape(values), op.Constant(value_ints=[dim]))
        return op.TopK(values, count, axis=dim, largest=int(descending), sorted=1)

    return onnxruntime, sort
