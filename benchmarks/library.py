"""Speed of the library's inner loops, as ratios measured interleaved in one run.

    python benchmarks/library.py            # all four, about six minutes on two cores
    python benchmarks/library.py encoder    # one of: encoder, operator, capture, vocabulary

The backbone is a DINOv3 ViT-B/16 configuration with random weights, FP32, batch 16. Timing on a
shared machine drifts, so the two sides of a ratio always run one after the other, in alternating
order. The tables give the median and the quartiles of the ratios of these pairs.
"""

import sys
from collections.abc import Callable
from time import perf_counter

import faiss
import torch
from torch import Tensor
from torch.nn.functional import normalize
from transformers import DINOv3ViTConfig, DINOv3ViTModel

from redi.backbone import AttentionScores, Backbone
from redi.backbone.families import FAMILIES
from redi.budget import Budget
from redi.centroids import CentroidSums
from redi.images import Preprocessing
from redi.reduction import keep_merge_compress, reduce
from redi.vocabulary import CHUNK_IMAGES, rechunk

PAIRS = 20
BATCH = 16
Work = Callable[[], object]


def ratios(first: Work, second: Work, pairs: int = PAIRS) -> Tensor:
    """Time of ``first`` over time of ``second``, pair by pair; each pair in the other order."""
    first(), second()
    values = []
    for pair in range(pairs):
        seconds = {}
        for work in (first, second) if pair % 2 else (second, first):
            begin = perf_counter()
            work()
            seconds[work] = perf_counter() - begin
        values.append(seconds[first] / seconds[second])
    return torch.tensor(values)


def report(what: str, values: Tensor, target: str) -> None:
    low, middle, high = values.quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()
    print(f"| {what} | {middle:.3f} | {low:.3f} to {high:.3f} | {target} |", flush=True)


def vit_base() -> Backbone:
    torch.manual_seed(0)
    config = DINOv3ViTConfig(
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_register_tokens=4,
        patch_size=16,
        image_size=224,
    )
    preprocessing = Preprocessing(256, 224, (0.5,) * 3, (0.5,) * 3)
    return Backbone(DINOv3ViTModel(config), FAMILIES["dinov3_vit"], None, preprocessing)


def encoder(backbone: Backbone) -> None:
    tokens = backbone.embed(torch.randn(BATCH, 3, 224, 224))
    scores = torch.rand(BATCH, 196)
    reduced = tokens.reduced(reduce(tokens.patches, scores))
    dense: Work = lambda: backbone.encode(tokens)  # noqa: E731
    report(
        "encode(201) / (reduce + encode(107))",
        ratios(dense, lambda: backbone.encode(tokens.reduced(reduce(tokens.patches, scores)))),
        "at least 1.90",
    )
    report("encode(201) / encode(107)", ratios(dense, lambda: backbone.encode(reduced)), "(1.92 analytic)")


def operator(backbone: Backbone) -> None:
    tokens = backbone.embed(torch.randn(BATCH, 3, 224, 224))
    scores = torch.rand(BATCH, 196)
    reduced = tokens.reduced(reduce(tokens.patches, scores))

    def shorten() -> None:
        tokens.reduced(keep_merge_compress(tokens.patches, scores, Budget(), (14, 14)))

    share = ratios(shorten, lambda: backbone.encode(reduced))
    report("operator / encode(107)", share, "at most 0.03")


def capture(backbone: Backbone) -> None:
    tokens = backbone.embed(torch.randn(BATCH, 3, 224, 224))

    def captured() -> None:
        scores = AttentionScores(backbone.depth, backbone.prefix, backbone.has_cls)
        backbone.encode(tokens, watch=scores.watches)
        scores.maps()

    watched = ratios(captured, lambda: backbone.encode(tokens))
    report("encode with all four attention scores / plain SDPA", watched, "at most 1.05")


def vocabulary(_: Backbone) -> None:
    images, width, words = 16 * CHUNK_IMAGES, 768, 512
    features = torch.randn(images, 196, width)
    rows = features.flatten(0, 1)
    centroids = normalize(torch.randn(words, width), dim=1)

    def one_pass() -> None:
        sums = CentroidSums(words, width, rows.device)
        for chunk in rechunk([features], CHUNK_IMAGES):
            sums.update(chunk, centroids)
        sums.centroids()

    def product() -> None:
        torch.matmul(rows, centroids.T)

    def chunked_product() -> None:
        for chunk in rows.split(CHUNK_IMAGES * 196):
            torch.matmul(chunk, centroids.T)

    report("features @ centroids.T / vocabulary pass", ratios(product, one_pass), "at least 0.85")
    report("the same product in chunks / vocabulary pass", ratios(chunked_product, one_pass), "at least 0.85")
    unit = normalize(rows, dim=1).numpy()
    start = centroids.numpy()

    def faiss_iteration() -> None:
        kmeans = faiss.Kmeans(width, words, niter=1, spherical=True, max_points_per_centroid=10**9)
        kmeans.train(unit, init_centroids=start)

    report("faiss iteration / vocabulary pass", ratios(faiss_iteration, one_pass), "at least 1")


BENCHMARKS = {"encoder": encoder, "operator": operator, "capture": capture, "vocabulary": vocabulary}


@torch.inference_mode()
def main() -> None:
    chosen = sys.argv[1:] or list(BENCHMARKS)
    if unknown := set(chosen) - set(BENCHMARKS):
        sys.exit(f"Unknown benchmark {unknown.pop()}; there are {', '.join(BENCHMARKS)}.")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {PAIRS} pairs each\n")
    print("| ratio | median | quartiles | target |\n|---|---|---|---|")
    backbone = vit_base()
    for name in chosen:
        BENCHMARKS[name](backbone)


if __name__ == "__main__":
    main()
