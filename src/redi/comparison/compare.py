"""``redi compare``: measure the rows of studies on a finished run, and summarise them."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from redi.comparison.deployed import record_merges, shown_row, time_rows
from redi.comparison.grid import Request, grid
from redi.comparison.ground import Ground, Study
from redi.comparison.learned import with_learned
from redi.comparison.plugins import with_plugins
from redi.comparison.statistics import rankings, summarise
from redi.comparison.studies import STUDIES
from redi.comparison.tasks import TASKS, TaskOptions, Tasks
from redi.early import CorpusSize
from redi.errors import ArtifactError, ConfigError
from redi.pipeline import check, open_run, run_stages
from redi.records.comparison import SCORERS_STUDY, Bundle, earlier_bundle, merged, write_bundle
from redi.records.deployed import STUDY as ACCELERATE, write_deployed
from redi.records.results import read_results, write_results
from redi.records.texts import ClassTexts
from redi.reduction import Extent
from redi.rows import Catalogue, Variant
from redi.runs.config import RunConfig
from redi.runs.folder import Run
from redi.stages.ablation import embedding_words, make_codebooks, make_embedding_words
from redi.stages.adaptive import strength_curve
from redi.stages.classifiers import classifier_names
from redi.stages.collect import collect
from redi.stages.early import make_early
from redi.stages.evaluate import GROUP, missing_rows, paper_variants, predict_variants
from redi.stages.maps import ScoreMaps, uses_text
from redi.stages.scorers import make_scorer_maps
from redi.stages.text import find_texts, make_text_evidence, own_texts


def compare(
    config: RunConfig,
    studies: Sequence[str],
    request: Request | None = None,
    against: str = "",
    dry_run: bool = False,
    group_size: int = GROUP,
    text: Path | None = None,
    options: TaskOptions | None = None,
) -> Bundle | None:
    """Measure the missing rows of the studies and of the user's own grid, then summarise all their rows.

    ``against`` is the name or the title of the row to compare with instead of each study's own reference.
    ``group_size`` is the number of rows that share an embedding. ``text`` is a file with embeddings of the class names.
    ``options`` are for the studies of other tasks, whose records are files of their own.
    """
    if unknown := [name for name in studies if name not in (*STUDIES, *TASKS)]:
        raise ConfigError(f"There is no study {unknown[0]!r}; choose one of {', '.join([*STUDIES, *TASKS])}.")
    named = [name for name in studies if name in STUDIES]
    catalogue, request = with_plugins(request)
    with open_run(config, writing=not dry_run) as run:
        size = CorpusSize(run.config.vocabulary.n_words, run.config.analysis.n_words, len(run.training.class_names))
        catalogue = replace(catalogue, has_cls=run.backbone.has_cls, size=size)
        catalogue, request = with_learned(catalogue, request, run.backbone)
        catalogue = catalogue.with_curves(partial(strength_curve, run, dry_run, catalogue.digests))
        texts = run.ranks.share(lambda: find_texts(run, text))
        chosen = _studies(run, catalogue, texts is not None, named, request, against)
        tasks = Tasks(run, [name for name in studies if name in TASKS], catalogue, options or TaskOptions())
        variants = list(dict.fromkeys(v for s in chosen for v in (*s.variants, s.reference)))
        texts = _required_texts(run, variants, texts, text, dry_run)
        if dry_run:
            check(run)
            if run.ranks.is_main:
                if chosen:
                    _print_plan(run, chosen, variants, catalogue)
                tasks.print_plan()
            return None
        earlier = earlier_bundle(run.folder)  # raises before the work if it cannot be read
        run_stages(run)
        if texts is not None:
            make_text_evidence(run, texts)
        _measure(run, variants, catalogue, group_size)
        timed = [v for study in chosen if study.name.startswith(ACCELERATE) for v in study.variants]
        if timed:
            record_merges(run, shown_row(run, timed))
        tasks.measure()
        bundle = _summarise(run, chosen, earlier) if run.ranks.is_main else None
        if run.ranks.is_main:
            tasks.summarise(read_results(run.folder))
        if timed and run.ranks.is_main:
            write_deployed(run.folder, time_rows(run, timed))
        run.ranks.wait()  # the records are written when any process goes on
        return bundle


def _studies(
    run: Run, catalogue: Catalogue, has_text: bool, names: Sequence[str], request: Request | None, against: str
) -> list[Study]:
    extent, images = Extent(run.config.budget), len(run.training.labels)
    ground = Ground(run.backbone.geometry, extent, catalogue, run.config.vocabulary, images, has_text)
    studies = [study for name in names for study in STUDIES[name](ground)]
    if request is not None:
        studies += grid(ground, request)
    if not against:
        return studies
    for variant in (v for s in studies for v in (*s.variants, s.reference)):
        if against in (variant.name(run.config.budget), variant.title):
            return [replace(study, reference=_alike(study, variant)) for study in studies]
    raise ConfigError(f"--against {against!r} is not among the rows that are compared.")


def _required_texts(
    run: Run, variants: Sequence[Variant], texts: ClassTexts | None, file: Path | None, dry_run: bool
) -> ClassTexts | None:
    """The embeddings of the class names if a row needs them, made from the run's backbone if there are none yet."""
    if not any(map(uses_text, variants)):
        if file is not None:
            raise ConfigError("--text is for rows with --labels text and for --study scorers: ask for one of them.")
        return None
    return texts or run.ranks.share(lambda: own_texts(run, planned=dry_run))


def _alike(study: Study, variant: Variant) -> Variant:
    """The study's own row with the title of a variant, which is at the study's cost; the variant if there is none."""
    alike = [own for own in study.variants if own.title == variant.title]
    return variant if variant in alike or not alike else alike[0]


@torch.no_grad()
def _measure(run: Run, variants: Sequence[Variant], catalogue: Catalogue, group_size: int) -> None:
    """Make the scores, vocabularies and predictions that are missing."""
    local = [replace(v.score, term="") for v in variants if v.score.local and not v.place]
    make_scorer_maps(run, catalogue, list(dict.fromkeys(local)))
    if places := list(dict.fromkeys(v.place for v in variants if v.place)):
        make_early(run, places)
    own = set(paper_variants(run))  # the run itself has measured them
    others = [variant for variant in variants if variant not in own]
    if any(catalogue.needs_words(variant) for variant in others):
        words = make_embedding_words(run)
        catalogue = catalogue.with_words(run.load(words)["centroids"], run.digest(words))
    usual = [variant for variant in others if variant.corpus.codebook is None]
    predict_variants(run, usual, catalogue, group_size)
    if books := [v.corpus.codebook for v in others if v.corpus.codebook is not None]:
        make_codebooks(run, list(dict.fromkeys(books)))
        ablated = [variant for variant in others if variant.corpus.codebook is not None]
        predict_variants(run, ablated, catalogue, group_size)


def _summarise(run: Run, studies: Sequence[Study], earlier: Bundle) -> Bundle:
    results = collect(run)
    write_results(run.folder, results)
    maps, names = ScoreMaps(run), classifier_names(run)
    ranked = [study for study in studies if study.name == SCORERS_STUDY]
    bundle = Bundle(
        [summarise(run, study, name, maps, results) for study in studies for name in names],
        [rankings(run, study, name, maps) for study in ranked for name in names],
    )
    write_bundle(run.folder, merged(earlier, bundle, results))
    shutil.rmtree(run.folder / "partial", ignore_errors=True)
    return bundle


def _print_plan(run: Run, studies: Sequence[Study], variants: Sequence[Variant], catalogue: Catalogue) -> None:
    for study in studies:
        print(f"{study.name:<12} {len(study.variants)} rows: {study.title}")
    missing = sum(_is_missing(run, variant, catalogue) for variant in variants)
    print(
        f"{'total':<12} {len(variants)} rows, {missing} of them still to be measured; each takes one reduced forward "
        f"pass over {len(run.validation.labels)} images"
    )


def _is_missing(run: Run, variant: Variant, catalogue: Catalogue) -> bool:
    try:
        if catalogue.needs_words(variant):
            words = embedding_words(run)
            catalogue = catalogue.with_words(run.load(words)["centroids"], run.digest(words))
        return bool(missing_rows(run, ScoreMaps(run), [variant], catalogue))
    except ArtifactError:  # its scores or words do not exist yet
        return True
