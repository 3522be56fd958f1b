"""The whole protocol, stage by stage: read this first.

    vocabulary   n_passes corpus passes (3) and the features of at most K images for its start; the
                 classifier's features and figure 2's codebooks ride on them
    tfidf        one corpus pass with the final vocabulary
    probe        no pass: trained on the features of the first one
    score        one validation pass over four views: words, attention maps, dense features
    evaluate     one validation pass: one embedding, then one short forward a row
    analysis     a sample of images; no block is run

So a corpus image is encoded four times and a validation image four times dense and once (short) for
every reduced row. The k-means passes cannot share a forward, because each needs the centroids of the
one before; ``--cache fp16`` trades them for disk.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch

from redi.config import RunConfig
from redi.distributed import choose_device, join_ranks
from redi.errors import ImageError
from redi.progress import say
from redi.records import Results, collect, write_results
from redi.run import SCORES, Run, lock
from redi.stages import analysis, evaluate, probe, score, tfidf, vocabulary
from redi.stages.features import feature_cache


@dataclass(frozen=True)
class Stage:
    name: str
    work: Callable[[Run], None]
    done: Callable[[Run], bool]
    needs: Callable[[Run], str]  # in words: which passes over what


STAGES = (
    Stage(
        "vocabulary",
        vocabulary.fit_vocabulary,
        vocabulary.vocabulary_done,
        lambda run: (
            f"{run.config.vocabulary.n_passes} passes over {len(run.training.labels)} training images"
        ),
    ),
    Stage(
        "tfidf",
        tfidf.build_table,
        tfidf.tfidf_done,
        lambda run: f"1 pass over {len(run.training.labels)} training images",
    ),
    Stage("probe", probe.train_probe, probe.probe_done, lambda run: "no pass"),
    Stage(
        "score",
        score.make_scores,
        score.score_done,
        lambda run: f"4 views of {len(run.validation.labels)} validation images",
    ),
    Stage(
        "evaluate",
        evaluate.predict,
        evaluate.evaluate_done,
        lambda run: (
            f"{len(SCORES)} reduced forwards of {len(run.validation.labels)} validation images"
        ),
    ),
    Stage("analysis", analysis.analyse, analysis.analysis_done, lambda run: "no forward"),
)


def execute(config: RunConfig, until: str = "analysis", dry_run: bool = False) -> Results | None:
    """Run the stages up to ``until``; the results where all of them are done.

    Stages whose artefacts are current are skipped. The same call under torchrun shares every pass
    between the processes.
    """
    with open_run(config, writing=not dry_run) as run:
        if not dry_run:
            results = run_stages(run, until)
            if results is not None:
                shutil.rmtree(run.folder / "partial", ignore_errors=True)
            return results
        if run.ranks.is_main:
            _print_plan(run)
        return None


@contextmanager
def open_run(config: RunConfig, writing: bool = True) -> Iterator[Run]:
    """A run with its processes and its device; locked against others where it is written to."""
    if config.runtime.threads:
        torch.set_num_threads(config.runtime.threads)
    device = choose_device(config.runtime.device)
    with join_ranks(device) as ranks:
        run = Run(config, ranks, device)
        with lock(run.folder) if writing and ranks.is_main else nullcontext():
            yield run


@torch.no_grad()
def run_stages(run: Run, until: str = "analysis") -> Results | None:
    """The stages up to ``until`` in an open run; the results on the main process, once all are done."""
    if run.ranks.is_main:
        run.claim()
        _warn_about_classes(run)
    run.ranks.wait()
    if run.config.classifier != "probe":
        _, how = evaluate.native_classes(run)  # a head that does not fit is noticed before the work
        _say(run, f"native classes: {how}")
    for stage in STAGES:
        if run.ranks.share(partial(stage.done, run)):
            _say(run, f"{stage.name}: already done")
        else:
            _say(run, f"{stage.name}: {stage.needs(run)}")
            if run.ranks.is_main:
                (run.folder / "results.json").unlink(missing_ok=True)
            stage.work(run)
        if stage.name == until and until != "analysis":
            return None
    if not run.ranks.is_main:
        return None
    results = collect(run)
    write_results(run.folder, results)
    for what in ("train", "val"):
        if skipped := results.notes[f"skipped_{what}"]:
            say(
                f"warning: {len(skipped)} {what} images could not be decoded and were left out, "
                f"e.g. {skipped[0][0]}; results.json lists them"
            )
            if run.config.runtime.strict:
                raise ImageError(f"{skipped[0][1]} (--strict allows no such image)")
    return results


def _say(run: Run, text: str) -> None:
    if run.ranks.is_main:
        say(text)


def _warn_about_classes(run: Run) -> None:
    """A class without training images has no TF-IDF; one without validation images is not measured."""
    names = run.training.class_names
    for what, labels in (("training", run.training.labels), ("validation", run.validation.labels)):
        present = set(labels)
        if absent := [name for label, name in enumerate(names) if label not in present]:
            shown = ", ".join(absent[:5]) + (", ..." if len(absent) > 5 else "")
            say(f"warning: {len(absent)} of {len(names)} classes have no {what} images: {shown}")


def _print_plan(run: Run) -> None:
    """Stages, what is done and what each still needs, and the disk it will take."""
    print(f"run folder  {run.folder}")
    print(f"backbone    {run.config.backbone} ({run.identity['backbone']})")
    print(f"training    {len(run.training.labels)} images, {len(run.training.class_names)} classes")
    print(f"validation  {len(run.validation.labels)} images")
    done = True
    for stage in STAGES:
        done = done and stage.done(run)
        print(f"  {stage.name:<11} {'done' if done else stage.needs(run)}")
    existing = next(path for path in (run.folder, *run.folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    print(f"disk        about {_disk(run) / 2**20:.0f} MB needed, {free / 2**20:.0f} MB free")


def _disk(run: Run) -> int:
    """Bytes of the artefacts: features, score maps, words and the cache; twice what is merged from
    parts, because both exist for a moment. The rest is small."""
    backbone = run.backbone
    patches = (backbone.preprocessing.size // backbone.patch_size) ** 2
    features = 4 * backbone.width * (len(run.training.labels) + len(run.validation.labels))
    maps = len(run.validation.labels) * patches * (2 * len(SCORES) + 2 * 5)
    classes = len(backbone.class_names or [])
    cache = feature_cache(run)
    logits = 4 * classes * len(run.validation.labels)
    return 2 * (features + maps + logits) + (cache.bytes if cache else 0)
