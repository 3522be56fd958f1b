"""Export to ONNX with fixed shapes: the numbers of tokens are constants of the graph."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from redi.checks import require_finite
from redi.deploy.engines import UNORDERED, Run, installed, onnx_libraries
from redi.deploy.model import Accelerated
from redi.errors import ConfigError, ExportError
from redi.records.drafts import draft
from redi.records.outputs import MARK

#: Largest difference from PyTorch, relative to the largest output, that an export may have.
TOLERANCE = 1e-3
INPUT = "pixel_values"


@dataclass(frozen=True)
class Exported:
    """An exported file that was run and compared with PyTorch."""

    file: Path
    inputs: tuple[int, ...]
    outputs: tuple[str, ...]
    differences: dict[str, float]  # per engine, the largest from PyTorch, relative to the largest output
    bytes: int


@torch.no_grad()
def export(model: Accelerated, file: str | Path, pixels: Float[Tensor, "batch channels height width"]) -> Exported:
    """Write ``model`` for inputs of the shape of ``pixels``, run it in every engine that is installed and compare.

    ``pixels`` should be real images, normalised: the tokens of noise are nearly equal, so rounding may change which
    ones are merged. A blank image, whose patches are all equal, is compared too. The file is written only if the
    outputs agree in all engines (:mod:`redi.deploy.engines`).
    """
    _, sort = onnx_libraries()
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
    expected = [(given, named(given)) for given in (pixels, torch.zeros_like(pixels))]
    for _, outputs in expected:
        for name, value in zip(named.names, outputs, strict=True):
            require_finite(value, f"The {name} of the model")
    try:
        with draft(file) as written:
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
                require_ordered(program)
                program.model.doc_string = MARK
                program.save(written, external_data=False)
            differences = {name: _difference(load(written), expected) for name, load in installed().items()}
            for name, difference in differences.items():
                if not difference <= TOLERANCE:
                    raise ExportError(
                        f"The outputs of {name} differ from PyTorch's by {difference:.1g} of the largest output, more "
                        f"than {TOLERANCE:g}: nothing was written."
                    )
    except ExportError:
        raise
    except OSError as error:
        raise ExportError(f"{file} cannot be written: {error.strerror or error}.") from error
    except Exception as error:  # whatever the exporter or the runtime raises
        message = " ".join(str(error).split())
        raise ExportError(f"The export failed ({type(error).__name__}): {message[:200]}") from error
    return Exported(file, tuple(pixels.shape), named.names, differences, file.stat().st_size)


def require_ordered(program: Any) -> None:
    """Refuse a graph that reads indices of an unstable sort: of equal values, engines may take different ones first."""
    for node in program.exported_program.graph.nodes:
        if node.target in UNORDERED and any(output.args[1] == 1 and output.users for output in node.users):
            raise ExportError(f"The indices of {node.target} differ between engines if values are equal: sort stably.")


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


def _difference(run: Run, expected: Sequence[tuple[Tensor, Sequence[Tensor]]]) -> float:
    """The largest difference over inputs and outputs, relative to the largest value of an output; it keeps nan."""
    each = []
    for given, outputs in expected:
        for output, wanted in zip(run(given), outputs, strict=True):
            wanted = wanted.float().cpu()
            scale = wanted.abs().max().clamp(min=torch.finfo(torch.float32).tiny)
            each.append((output.float() - wanted).abs().max() / scale)
    return torch.stack(each).max().item()
