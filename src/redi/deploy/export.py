"""Export to ONNX with fixed shapes: the numbers of tokens are constants of the graph."""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from redi.checks import require_finite
from redi.deploy.engines import UNORDERED, installed, onnx_libraries
from redi.deploy.model import Accelerated
from redi.errors import ConfigError, ExportError, RediError
from redi.records.drafts import draft
from redi.records.outputs import MARK, require_replaceable

#: Largest difference from PyTorch, relative to the largest output, that an export may have.
TOLERANCE = 1e-3
INPUT = "pixel_values"
#: Noise on a blank image, in normalised pixels, that shows whether its outputs are settled; and how often it is drawn.
#: It is somewhat more than rounding, so that only what rounding decides is left out.
NOISE, DRAWS = 3e-6, 8


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
    ones are merged. A blank image, whose patches are all equal, is compared too if PyTorch's own outputs for it are
    settled (:func:`_spread`). The file is written only if the outputs agree in all engines
    (:mod:`redi.deploy.engines`).
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
    blank = torch.zeros_like(pixels)
    wanted, on_blank = named(pixels), named(blank)
    for outputs in (wanted, on_blank):
        for name, value in zip(named.names, outputs, strict=True):
            require_finite(value, f"The {name} of the model")
    settled = _spread(named, blank, on_blank) <= TOLERANCE
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
            differences = {}
            for name, load in installed().items():
                run = load(written)
                differences[name] = _difference(run(pixels), wanted)
                _require_close(name, differences[name], "")
                if settled:
                    _require_close(name, _difference(run(blank), on_blank), " on a blank image")
            require_replaceable(file)  # somebody may have put a file there in the meantime
    except RediError:
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


def _difference(outputs: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """The largest difference over the outputs, relative to the largest value of an output; it keeps nan."""
    each = []
    for output, own in zip(outputs, wanted, strict=True):
        own = own.float().cpu()
        scale = own.abs().max().clamp(min=torch.finfo(torch.float32).tiny)
        each.append((output.float().cpu() - own).abs().max() / scale)
    return torch.stack(each).max().item()


def _spread(named: Callable[[Tensor], Sequence[Tensor]], blank: Tensor, on_blank: Sequence[Tensor]) -> float:
    """How far PyTorch's outputs for a blank image differ from those with a noise as small as rounding.

    With rotary positions, the patches of a blank image differ by so little that rounding decides which of two equally
    good merges is made. An engine that rounds in another order may then make the other one, and be as right.
    """
    generator = torch.Generator().manual_seed(0)
    noise = NOISE * torch.randn(DRAWS, *blank.shape[1:], generator=generator)
    drawn = named(blank[:1] + noise.to(blank))
    return max(_difference([output[k] for output in drawn], [one[0] for one in on_blank]) for k in range(DRAWS))


def _require_close(engine: str, difference: float, where: str) -> None:
    if not difference <= TOLERANCE:
        raise ExportError(
            f"The outputs of {engine} differ from PyTorch's by {difference:.1g} of the largest output{where}, more "
            f"than {TOLERANCE:g}: nothing was written."
        )
