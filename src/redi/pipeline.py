"""The whole protocol, stage by stage. Read this module first.

    vocabulary   n_passes (3) corpus passes, and the features of at most K images for the start; they also give the
                 classifier's features and the codebooks of single blocks (Figure 2, early scores)
    tfidf        one corpus pass with the final vocabulary
    probe        no pass: it is trained on the features of the first corpus pass
    score        one validation pass over four views: words, attention maps, dense features
    evaluate     one validation pass: one embedding, then one short forward per row
    analysis     a sample of images; no block is run

So a corpus image is encoded four times. A validation image is encoded four times dense, and once (short) per
reduced row. The k-means passes cannot share a forward, because each needs the centroids of the pass before.
``--cache fp16`` stores the features on disk instead.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial

import torch

from redi.errors import ArtifactError, CorpusError, ImageError, printable
from redi.images.labelled import describe_left_out
from redi.records.outputs import require_own
from redi.records.results import FILE, Results, read_results, write_results
from redi.runs.config import RunConfig
from redi.runs.distributed import choose_device, join_ranks
from redi.runs.folder import Run, lock, require_writable
from redi.runs.progress import say
from redi.stages import analysis, evaluate, probe, score, tfidf, vocabulary
from redi.stages.classifiers import native_classes
from redi.stages.collect import collect
from redi.stages.features import feature_cache
from redi.views import N_VIEWS

STAGES = (vocabulary.STAGE, tfidf.STAGE, probe.STAGE, score.STAGE, evaluate.STAGE, analysis.STAGE)
LAST = STAGES[-1].name


def execute(config: RunConfig, until: str = LAST, dry_run: bool = False) -> Results | None:
    """Run the stages up to ``until``; return the results if all stages are done.

    Stages whose artefacts are current are skipped. Under torchrun the processes share every pass.
    """
    with open_run(config, writing=not dry_run) as run:
        if not dry_run:
            results = run_stages(run, until)
            if results is not None:
                shutil.rmtree(run.folder / "partial", ignore_errors=True)
            return results
        check(run)
        if run.ranks.is_main:
            _print_plan(run)
        return None


@contextmanager
def open_run(config: RunConfig, writing: bool = True) -> Iterator[Run]:
    """A run with its processes and its device. If ``writing``, other processes cannot write to its folder."""
    config = config.checked()
    if config.runtime.threads:
        torch.set_num_threads(config.runtime.threads)
    device = choose_device(config.runtime.device)
    with join_ranks(device) as ranks:
        run = Run(config, ranks, device)
        if ranks.is_main:
            require_own(run.folder)
            require_writable(run.folder)
        _report_left_out(run)
        with lock(run.folder) if writing and ranks.is_main else nullcontext():
            yield run


@torch.no_grad()
def run_stages(run: Run, until: str = LAST) -> Results | None:
    """Run the stages up to ``until`` in an open run; the main process returns the results if all are done."""
    check(run)
    if run.ranks.is_main:
        run.claim()
    run.ranks.wait()
    computed = False
    for number, stage in enumerate(STAGES, 1):
        title = f"stage {number} of {len(STAGES)}, {stage.name}"
        if run.ranks.share(partial(stage.done, run)):
            _say(run, f"{title}: already done")
        else:
            _say(run, f"{title}: {stage.passes(run)}")
            run.passes.pace.expect(sum(later.forwards(run) for later in STAGES[number - 1 :]))
            if run.ranks.is_main:
                (run.folder / FILE).unlink(missing_ok=True)
            stage.work(run)
            computed = True
        if stage.name == until and until != LAST:
            return None
    if not run.ranks.is_main:
        return None
    results = collect(run)
    if not computed:
        with suppress(ArtifactError):  # missing or damaged: written anew
            results = replace(results, environment=read_results(run.folder).environment)
    write_results(run.folder, results)
    _report_skipped(run, results)
    return results


def check(run: Run) -> None:
    """Find every mistake in the settings before the first byte of the run folder changes; a dry run does no more."""
    if run.ranks.is_main:
        run.require_same()
        _warn_about_classes(run)
    if class_mapping := native_classes(run)[1]:
        _say(run, f"native classes: {class_mapping}")
    if run.ranks.share(lambda: all(stage.done(run) for stage in STAGES)):
        return
    run.check()
    cache = feature_cache(run)
    if cache is not None and run.ranks.is_main:
        cache.require_space()


def _report_skipped(run: Run, results: Results) -> None:
    """Warn about images that could not be decoded; with --strict they are an error."""
    notes = results.notes
    for split, skipped in (("train", notes.skipped_train), ("val", notes.skipped_val)):
        if skipped:
            name, reason = skipped[0]
            say(
                f"warning: {len(skipped)} {split} images could not be decoded and were left out, e.g. {name}; "
                "results.json lists them"
            )
            if run.config.runtime.strict:
                raise ImageError(f"{reason} (--strict makes this an error)")


def _report_left_out(run: Run) -> None:
    """Warn about links, folders and files that were left out of the data; with --strict they are an error."""
    for images in (run.training, run.validation):
        if left_out := describe_left_out(images):
            if run.config.runtime.strict:
                raise CorpusError(f"{left_out} (--strict makes this an error)")
            _say(run, f"warning: {left_out}")


def _say(run: Run, text: str) -> None:
    if run.ranks.is_main:
        say(text)


def _warn_about_classes(run: Run) -> None:
    """Warn about classes without images: they have no TF-IDF (training) or are not measured (validation)."""
    names = run.training.class_names
    for split, labels in (("training", run.training.labels), ("validation", run.validation.labels)):
        present = set(labels)
        if absent := [name for label, name in enumerate(names) if label not in present]:
            shown = ", ".join(absent[:5]) + (", ..." if len(absent) > 5 else "")
            say(f"warning: {len(absent)} of {len(names)} classes have no {split} images: {shown}")


def _print_plan(run: Run) -> None:
    """Print each stage, 'done' or the passes it needs, and the disk space."""
    print(f"run folder  {printable(run.folder)}")
    print(f"backbone    {printable(run.config.backbone)} ({run.identity['backbone']})")
    limit = f" (--limit {run.config.limit} per class)" if run.config.limit else ""
    print(f"training    {len(run.training.labels)} images, {len(run.training.class_names)} classes{limit}")
    print(f"validation  {len(run.validation.labels)} images")
    done = True
    for stage in STAGES:
        done = done and stage.done(run)
        print(f"  {stage.name:<11} {'done' if done else stage.passes(run)}")
    existing = next(path for path in (run.folder, *run.folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    print(f"disk        about {_disk(run) / 2**20:.0f} MB needed, {free / 2**20:.0f} MB free")


def _disk(run: Run) -> int:
    """Bytes of the artefacts: features, score maps, words, logits and the cache. The rest is small.

    Files that are merged from parts count twice, because the parts and the whole exist at the same time.
    """
    geometry, images = run.backbone.geometry, len(run.validation.labels)
    features = 4 * geometry.width * (len(run.training.labels) + images)
    maps = images * geometry.patches * (2 * (len(run.scores) + N_VIEWS + 1) + 4 * len(score.factors(run)))
    logits = 4 * len(run.backbone.class_names or []) * images
    cache = feature_cache(run)
    return 2 * (features + maps + logits) + (cache.bytes if cache else 0)
