"""Any one image through the method, live: with the corpus of a run, or with attention alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import torch
from torch import Tensor

from redi import artifacts
from redi.backbone import AttentionScores, Backbone, load_backbone
from redi.backbone.loading import checkpoint_digest, checkpoint_folder
from redi.classes import class_titles, head_classes
from redi.config import RunConfig, saved_config
from redi.corpus import corpus_map, tfidf_term
from redi.distributed import choose_device
from redi.equal import Geometry
from redi.errors import ArtifactError, BackboneError, ConfigError
from redi.evaluate import top5
from redi.explained import Explained, Fate, Guess, corpus_steps, printable
from redi.images import load_image, open_images
from redi.probe import LinearProbe, image_feature
from redi.reduction import Budget, keep_merge_compress
from redi.run import ATTENTION_SCORES
from redi.score import hybrid
from redi.views import View, crop, to_bytes, validation_views
from redi.vocabulary import dot_products


@dataclass(frozen=True)
class Classifier:
    """Final tokens before the norm -> logits, and what its classes are called."""

    backbone: Backbone
    titles: Sequence[str]
    probe: LinearProbe | None = None  # None: the checkpoint's own head
    prenorm: bool = False

    def logits(self, hidden: Tensor) -> Tensor:
        if self.probe is None:
            return self.backbone.classify(hidden)
        tokens = hidden if self.prenorm else self.backbone.final_norm(hidden)
        return self.probe.logits(image_feature(tokens, self.backbone.prefix))

    def guesses(self, hidden: Tensor) -> list[Guess]:
        best, values = top5(self.logits(hidden))
        pairs = zip(best[0].tolist(), values[0].tolist(), strict=True)
        return [Guess(self.titles[place], value) for place, value in pairs]


@dataclass(frozen=True)
class _Forward:
    """A backbone and an image on its way through it."""

    backbone: Backbone
    views: Sequence[View]
    crops: Tensor  # [views, 3, size, size] uint8

    @classmethod
    def of(cls, backbone: Backbone, image: Path, index: int | None, seed: int = 0) -> "_Forward":
        """Four views drawn for ``index``, or the reference crop alone."""
        settings = backbone.preprocessing
        resized = settings.resized(load_image(image))
        views: tuple[View, ...] = (settings.reference(resized),)
        if index is not None:
            views = validation_views(resized.width, resized.height, index, settings.size, seed)
        crops = [to_bytes(crop(resized, view, settings.size, settings.resample)) for view in views]
        return cls(backbone, views, torch.stack(crops))

    def pixels(self, views: slice) -> Tensor:
        return self.backbone.preprocessing.normalise(self.crops[views].to(self.backbone.device))

    def dense(self) -> tuple[Tensor, dict[str, Tensor]]:
        """(final tokens, attention maps) of the reference crop."""
        backbone = self.backbone
        attention = AttentionScores(backbone.depth, backbone.prefix)
        tokens = backbone.embed(self.pixels(slice(1)))
        hidden = backbone.encode(tokens, watch=attention.watches)
        return hidden, attention.maps()

    def words(self, hidden: Tensor, centroids: Tensor) -> Tensor:
        """Of all views; ``hidden`` is what :meth:`dense` gave for the first."""
        backbone = self.backbone
        others = backbone.encode(backbone.embed(self.pixels(slice(1, None))))
        patches = torch.cat([hidden, others])[:, backbone.prefix :]
        return dot_products(patches, centroids.to(backbone.device)).argmax(dim=-1)

    def reduced(
        self, scores: Mapping[str, Tensor], budget: Budget
    ) -> tuple[dict[str, Fate], dict[str, Tensor]]:
        """Where the patches go under each score, and the final tokens: all scores in one batch."""
        tokens = self.backbone.embed(self.pixels(slice(1)).expand(len(scores), -1, -1, -1))
        assert tokens.grid is not None
        stacked = torch.cat(list(scores.values()))
        reduction = keep_merge_compress(tokens.patches, stacked, budget, tokens.grid)
        hidden = self.backbone.encode(tokens.reduced(reduction))
        kept, _, _ = budget.counts(stacked.shape[1])
        fates = {
            name: Fate(reduction.source[k].cpu(), reduction.positions[k].cpu(), kept)
            for k, name in enumerate(scores)
        }
        return fates, {name: hidden[k : k + 1] for k, name in enumerate(scores)}


@torch.no_grad()
def inspect_alone(image: Path, backbone: str, device: str = "auto") -> Explained:
    """Attention scores and the roles they assign; Top-5 where the checkpoint has a head."""
    model = load_backbone(backbone).to(choose_device(device))
    forward = _Forward.of(model, image, None)
    hidden, scores = forward.dense()
    head = Classifier(model, model.class_names) if model.class_names is not None else None
    nothing = torch.empty(0, scores["mass"].shape[1])
    steps = (nothing.long(), nothing, nothing, nothing.bool())
    return _explained(image.name, ("", ""), forward, steps, hidden, scores, Budget(), head)


@torch.no_grad()
def inspect_in_run(
    image: Path, folder: Path, wanted: str = "", device: str = "auto", names: Path | None = None
) -> Explained:
    """All scores of any image, looked up for the class that is ``wanted`` or, without it, for the one
    that the dense pass predicts.

    An image of the run's own validation set gets the views it had in the run, any other those of
    index 0.
    """
    config = saved_config(folder)
    vocabulary, manifest = artifacts.load_named(folder, "vocabulary")
    stored, tfidf_manifest = artifacts.load_named(folder, "tfidf")
    try:
        checkpoint = checkpoint_folder(config.backbone, config.revision or None)
    except BackboneError as error:
        raise BackboneError(
            f"{error} The run names its backbone {config.backbone}; a relative path counts from where "
            "the run was started."
        ) from None
    if checkpoint_digest(checkpoint) != manifest["key"]["backbone"]:
        raise ArtifactError(
            f"The checkpoint {config.backbone} has changed since {folder} was made: run `redi run` "
            "into another folder."
        )
    backbone = load_backbone(checkpoint).to(choose_device(device))
    if config.size:
        backbone = backbone.at_size(config.size)
    folders: list[str] = tfidf_manifest["key"]["classes"]
    columns: list[int] = []
    if config.classifier != "probe":
        file = Path(config.class_map) if config.class_map else None
        columns, _ = head_classes(folders, backbone.class_names or [], file)
    titles = class_titles(folders, backbone.class_names or [], columns, names)
    given = _class_number(wanted, folders, titles) if wanted else None

    forward = _Forward.of(backbone, image, _index(image, config.val), config.seed)
    hidden, scores = forward.dense()
    classifier = _classifier(backbone, config, folder, titles)
    logits = classifier.logits(hidden)[0]
    own = logits[columns] if config.classifier == "native" else logits
    label = int(own.argmax()) if given is None else given
    words = forward.words(hidden, vocabulary["centroids"]).cpu()
    weights = stored["table"][label]
    tfidf = corpus_map(tfidf_term(stored), weights[None], words[None], [tuple(forward.views)])
    found = {"tfidf": tfidf.to(hidden.device), **scores}
    found |= {f"redi_{name}": hybrid(found["tfidf"], scores[name]) for name in ATTENTION_SCORES}
    steps = (words, *corpus_steps(weights, words, forward.views))
    looked_up = (titles[label], "given" if wanted else "predicted")
    return _explained(
        image.name, looked_up, forward, steps, hidden, found, config.budget, classifier
    )


def _explained(
    name: str,
    looked_up: tuple[str, str],
    forward: _Forward,
    steps: tuple[Tensor, Tensor, Tensor, Tensor],
    hidden: Tensor,
    scores: Mapping[str, Tensor],
    budget: Budget,
    classifier: Classifier | None,
) -> Explained:
    # As in a run, a map is rounded to FP16 before it decides anything.
    rounded = {row: value.half().float() for row, value in scores.items()}
    fates, reduced = forward.reduced(rounded, budget)
    guesses = {}
    if classifier is not None:
        sequences = {"dense": hidden, **reduced}
        guesses = {row: classifier.guesses(found) for row, found in sequences.items()}
    words, lookups, aligned, valid = steps
    return Explained(
        name=printable(name),
        looked_up=looked_up[0],
        labels=looked_up[1],
        grid=Geometry.of(forward.backbone).grid,
        budget=budget,
        crops=forward.crops,
        views=forward.views,
        words=words,
        lookups=lookups,
        aligned=aligned,
        valid=valid,
        scores={row: value[0].cpu() for row, value in rounded.items()},
        fates=fates,
        guesses=guesses,
    )


def _classifier(
    backbone: Backbone, config: RunConfig, folder: Path, titles: Sequence[str]
) -> Classifier:
    if config.classifier == "native":
        return Classifier(backbone, backbone.class_names or [])
    stored, _ = artifacts.load_named(folder, "probe")
    probe = LinearProbe(len(titles))
    probe.weight_, probe.bias_ = (stored[name].to(backbone.device) for name in ("weight", "bias"))
    return Classifier(backbone, titles, probe, config.probe.features == "prenorm")


def _index(image: Path, validation: str) -> int:
    """Of an image of the run's own validation folder; 0 for any other. Links are not followed first:
    a folder of links into a larger data set is a validation folder as well."""
    folder = Path(validation).expanduser()
    if not folder.is_dir():
        return 0
    for path, root in ((image.absolute(), folder.absolute()), (image.resolve(), folder.resolve())):
        if path.is_relative_to(root):
            images, name = open_images(validation), path.relative_to(root).as_posix()
            names = (images.image_name(index) for index in range(len(images.labels)))
            return next((index for index, other in enumerate(names) if other == name), 0)
    return 0


def _class_number(wanted: str, folders: Sequence[str], titles: Sequence[str]) -> int:
    """By folder or by title; "tench" finds "tench, Tinca tinca"."""
    for names in (folders, titles, [title.split(",")[0] for title in titles]):
        found = [k for k, name in enumerate(names) if name.casefold() == wanted.casefold()]
        if len(found) == 1:
            return found[0]
    close = get_close_matches(wanted, list(dict.fromkeys([*folders, *titles])), n=3, cutoff=0.5)
    hint = f" Did you mean {', '.join(close)}?" if close else ""
    raise ConfigError(f"The run has no class {wanted!r}.{hint}")
