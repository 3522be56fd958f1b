"""One run folder: what it was made from, where its artefacts are, and the tools every stage needs."""

import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from redi import artifacts
from redi.backbone import Backbone, load_backbone
from redi.backbone.inputs import geometry
from redi.backbone.loading import checkpoint_digest, checkpoint_folder
from redi.config import RunConfig, to_toml
from redi.distributed import Ranks
from redi.errors import ArtifactError, CorpusError, ImageError
from redi.images import LabelledImages, open_images, relabel
from redi.loader import ViewDataset
from redi.passes import PassRunner

#: Counted up when a stage computes something else than before, so that old artefacts are redone.
FORMAT = 1

ATTENTION_SCORES = ("mass", "rollout", "cls_max", "cls_mean")
PRODUCTS = tuple(f"redi_{name}" for name in ATTENTION_SCORES)
#: The paper's headline: REDI with incoming attention mass.
MAIN_ROW = "redi_mass"
#: Rows of the paper's tables that use the reducer, in the order of results.json.
SCORES = ("random", "tfidf", *ATTENTION_SCORES, *PRODUCTS)


class Run:
    """A configuration bound to its data, its checkpoint and its folder.

    The model is loaded when a stage first needs it, so looking at a finished run is quick.
    """

    def __init__(self, config: RunConfig, ranks: Ranks, device: torch.device) -> None:
        self.config = config.checked()
        self.ranks = ranks
        self.device = device
        self.folder = Path(config.out).expanduser()
        self.training: LabelledImages = open_images(config.train)
        self.validation: LabelledImages = relabel(open_images(config.val), self.training)
        if len(set(self.training.labels)) < 2:
            raise CorpusError(
                f"{config.train} has images of fewer than two classes, but TF-IDF contrasts a class "
                "with the rest."
            )
        self.checkpoint = checkpoint_folder(config.backbone, config.revision or None)
        self.identity = {
            "backbone": checkpoint_digest(self.checkpoint),
            "train": self.training.fingerprint(),
            "val": self.validation.fingerprint(),
        }
        self._size = self._other_size()
        self.passes = PassRunner(
            self.folder / "partial",
            ranks,
            config.runtime.batch_size,
            config.runtime.workers,
            config.runtime.strict,
        )

    @cached_property
    def backbone(self) -> Backbone:
        backbone = load_backbone(self.checkpoint).to(self.device)
        return backbone.at_size(self.config.size) if self.config.size else backbone

    def _other_size(self) -> str:
        """Of the input where it is not the default; one that does not fit is refused at once."""
        if not self.config.size or self.config.size == geometry(self.backbone.patch_size)[1]:
            return ""
        return str(self.config.size)

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"

    def key(self, stage: str, *data: str, **settings: Any) -> dict[str, Any]:
        """What an artefact depends on: the checkpoint, the named data sets, settings, inputs.

        An upstream artefact enters as its digest, so a change runs down the chain.
        """
        identity = {name: self.identity[name] for name in ("backbone", *data)}
        if self._size:
            identity["size"] = self._size
        return {"stage": stage, "format": FORMAT, **identity, **settings}

    def digest(self, name: str) -> str:
        manifest = artifacts.read_manifest(self.path(name))
        if manifest is None:
            raise ArtifactError(f"{self.path(name)} is missing; run the stage that makes it.")
        digest: str = manifest["digest"]
        return digest

    def current(self, name: str, key: artifacts.Key) -> bool:
        """Whether an artefact is there and made from the same; one of another run is refused."""
        manifest = artifacts.read_manifest(self.path(name))
        if manifest is None:
            return False
        for what in ("backbone", "train", "val"):
            if manifest["key"].get(what, self.identity[what]) != self.identity[what]:
                raise ArtifactError(_foreign(self.path(name), what))
        return artifacts.is_current(self.path(name), key)

    def load(self, name: str) -> dict[str, Tensor]:
        return artifacts.load(self.path(name))[0]

    def dataset(self, images: LabelledImages, four_views: bool = False) -> ViewDataset:
        return ViewDataset(images, self.backbone.preprocessing, four_views, self.config.seed)

    def require_decoded(self, skipped: Sequence[tuple[int, str]]) -> None:
        """Of a later validation pass: images whose scores exist must still be readable."""
        if skipped:
            raise ImageError(
                f"{skipped[0][1]} It could be decoded when its scores were made: restore the file, "
                f"delete {self.folder / 'partial'} and run again."
            )

    def claim(self) -> None:
        """Note in the folder what the run is made from, or refuse a folder of another run."""
        note = self.folder / "run.json"
        if note.exists():
            try:
                known = json.loads(note.read_text(encoding="utf-8"))["identity"]
                differing = [what for what in self.identity if known[what] != self.identity[what]]
            except (OSError, ValueError, KeyError, TypeError):
                raise ArtifactError(f"{note} is damaged: delete it and run again.") from None
            if differing:
                raise ArtifactError(_foreign(self.folder, differing[0]))
        for leftover in artifacts.leftovers(self.folder):
            leftover.unlink(missing_ok=True)
        artifacts.write_text(note, json.dumps({"identity": self.identity}, indent=2) + "\n")
        artifacts.write_text(self.folder / "config.toml", to_toml(self.config))


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """One run at a time in a folder. The lock ends with the process, however that ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("w")
    except OSError as error:
        raise ArtifactError(
            f"The run folder {folder} cannot be written: {error.strerror}. Choose another --out."
        ) from None
    with file:
        try:
            # lockf and not flock, whose lock would live on in the forked workers of a killed run.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ArtifactError(
                f"Another redi process is working in {folder}: wait for it, or choose another --out."
            ) from None
        yield


def _foreign(path: Path, what: str) -> str:
    names = {"backbone": "backbone", "train": "training set", "val": "validation set"}
    return (
        f"{path} belongs to another {names[what]} than this command names: choose another --out, or "
        "delete it to start anew."
    )
