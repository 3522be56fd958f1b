"""Does an exported model compute in every engine what PyTorch computes, on photos and on images with equal patches?

    python experiments/engines.py --backbone CHECKPOINT --images FOLDER --limit 64 --classes all [--cost 0.65]
        [--task dense] [--size 336] [--batches 1 8]

*Blank* are images of one colour, from black to white; *half* are the photos with a blank left half. PyTorch reads each
image alone, so a batch of 8 also says whether an image alone and in a batch give the same. *Difference* is relative to
the largest output. *Cosine* is the smallest over all outputs, with PyTorch's. KL and *agree* are from the dense model;
a backbone without a head has neither, and its tokens are compared. PyTorch's own line compares its batches of 8.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from common import PARITY, arguments
from redi.backbone import load_backbone
from redi.deploy import Accelerated, Setting
from redi.deploy.engines import Run, installed
from redi.deploy.export import export
from redi.images import open_images
from redi.images.labelled import spread_evenly
from redi.images.loader import ViewDataset
from redi.runs.pictures import decode
from redi.statistics import divergence

BATCHES = (1, 8)


def in_torch(model: Accelerated) -> Run:
    return lambda pixels: [*model(pixels).values()][:1]


def outputs(run: Run, pixels: Tensor, batch: int) -> Tensor:
    """The first output, logits or tokens, of whole batches; the last one is filled up with the first images."""
    missing = -len(pixels) % batch
    filled = torch.cat([pixels, pixels[:1].expand(missing, -1, -1, -1)])
    return torch.cat([run(part)[0] for part in filled.split(batch)])[: len(pixels)]


def line(name: str, own: Tensor, wanted: Tensor, dense: Tensor | None) -> str:
    difference = ((own - wanted).abs().max() / wanted.abs().max()).item()
    cells = [name, f"{difference:.1e}", f"{cosine_similarity(own, wanted, dim=-1).min():.6f}", "-", "-"]
    if dense is not None:
        agreeing = int((own.argmax(dim=1) == dense.argmax(dim=1)).sum())
        cells[3:] = [f"{divergence(dense, own).mean():.4f}", f"{agreeing} of {len(own)}"]
    return f"| {' | '.join(cells)} |"


@torch.inference_mode()
def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--cost", type=float, default=0.65)
    parser.add_argument("--task", choices=("classify", "dense"), default="classify")
    parser.add_argument("--size", type=int, default=0, help="of the crops, in pixels; 0 means that of the model")
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    options = parser.parse_args()
    backbone = load_backbone(options.backbone)
    backbone = backbone.at_size(options.size) if options.size else backbone
    folder = open_images(options.images)
    usable = [k for k, label in enumerate(folder.labels) if PARITY.get(options.classes) in (None, label % 2)]
    chosen = spread_evenly(usable, options.limit)
    count = len(chosen)
    pictures, _ = decode(ViewDataset(folder, backbone.preprocessing, False, 0), chosen, 0)
    photos = backbone.preprocessing.normalise(pictures)
    levels = torch.arange(0, 256, 51, dtype=torch.uint8).view(-1, 1, 1, 1)
    half = photos.clone()
    half[..., : photos.shape[3] // 2] = 0
    images = {
        "photos": photos,
        "half": half[: max(count // 4, 1)],
        "blank": backbone.preprocessing.normalise(levels.expand(-1, *pictures.shape[1:]).contiguous()),
    }
    model = Accelerated(backbone, Setting(options.cost, task=options.task))
    alone = {name: outputs(in_torch(model), given, 1) for name, given in images.items()}
    dense = {name: outputs(in_torch(Accelerated(backbone, Setting(1.0))), given, 8) for name, given in images.items()}
    print(f"{count} photos, cost {model.cost():.3f}, {model.grid[0]}x{model.grid[1]} patches\n")
    print("| engine, batch, images | difference | cosine | KL | agree |")
    print("|---" * 5 + "|")
    runs = {"PyTorch": in_torch(model)}
    with TemporaryDirectory() as place:
        for batch in options.batches:
            file = export(model, Path(place) / "model.onnx", photos[:1].expand(batch, -1, -1, -1).contiguous()).file
            runs |= {engine: load(file) for engine, load in installed().items()}
            for engine, run in runs.items():
                for name, given in images.items():
                    row = outputs(run, given, batch)
                    logits = None if backbone.head is None else dense[name]
                    print(line(f"{engine}, {batch}, {name}", row, alone[name], logits), flush=True)


if __name__ == "__main__":
    main()
