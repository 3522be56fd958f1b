"""BF16 and dynamic int8, alone and together with `accelerate`: speed and distance from the dense model in FP32.

    python experiments/precision.py --backbone CHECKPOINT --images FOLDER [--cost 0.65] [--batches 1 8] [--pairs 20]

int8 is torch's dynamic quantisation of all linear layers: weights per channel, activations per call. Torch calls it
deprecated in favour of torchao, which would be a new dependency. Speed is the median over interleaved calls of the time
of dense FP32 over the time of the row, from pixels to logits. The first lines say what the processor can do itself.
"""

import warnings
from copy import deepcopy
from functools import partial
from statistics import median

import torch
from torch import Tensor, nn
from torch.ao.quantization import per_channel_dynamic_qconfig, quantize_dynamic

from common import arguments, development
from redi.deploy import Accelerated, Setting
from redi.speed.measure import interleave

INSTRUCTIONS = {"BF16": ("avx512_bf16", "amx_bf16"), "int8": ("avx512_vnni", "avx_vnni", "amx_int8")}


def in_bf16(model: Accelerated) -> Accelerated:
    return deepcopy(model).to(torch.bfloat16)


def in_int8(model: Accelerated) -> Accelerated:
    quantised = deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantize_dynamic(quantised.backbone.model, {nn.Linear: per_channel_dynamic_qconfig}, inplace=True)
    return quantised


def speedups(models: dict[str, Accelerated], pixels: Tensor, pairs: int) -> dict[str, float]:
    calls = {name: partial(model, pixels.to(model.dtype)) for name, model in models.items()}
    with torch.inference_mode():
        interleave(calls, 2)
        seconds = interleave(calls, pairs)
    first, *_ = seconds.values()
    return {name: median(a / b for a, b in zip(first, own, strict=True)) for name, own in seconds.items()}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--cost", type=float, default=0.65)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--pairs", type=int, default=20, help="timed calls per row")
    options = parser.parse_args()
    available = torch.cpu.get_capabilities()
    for what, names in INSTRUCTIONS.items():
        own = [name for name in names if available.get(name)]
        print(f"{what}: {', '.join(own) if own else 'this processor has no such instructions, so it can only lose'}")
    known = development(options.backbone, options.images, options.limit, options.classes)
    dense = Accelerated(known.backbone, Setting(1.0))
    dense.prefix_only = False
    plain = {"dense": dense, f"accelerate {options.cost:g}": Accelerated(known.backbone, Setting(options.cost))}
    precisions = {"FP32": lambda model: model, "BF16": in_bf16, "int8": in_int8}
    models = {f"{row}, {name}": make(model) for row, model in plain.items() for name, make in precisions.items()}
    inputs = {batch: known.backbone.preprocessing.normalise(known.pixels[:batch]) for batch in options.batches}
    speeds = {batch: speedups(models, pixels, options.pairs) for batch, pixels in inputs.items()}
    print(f"{len(known.pixels)} images, {torch.get_num_threads()} threads\n")
    print("| row | KL (standard error) | agree |" + "".join(f" batch {batch} |" for batch in speeds))
    print("|---" * (3 + len(speeds)) + "|")
    for name, model in models.items():
        row = known.row(name, model)
        cells = [f"{row.kl[0]:.4f} ({row.kl[1]:.4f})", f"{row.agreement:.1f}"]
        print(
            " | ".join(["| " + name, *cells, *(f"{speed[name]:.2f}" for speed in speeds.values())]) + " |", flush=True
        )


if __name__ == "__main__":
    main()
