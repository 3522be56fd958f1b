"""One run folder: its data and checkpoint, its artefacts, and the tools that every stage needs."""

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from redi.attention import scores_of
from redi.backbone import Backbone, load_backbone
from redi.backbone.checkpoint import checkpoint_digest, checkpoint_folder
from redi.bounds import MOST_WORDS
from redi.errors import ArtifactError, ConfigError, CorpusError, ImageError
from redi.images import LabelledImages, open_images, relabel
from redi.images.loader import ViewDataset
from redi.records import artifacts, drafts
from redi.records.outputs import LOCK, mark_run, recorded_identity, require_apart
from redi.rows import paper_scores
from redi.runs.cache import FeatureCache
from redi.runs.config import RunConfig, located, overlay, saved_config, to_toml
from redi.runs.distributed import Ranks
from redi.runs.passes import Outcome, Pass, PassRunner
from redi.runs.places import run_data

#: The folder of the parts of unfinished passes, which have keys of their own.
PARTS = "partial"
#: Increased by one when a stage computes something new, so that old artefacts are made again.
FORMAT = 3


class Run:
    """A configuration bound to its data, its checkpoint and its folder.

    The model is loaded when a stage first needs it, so reading a finished run is fast.
    """

    def __init__(self, config: RunConfig, ranks: Ranks, device: torch.device) -> None:
        self.config = located(config.checked())
        self.ranks = ranks
        self.device = device
        self.folder = Path(config.out).expanduser()
        self.training: LabelledImages = _opened("train", config)
        self.validation: LabelledImages = relabel(_opened("val", config), self.training)
        if len(set(self.training.labels)) < 2:
            raise CorpusError(
                f"{config.train} has images of fewer than two classes, but TF-IDF contrasts a class with the rest."
            )
        self.checkpoint = checkpoint_folder(config.backbone, config.revision or None)
        require_apart(self.folder, [*run_data(config), ("the backbone", self.checkpoint)])
        self.identity = ranks.share(self._identity)  # one process reads the data, not all of them
        self._input = self._other_input()
        self.cache: FeatureCache | None = None  # made when a stage first needs it
        self.passes = PassRunner(self.folder / PARTS, ranks, config.runtime)

    def _identity(self) -> dict[str, str]:
        return {
            "backbone": checkpoint_digest(self.checkpoint),
            "train": self.training.fingerprint(),
            "val": self.validation.fingerprint(),
        }

    @cached_property
    def backbone(self) -> Backbone:
        backbone = self._loaded
        backbone = backbone.at_size(self.config.size) if self.config.size else backbone
        return backbone.with_resize(self.config.resize) if self.config.resize else backbone

    @property
    def attention_scores(self) -> list[str]:
        """Names of the attention scores that the backbone has."""
        return scores_of(self.backbone.has_cls)

    @property
    def scores(self) -> list[str]:
        """Names of the paper's scores that the run makes, in the order of results.json."""
        return [score.name for score in paper_scores(self.attention_scores)]

    @cached_property
    def _loaded(self) -> Backbone:
        """The backbone with its own input: the default size and the filter of the checkpoint."""
        return load_backbone(self.checkpoint).to(self.device)

    def _other_input(self) -> dict[str, str]:
        """Size and filter of the input where they are not the backbone's own. A size that does not fit fails here."""
        if not (self.config.size or self.config.resize):
            return {}
        own, used = self._loaded.preprocessing, self.backbone.preprocessing
        size = {"size": str(used.size)} if used.size != own.size else {}
        return size | ({"resize": used.resample.name.lower()} if used.resample != own.resample else {})

    def check(self) -> None:
        """Check the settings against the data and the backbone; nothing in the folder has changed yet."""
        geometry = self.backbone.geometry
        if geometry.patches > MOST_WORDS:
            raise ConfigError(
                f"A size of {self.config.size} gives {geometry.patches:,} patches, but at most {MOST_WORDS:,} are "
                "possible: their places are stored in 16 bits."
            )
        self.config.budget.require_fits(geometry.patches, geometry.grid)
        patches = len(self.training.labels) * geometry.patches
        for name, words in (
            ("words", self.config.vocabulary.n_words),
            ("analysis.n_words", self.config.analysis.n_words),
        ):
            if words > patches:
                raise ConfigError(
                    f"{name} is {words:,}, but the training images have {patches:,} patches: use more images or fewer "
                    "words."
                )

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"

    def key(self, stage: str, *data: str, **settings: Any) -> dict[str, Any]:
        """Everything an artefact depends on: the checkpoint, the named data sets, the settings and the inputs.

        An upstream artefact enters as its digest, so a change reaches everything that depends on it.
        """
        identity = {name: self.identity[name] for name in ("backbone", *data)}
        return {"stage": stage, "format": FORMAT, **identity, **self._input, **settings}

    def digest(self, name: str) -> str:
        manifest = artifacts.read_manifest(self.path(name))
        if manifest is None:
            raise ArtifactError(f"{self.path(name)} is missing; run the stage that makes it.")
        digest: str = manifest["digest"]
        return digest

    def current(self, name: str, key: artifacts.Key) -> bool:
        """Whether an artefact exists and has this key; an artefact of another run is an error."""
        manifest = artifacts.read_manifest(self.path(name))
        if manifest is None:
            return False
        if Path(name).parts[0] == PARTS:  # unfinished work is simply made again
            return artifacts.is_current(self.path(name), key)
        for part in ("backbone", "train", "val"):
            if manifest["key"].get(part, self.identity[part]) != self.identity[part]:
                raise ArtifactError(_foreign(self.path(name), part, self.config))
        return artifacts.is_current(self.path(name), key)

    def load(self, name: str) -> dict[str, Tensor]:
        return artifacts.load(self.path(name))[0]

    def save(self, name: str, tensors: Mapping[str, Tensor], key: artifacts.Key, **notes: Any) -> None:
        artifacts.save(self.path(name), tensors, key, **notes)

    def dataset(self, images: LabelledImages, four_views: bool = False) -> ViewDataset:
        return ViewDataset(
            images, self.backbone.preprocessing, four_views, self.config.seed, self.config.runtime.patience
        )

    def finish(
        self, work: Pass, key: artifacts.Key, save: Callable[[Outcome], object], all_decoded: bool = False
    ) -> None:
        """Run a pass, let the main process save its outcome, then remove the parts of the pass.

        With ``all_decoded`` a skipped image is an error: its scores exist, so it must still be readable.
        """
        outcome = self.passes.run(work, key)
        if outcome is not None:
            if all_decoded and outcome.skipped:
                raise ImageError(
                    f"{outcome.skipped[0][1]} It could be decoded when its scores were made: restore the file, delete "
                    f"{self.folder / 'partial'} and run again."
                )
            save(outcome)
        self.ranks.wait()
        self.passes.discard(work.name)

    def require_same(self) -> None:
        """Refuse the folder of a run of other data or of another checkpoint."""
        recorded = recorded_identity(self.folder)
        for part, digest in self.identity.items():
            if recorded.get(part, digest) != digest and self._has_results_of(part):
                self._require_limit()
                raise ArtifactError(_foreign(self.folder, part, self.config))

    def _require_limit(self) -> None:
        with suppress(ConfigError):
            limit = saved_config(self.folder).limit
            if limit != self.config.limit:
                made = f"with --limit {limit}" if limit else "without --limit"
                raise ArtifactError(f"{self.folder} was made {made}, which is another data set: choose another --out.")

    def _has_results_of(self, part: str) -> bool:
        """Whether an artefact depends on a part. Until one does, e.g. damaged images may still be repaired."""
        paths = [path for path in self.folder.rglob("*.safetensors") if path.relative_to(self.folder).parts[0] != PARTS]
        return any(part in (artifacts.read_manifest(path) or {"key": ()})["key"] for path in paths)

    def claim(self) -> None:
        """Record the data, the checkpoint and the settings of the run; the marker of the folder comes first."""
        mark_run(self.folder, self.identity)
        drafts.clear(self.folder)
        artifacts.write_text(self.folder / "config.toml", to_toml(self.config))


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Allow one run at a time in a folder. The lock ends with the process, even if it is killed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise ArtifactError(
            f"The run folder {folder} cannot be written: {error.strerror}. Choose another --out."
        ) from None
    with os.fdopen(descriptor, "r+") as file:
        try:
            # lockf instead of flock, whose lock would survive in the forked workers of a killed run.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ArtifactError(
                f"Another redi process is working in {folder}: wait for it, or choose another --out."
            ) from None
        yield


def require_writable(folder: Path) -> None:
    """Refuse a run folder that cannot be written to or made; nothing is written to find out."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        reason = "it may not be written to" if existing.is_dir() else "it is not a folder"
        raise ArtifactError(f"The run folder {folder} cannot be written: {existing}: {reason}. Choose another --out.")


def repair(folder: Path, train: str | None, val: str | None) -> None:
    """Record where the data of a run lie now. Other data than those of the run are refused."""
    named = {name: address for name, address in (("train", train), ("val", val)) if address is not None}
    if not named:
        return
    config = located(overlay(saved_config(folder), named, "options").checked())
    recorded = recorded_identity(folder)
    for part in named:
        if _opened(part, config).fingerprint() != recorded.get(part):
            raise ArtifactError(_foreign(folder, part, config))
    with lock(folder):
        artifacts.write_text(folder / "config.toml", to_toml(config))


def _opened(part: str, config: RunConfig) -> LabelledImages:
    try:
        return open_images(getattr(config, part), config.limit)
    except CorpusError as error:
        raise CorpusError(f"--{part}: {error}") from None


def _foreign(path: Path, part: str, config: RunConfig) -> str:
    names = {"backbone": "backbone", "train": "training set", "val": "validation set"}
    limited = f" with --limit {config.limit}" if config.limit and part != "backbone" else ""
    return (
        f"{path} belongs to another {names[part]} than {getattr(config, part)}{limited}, or its content has changed "
        f"since: name the right one with --{part}, or choose another --out."
    )
