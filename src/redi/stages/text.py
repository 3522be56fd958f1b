"""What the label source ``text`` needs: embeddings of the run's class names, and of its validation images.

The names' embeddings come from a file of ``redi text``, or from the run's own checkpoint if that has a text tower. The
run keeps them, so that later commands find them. The images' embeddings take one dense pass over the reference crops.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from redi.backbone.text import TEMPLATES, class_embeddings, load_text_tower
from redi.corpus import zero_shot
from redi.errors import BackboneError, ConfigError
from redi.images.classes import prompt_names
from redi.images.loader import Batch
from redi.records import artifacts
from redi.records.texts import ClassTexts, read_texts, texts_of
from redi.runs.folder import Run
from redi.runs.passes import Outcome, Pass
from redi.runs.progress import say
from redi.stages.score import DENSE_PASS, scored_images

#: Artefacts: embeddings of the class names, and of the validation images.
TEXTS, IMAGES = "text", "validation/embeddings"


def find_texts(run: Run, file: Path | None) -> ClassTexts | None:
    """The embeddings of the run's class names: those of a file, else those that the run has kept, else None."""
    if file is None:
        return _kept(run)
    _require_embedding(run)
    texts = read_texts(file.expanduser()).select(run.training.class_names, file)
    joint = run.backbone.project(torch.zeros(1, run.backbone.width, device=run.device)).shape[1]
    if texts.embeddings.shape[1] != joint:
        raise ConfigError(
            f"{file} has embeddings of {texts.embeddings.shape[1]} numbers, and those of this backbone's images have "
            f"{joint}: they must be towers of the same model."
        )
    if texts.checkpoint != run.identity["backbone"]:
        say(f"warning: {file} was not made from the run's own checkpoint; both must be towers of the same model")
    return texts


def own_texts(run: Run, planned: bool = False) -> ClassTexts | None:
    """Embed the class names with the text tower of the run's own checkpoint; None if this is only planned."""
    _require_embedding(run)
    classes = list(run.training.class_names)
    names = prompt_names(classes)
    try:
        tower = load_text_tower(run.config.backbone, run.config.revision or None)
    except BackboneError as error:
        raise ConfigError(
            f"{str(error).rstrip('.')}. Write the embeddings of the class names with `redi text` and the whole model, "
            "and pass the file with --text."
        ) from None
    if planned:
        return None
    say(f"embed the names of {len(names)} classes, with {len(TEMPLATES)} prompts each")
    embeddings = class_embeddings(tower.to(run.device), names, TEMPLATES).cpu()
    return ClassTexts(classes, names, list(TEMPLATES), tower.digest, embeddings, tower.scale, tower.bias)


@torch.no_grad()
def make_text_evidence(run: Run, texts: ClassTexts) -> None:
    """Keep the embeddings of the class names, and make those of the validation images if they are missing."""
    key = _texts_key(run, texts)
    if run.ranks.is_main and not run.current(TEXTS, key):
        run.save(TEXTS, texts.tensors, key, bias=texts.bias)
    run.ranks.wait()
    if not run.ranks.share(lambda: run.current(IMAGES, _images_key(run))):
        _embed_images(run)


def text_inputs(run: Run) -> dict[str, str]:
    """Digests of what the probabilities are made from, for the key of predictions."""
    return {"texts": run.digest(TEXTS), "embeddings": run.digest(IMAGES)}


def text_probabilities(run: Run) -> Float[Tensor, "images classes"]:
    """Zero-shot probabilities of the run's classes for its validation images; no label is read."""
    texts = texts_of(*artifacts.load(run.path(TEXTS)))
    return zero_shot(run.load(IMAGES)["embeddings"], texts.embeddings, texts.scale)


def zero_shot_top1(run: Run) -> float | None:
    """Percent of the validation images whose most probable class is the true one; None if nothing was embedded."""
    if _kept(run) is None or not run.current(IMAGES, _images_key(run)):
        return None
    right = text_probabilities(run).argmax(dim=1) == run.load(DENSE_PASS)["labels"]
    return 100 * right.double().mean().item()


def _kept(run: Run) -> ClassTexts | None:
    """What the run has kept, if it is still for the same classes."""
    if artifacts.read_manifest(run.path(TEXTS)) is None:
        return None
    texts = texts_of(*artifacts.load(run.path(TEXTS)))
    same = texts.classes == list(run.training.class_names)
    return texts if same and run.current(TEXTS, _texts_key(run, texts)) else None


def _texts_key(run: Run, texts: ClassTexts) -> dict[str, Any]:
    return run.key("text", **texts.key, digest=artifacts.tensor_digest(texts.tensors))


def _images_key(run: Run) -> dict[str, Any]:
    return run.key("image embeddings", "val", images=run.digest(DENSE_PASS))


def _require_embedding(run: Run) -> None:
    if not run.backbone.has_embedding:
        raise ConfigError(
            "The label source text compares images with the names of the classes, and this backbone has no embedding "
            "for that: use a CLIP or SigLIP checkpoint, or other --labels."
        )


def _embed_images(run: Run) -> None:
    backbone, key = run.backbone, _images_key(run)

    def step(batch: Batch, _sums: Mapping[str, Any]) -> Mapping[str, Tensor]:
        pixels = batch.pixels[:, 0].to(run.device)
        hidden = backbone.encode(backbone.embed(backbone.preprocessing.normalise(pixels)))
        return {"embeddings": backbone.image_embedding(hidden)}

    def save(outcome: Outcome) -> None:
        run.save(IMAGES, {**outcome.rows, "indices": torch.tensor(outcome.indices)}, key)

    work = Pass("image embeddings", run.dataset(run.validation), step, indices=scored_images(run))
    run.finish(work, key, save, all_decoded=True)
