"""One image through every stage, computed live: with the corpus of a run, or with attention alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from glob import glob
from pathlib import Path

import torch
from torch import Tensor

from redi.backbone import AttentionScores, Backbone, Classifier, load_backbone
from redi.backbone.checkpoint import checkpoint_digest, checkpoint_folder
from redi.backbone.classifier import NATIVE
from redi.budget import Budget
from redi.centroids import nearest_words
from redi.checks import require_finite
from redi.corpus import corpus_map, tfidf_term
from redi.errors import ArtifactError, BackboneError, printable
from redi.evaluate import top5
from redi.images import load_image, open_images
from redi.images.classes import class_titles, find_class, head_classes
from redi.probe import LinearProbe
from redi.records import artifacts
from redi.records.explained import Closeness, Explained, Fate, Guess, corpus_steps
from redi.reduction import keep_merge_compress
from redi.rows import DENSE, Score
from redi.runs.config import RunConfig, saved_config
from redi.runs.distributed import choose_device
from redi.runs.progress import say
from redi.score import hybrid
from redi.stages.score import WORDS
from redi.views import View


@dataclass(frozen=True)
class _Forward:
    """A backbone and the views of an image that it encodes."""

    backbone: Backbone
    views: Sequence[View]
    crops: Tensor  # [views, 3, size, size] uint8

    @classmethod
    def of(cls, backbone: Backbone, image: Path, index: int | None, seed: int = 0) -> "_Forward":
        """With the four views drawn for ``index``, or only the reference crop if ``index`` is None."""
        views, crops = backbone.preprocessing.cut(load_image(image), index, seed)
        return cls(backbone, views, crops)

    def pixels(self, views: slice) -> Tensor:
        return self.backbone.preprocessing.normalise(self.crops[views].to(self.backbone.device))

    def dense(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Return (final tokens, attention maps) of the reference crop."""
        backbone = self.backbone
        attention = AttentionScores(backbone.depth, backbone.prefix, backbone.has_cls)
        tokens = backbone.embed(self.pixels(slice(1)))
        hidden = backbone.encode(tokens, watch=attention.watches)
        return hidden, attention.maps()

    def words(self, hidden: Tensor, centroids: Tensor) -> tuple[Tensor, float]:
        """The words of all views, and the mean cosine of the first view's patches to theirs.

        ``hidden`` holds the final tokens of the first view, from :meth:`dense`.
        """
        backbone = self.backbone
        others = backbone.encode(backbone.embed(self.pixels(slice(1, None))))
        patches = torch.cat([hidden, others])[:, backbone.prefix :]
        cosine, words = nearest_words(patches, centroids.to(backbone.device))
        return words.cpu(), cosine[0].mean().item()

    def reduced(self, scores: Mapping[str, Tensor], budget: Budget) -> tuple[dict[str, Fate], dict[str, Tensor]]:
        """Return (where the patches go, final tokens), by score. All scores run in one batch."""
        tokens = self.backbone.embed(self.pixels(slice(1)).expand(len(scores), -1, -1, -1))
        assert tokens.grid is not None
        stacked = torch.cat(list(scores.values()))
        reduction = keep_merge_compress(tokens.patches, stacked, budget, tokens.grid)
        hidden = self.backbone.encode(tokens.reduced(reduction))
        kept, _, _ = budget.counts(stacked.shape[1])
        fates = {
            name: Fate(reduction.source[k].cpu(), reduction.positions[k].cpu(), kept) for k, name in enumerate(scores)
        }
        return fates, {name: hidden[k : k + 1] for k, name in enumerate(scores)}


@dataclass(frozen=True)
class _Reader:
    """A classifier and the titles of its classes."""

    classifier: Classifier
    titles: Sequence[str]

    def guesses(self, hidden: Tensor) -> list[Guess]:
        best, values = top5(self.classifier.logits(hidden))
        pairs = zip(best[0].tolist(), values[0].tolist(), strict=True)
        return [Guess(self.titles[place], value) for place, value in pairs]


@torch.no_grad()
def inspect_alone(image: Path, backbone: str, device: str = "auto") -> Explained:
    """Attention scores of an image and the roles they assign, with Top-5 if the checkpoint has a head."""
    model = load_backbone(backbone).to(choose_device(device))
    forward = _Forward.of(model, image, None)
    hidden, scores = forward.dense()
    reader = _Reader(Classifier(model), model.class_names) if model.class_names else None
    empty = torch.empty(0, model.geometry.patches)
    steps = (empty.long(), empty, empty, empty.bool())
    return _explained(image.name, ("", ""), forward, steps, hidden, scores, Budget(), reader)


@torch.no_grad()
def inspect_in_run(
    image: Path, folder: Path, class_name: str = "", device: str = "auto", names: Path | None = None
) -> Explained:
    """All scores of any image, for the class called ``class_name`` or, without a name, for the predicted class.

    An image of the run's own validation set gets the views it had in the run. Any other image gets those of index 0.
    """
    config = saved_config(folder)
    vocabulary, manifest = artifacts.load_named(folder, "vocabulary")
    stored, tfidf_manifest = artifacts.load_named(folder, "tfidf")
    validation = artifacts.load_named(folder, WORDS)[0].get("closeness")
    if validation is None:
        raise ArtifactError(f"{folder} was made by an earlier redi: use `redi run` to bring it up to date.")
    backbone = _run_backbone(config, folder, manifest["key"]["backbone"]).to(choose_device(device))
    folders: list[str] = tfidf_manifest["key"]["classes"]
    columns: list[int] = []
    if config.classifier != "probe":
        file = Path(config.class_map) if config.class_map else None
        columns, _ = head_classes(folders, backbone.class_names or [], file)
    titles = class_titles(folders, backbone.class_names or [], columns, names)
    named_label = find_class(folders, titles, class_name) if class_name else None
    reader = _run_reader(backbone, config, folder, titles, columns)

    forward = _Forward.of(backbone, image, _index(image, config), config.seed)
    hidden, scores = forward.dense()
    logits = reader.classifier.of_data(reader.classifier.logits(hidden))[0]
    require_finite(logits, f"The logits of {image.name}")
    label = int(logits.argmax()) if named_label is None else named_label
    words, closeness = forward.words(hidden, vocabulary["centroids"])
    weights = stored["table"][label]
    views = tuple(forward.views)
    tfidf = corpus_map(tfidf_term(stored), weights[None], words[None], [views]).to(hidden.device)
    products = {Score("tfidf", name).name: hybrid(tfidf, scores[name]) for name in scores}
    explained = _explained(
        image.name,
        (titles[label], "given" if class_name else "predicted"),
        forward,
        (words, *corpus_steps(weights, words, views)),
        hidden,
        {"tfidf": tfidf, **scores, **products},
        config.budget,
        reader,
    )
    return replace(explained, closeness=Closeness(closeness, validation))


def _explained(
    name: str,
    looked_up: tuple[str, str],
    forward: _Forward,
    steps: tuple[Tensor, Tensor, Tensor, Tensor],
    hidden: Tensor,
    scores: Mapping[str, Tensor],
    budget: Budget,
    reader: _Reader | None,
) -> Explained:
    # As in a run, a map is rounded to FP16 before it decides anything.
    rounded = {row: value.half().float() for row, value in scores.items()}
    fates, reduced = forward.reduced(rounded, budget)
    guesses = {}
    if reader is not None:
        sequences = {DENSE: hidden, **reduced}
        guesses = {row: reader.guesses(sequence) for row, sequence in sequences.items()}
    words, lookups, aligned, valid = steps
    return Explained(
        name=printable(name),
        looked_up=looked_up[0],
        label_source=looked_up[1],
        grid=forward.backbone.geometry.grid,
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


def _run_backbone(config: RunConfig, folder: Path, digest: str) -> Backbone:
    """The backbone of a run, if its checkpoint is still the one that the run was made with."""
    try:
        checkpoint = checkpoint_folder(config.backbone, config.revision or None)
    except BackboneError as error:
        raise BackboneError(
            f"{error} If the backbone has moved, name its new place once: `redi run --config {folder / 'config.toml'} "
            f"--out {folder} --backbone NEW`."
        ) from None
    if checkpoint_digest(checkpoint) != digest:
        raise ArtifactError(
            f"The checkpoint {config.backbone} has changed since {folder} was made: run `redi run` with another --out."
        )
    backbone = load_backbone(checkpoint)
    backbone = backbone.at_size(config.size) if config.size else backbone
    return backbone.with_resize(config.resize) if config.resize else backbone


def _run_reader(
    backbone: Backbone, config: RunConfig, folder: Path, titles: Sequence[str], columns: Sequence[int]
) -> _Reader:
    if config.classifier == NATIVE:
        head = Classifier(backbone, columns=torch.tensor(columns))
        return _Reader(head, backbone.class_names or [])
    stored, _ = artifacts.load_named(folder, "probe")
    weight, bias = (stored[name].to(backbone.device) for name in ("weight", "bias"))
    probe = LinearProbe.fitted(weight, bias)
    return _Reader(Classifier(backbone, probe, config.probe.prenorm), titles)


def _index(image: Path, config: RunConfig) -> int:
    """Index of an image in the run's own validation folder; 0 for any other image.

    Paths are compared before links are followed, because a validation folder may hold links into a larger data set.
    """
    folder = Path(config.val)
    if not folder.is_dir():
        if not config.val.startswith("hf:") and not glob(config.val):
            say(f"warning: {config.val} is gone, so no image gets the views that it had in the run; --val repairs this")
        return 0
    if not image.is_file():  # an image that does not exist is an error later
        return 0
    for path, root in ((image.absolute(), folder.absolute()), (image.resolve(), folder.resolve())):
        if path.is_relative_to(root):
            images, name = open_images(config.val, config.limit), path.relative_to(root).as_posix()
            names = (images.image_name(index) for index in range(len(images.labels)))
            return next((index for index, other in enumerate(names) if other == name), 0)
    return 0
