"""Speed and memory of whole corpus passes, as ratios measured in one run.

    python benchmarks/pipeline.py              # all, about twelve minutes on two cores
    python benchmarks/pipeline.py throughput   # one of: throughput, memory, cache, early

Two workers decode random JPEG images of 500x375, and the weights are random. ``throughput`` and
``cache`` use a DINOv3 ViT-B/16 configuration. ``memory`` uses a small one, so that thousands of images
take minutes. ``early`` measures what the codebooks of the early
blocks add to a pass, on a ViT-Ti/16.
"""

import json
import resource
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter

import torch
from PIL import Image
from torch.nn.functional import normalize
from transformers import DINOv3ViTConfig, DINOv3ViTModel

from library import Work, ratios, report
from redi.centroids import CentroidSums, nearest_words
from redi.pipeline import execute
from redi.runs.config import AnalysisConfig, RunConfig, RuntimeConfig, VocabularyConfig
from redi.runs.distributed import Ranks
from redi.runs.folder import Run
from redi.stages.features import MAIN, block_of, cache_key, feature_cache
from redi.stages.tfidf import build_table
from redi.stages.words import codebook_blocks, figure_blocks
from redi.tfidf import CorpusStatistics

BASE = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
TINY = {"hidden_size": 192, "intermediate_size": 768, "num_hidden_layers": 12, "num_attention_heads": 3}
SMALL = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}
CLASSES = 8
IMAGES = 96


def write_images(folder: Path, count: int) -> None:
    """``count`` files of 64 different pictures: hard links, so that thousands cost no disk."""
    originals = folder / "originals"
    originals.mkdir(parents=True)
    for number in range(64):
        noise = torch.randint(0, 256, (24, 32, 3), dtype=torch.uint8)
        picture = Image.fromarray(noise.numpy()).resize((500, 375), Image.Resampling.BICUBIC)
        picture.save(originals / f"{number}.jpg", quality=90)
    for split, images in (("train", count), ("val", CLASSES)):
        for number in range(images):
            target = folder / split / f"class{number % CLASSES}" / f"{number:06d}.jpg"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.hardlink_to(originals / f"{number % 64}.jpg")


def prepare(folder: Path, images: int, size: dict[str, int], cache: str = "none") -> RunConfig:
    torch.manual_seed(0)
    write_images(folder, images)
    config = DINOv3ViTConfig(**size, num_register_tokens=4, patch_size=16, image_size=224)  # type: ignore[arg-type]
    DINOv3ViTModel(config).save_pretrained(folder / "backbone")
    return run_config(folder, cache)


def run_config(folder: Path, cache: str = "none") -> RunConfig:
    return RunConfig(
        backbone=str(folder / "backbone"),
        train=str(folder / "train"),
        val=str(folder / "val"),
        out=str(folder / "run"),
        vocabulary=VocabularyConfig(n_words=512, n_passes=1),
        analysis=AnalysisConfig(n_words=512),
        runtime=RuntimeConfig(device="cpu", batch_size=16, workers=2, cache=cache),
    )


def tfidf_pass(run: Run) -> Work:
    """One whole corpus pass: decode, views, forward, assign, statistics, artefacts."""

    def work() -> None:
        for name in ("tfidf", "analysis/words"):
            run.path(name).unlink(missing_ok=True)
        with torch.no_grad():
            build_table(run)

    return work


def throughput(folder: Path) -> None:
    config = prepare(folder, IMAGES, BASE)
    execute(config, until="vocabulary")
    run = Run(config, Ranks(), torch.device("cpu"))
    pixels = torch.randn(16, 3, 224, 224)

    @torch.no_grad()
    def encoder() -> None:
        for _ in range(IMAGES // 16):
            run.backbone.encode(run.backbone.embed(pixels))

    values = ratios(encoder, tfidf_pass(run), pairs=6)
    report("bare encoder / corpus pass, ViT-B/16, batch 16", values, "at least 0.9")


def cache(folder: Path) -> None:
    config = prepare(folder, IMAGES, BASE, cache="fp16")
    execute(config, until="vocabulary")
    run = Run(config, Ranks(), torch.device("cpu"))
    store = feature_cache(run)
    assert store is not None
    assert store.open(cache_key(run))
    books = {MAIN: run.load("vocabulary")["centroids"]}
    codebooks = run.load("analysis/codebooks")
    for block in store.blocks:
        books[f"block{block}"] = codebooks[f"block{block}/centroids"]

    def products() -> None:
        for start in range(0, IMAGES, 16):
            features = store.read(range(start, start + 16))
            assert features is not None
            for book, centroids in books.items():
                features[block_of(run, book)].float() @ centroids.T

    report(
        "read and six products / cached pass, ViT-B/16",
        ratios(products, tfidf_pass(run), pairs=8),
        "disk or GEMM speed",
    )
    pixels = torch.randn(16, 3, 224, 224)

    @torch.no_grad()
    def encoder() -> None:
        run.backbone.encode(run.backbone.embed(pixels))

    seconds = []
    for work, images in ((encoder, 16), (tfidf_pass(run), IMAGES)):
        begin = perf_counter()
        work()
        seconds.append((perf_counter() - begin) / images)
    print(f"| time per image: bare encoder / cached pass | {seconds[0] / seconds[1]:.1f} | | |", flush=True)


def memory(folder: Path) -> None:
    """Each size in a process of its own, because a process's peak never falls."""
    measured = {}
    for images in (1000, 4000):
        prepare(folder / str(images), images, SMALL)
        done = subprocess.run(
            [sys.executable, __file__, "--measure", str(folder / str(images))],
            capture_output=True,
            text=True,
            check=True,
        )
        measured[images] = json.loads(done.stdout.splitlines()[-1])
    peak = measured[4000]["peak"] / measured[1000]["peak"]
    pace = measured[4000]["seconds"] / measured[1000]["seconds"]
    size = f"({measured[4000]['peak'] / 1024:.0f} MB)"
    print(f"| peak memory, 4,000 images / 1,000 images | {peak:.3f} | {size} | at most 1.05 |")
    print(f"| time per image, 4,000 images / 1,000 images | {pace:.3f} | | does not grow |", flush=True)


def measure(folder: Path) -> None:
    config = run_config(folder)
    execute(config, until="vocabulary")
    run = Run(config, Ranks(), torch.device("cpu"))
    begin = perf_counter()
    tfidf_pass(run)()
    seconds = (perf_counter() - begin) / len(run.training.labels)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"peak": peak, "seconds": seconds}))


def early(folder: Path) -> None:
    """A corpus pass with the codebooks and class counts of the study ``early``, and one with Figure 2's alone.

    The backbone is narrow: words cost n K D multiply-adds and blocks some 12 n D^2, so words weigh more there.
    """
    backbone = Run(prepare(folder, CLASSES, TINY), Ranks(), torch.device("cpu")).backbone
    pixels, labels = torch.randn(16, 3, 224, 224), torch.arange(16) % CLASSES
    centroids = normalize(torch.randn(512, backbone.width), dim=1)
    figures, blocks = figure_blocks(backbone.depth), codebook_blocks(backbone.depth)

    @torch.no_grad()
    def features(chosen: list[int]) -> list[torch.Tensor]:
        """The patch features of the main codebook, then those after each chosen block."""
        tokens, at, patches = backbone.embed(pixels), 0, []
        for block in chosen:
            tokens = tokens.advanced(backbone.encode(tokens, start=at, stop=block))
            at = block
            patches.append(tokens.patches)
        return [patches[-1], *patches]

    def kmeans(chosen: list[int]) -> None:
        for patches in features(chosen):
            CentroidSums(512, backbone.width, torch.device("cpu")).update(patches, centroids)

    def count(chosen: list[int], tables: int) -> None:
        for book, patches in enumerate(features(chosen)):
            words = nearest_words(patches, centroids)[1]
            if book < tables:
                CorpusStatistics(CLASSES, 512).update(words, labels)

    values = ratios(partial(kmeans, blocks), partial(kmeans, figures), pairs=30)
    report("k-means pass with early codebooks / without, ViT-Ti/16", values, "at most 1.05")
    values = ratios(partial(count, blocks, 1 + len(blocks)), partial(count, figures, 1), pairs=30)
    report("TF-IDF pass with early tables / without, ViT-Ti/16", values, "at most 1.05")


BENCHMARKS = {"throughput": throughput, "memory": memory, "cache": cache, "early": early}


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        return measure(Path(sys.argv[2]))
    chosen = sys.argv[1:] or list(BENCHMARKS)
    if unknown := set(chosen) - set(BENCHMARKS):
        sys.exit(f"Unknown benchmark {unknown.pop()}; there are {', '.join(BENCHMARKS)}.")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    print("| ratio | median | quartiles | target |\n|---|---|---|---|", flush=True)
    for name in chosen:
        folder = Path(tempfile.mkdtemp(prefix="redi-bench-"))
        try:
            BENCHMARKS[name](folder)
        finally:
            shutil.rmtree(folder)
    return None


if __name__ == "__main__":
    main()
