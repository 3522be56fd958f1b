"""``redi compare``: measure the rows of some studies on a finished run, and say what they say."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from redi.compare.records import Bundle, earlier_bundle, merged, write_bundle
from redi.compare.statistics import rankings, summarise
from redi.compare.studies import STUDIES, Bench, Request, Study, grid
from redi.config import RunConfig
from redi.equal import Geometry
from redi.errors import ArtifactError, ConfigError
from redi.pipeline import open_run, run_stages
from redi.plugins import is_plugin, load_plugin
from redi.records import collect, write_results
from redi.reduction import WORD_MERGING
from redi.run import Run
from redi.stages.ablation import embedding_words, make_codebooks, make_embedding_words
from redi.stages.evaluate import (
    classifiers,
    missing_rows,
    paper_rows,
    predict_variants,
    score_maps,
)
from redi.stages.scorers import make_scorer_maps
from redi.variants import PRODUCT_TERMS, Catalogue, Variant, catalogue


def compare(
    config: RunConfig,
    studies: Sequence[str],
    request: Request | None = None,
    against: str = "",
    dry_run: bool = False,
) -> Bundle | None:
    """Measure what is missing of the studies (and of the user's own grid), then summarise.

    ``against`` names the row to compare with instead of the studies' own reference.
    """
    if unknown := [name for name in studies if name not in STUDIES]:
        raise ConfigError(f"There is no study {unknown[0]!r}; known are {', '.join(STUDIES)}.")
    known, request = _with_plugins(request)
    with open_run(config, writing=not dry_run) as run:
        bench = Bench(
            Geometry.of(run.backbone),
            run.config.budget,
            known,
            run.config.vocabulary,
            len(run.training.labels),
        )
        chosen = [study for name in studies for study in STUDIES[name](bench)]
        if request is not None:
            chosen.append(grid(bench, request))
        chosen = [_against(study, against, chosen, run) for study in chosen]
        variants = list(dict.fromkeys(v for s in chosen for v in (*s.variants, s.reference)))
        if dry_run:
            if run.ranks.is_main:
                _print_plan(run, chosen, variants, known)
            return None
        earlier = earlier_bundle(run.folder)  # one that cannot be read is refused before the work
        run_stages(run)
        return _compare(run, chosen, variants, known, earlier)


@torch.no_grad()
def _compare(
    run: Run,
    studies: Sequence[Study],
    variants: Sequence[Variant],
    known: Catalogue,
    earlier: Bundle,
) -> Bundle | None:
    make_scorer_maps(run, known, list(dict.fromkeys(v.local for v in variants if v.local)))
    own = set(paper_rows(run).values())  # the run itself has measured them
    left = [variant for variant in variants if variant not in own]
    if any(variant.reducer == WORD_MERGING for variant in left):
        words = make_embedding_words(run)
        known = known.with_words(run.load(words)["centroids"], run.digest(words))
    predict_variants(run, [v for v in left if v.corpus.codebook is None], known)
    if books := [v.corpus.codebook for v in left if v.corpus.codebook is not None]:
        make_codebooks(run, list(dict.fromkeys(books)))
        predict_variants(run, [v for v in left if v.corpus.codebook is not None], known)
    if not run.ranks.is_main:
        return None
    results = collect(run)
    write_results(run.folder, results)
    maps, names = score_maps(run), classifiers(run)
    found = Bundle(
        [summarise(run, study, name, maps, results) for study in studies for name in names],
        [rankings(run, s, name, maps) for s in studies if s.name == "scorers" for name in names],
    )
    write_bundle(run.folder, merged(earlier, found, results))
    shutil.rmtree(run.folder / "partial", ignore_errors=True)
    return found


def _with_plugins(request: Request | None) -> tuple[Catalogue, Request | None]:
    """The user's functions, loaded, and the request with their names instead of their files."""
    if request is None:
        return catalogue({}, {}, {}), None
    scorers: dict[str, Any] = {}
    reducers: dict[str, Any] = {}
    digests: dict[str, str] = {}
    names: dict[str, str] = {}
    for text in (*request.scorers, *request.reducers):
        if not is_plugin(text):
            continue
        prefix, file = _split_product(text)
        path, _, name = file.rpartition(":")
        name, at, block = name.partition("@")
        plugin = load_plugin(f"{path}:{name}")
        if digests.get(plugin.name, plugin.digest) != plugin.digest:
            raise ConfigError(f"Two files have a {plugin.name!r}: rename one.")
        (scorers if text in request.scorers else reducers)[plugin.name] = plugin.value
        digests[plugin.name] = plugin.digest
        names[text] = prefix + plugin.name + at + block
    renamed = Request(
        **{
            **vars(request),
            "scorers": [names.get(text, text) for text in request.scorers],
            "reducers": [names.get(text, text) for text in request.reducers],
        }
    )
    return catalogue(scorers, reducers, digests), renamed


def _split_product(text: str) -> tuple[str, str]:
    """``redi_my.py:name`` is the product of a corpus term with the user's own score."""
    for prefix in (f"{name}_" for name in PRODUCT_TERMS):
        if text.startswith(prefix) and not Path(text.rpartition(":")[0]).exists():
            return prefix, text.removeprefix(prefix)
    return "", text


def _against(study: Study, name: str, studies: Sequence[Study], run: Run) -> Study:
    if not name:
        return study
    for variant in (v for s in studies for v in (*s.variants, s.reference)):
        if variant.name(run.config.budget) == name:
            return Study(study.name, study.title, study.variants, variant)
    raise ConfigError(f"--against {name!r} is not among the rows that are compared.")


def _print_plan(
    run: Run, studies: Sequence[Study], variants: Sequence[Variant], known: Catalogue
) -> None:
    for study in studies:
        print(f"{study.name:<12} {len(study.variants)} rows")
    left = sum(_is_missing(run, variant, known) for variant in variants)
    print(
        f"{'together':<12} {len(variants)} rows, {left} of them still to be measured: each a short "
        f"forward of {len(run.validation.labels)} images"
    )


def _is_missing(run: Run, variant: Variant, known: Catalogue) -> bool:
    try:
        if variant.reducer == WORD_MERGING:
            words = embedding_words(run)
            known = known.with_words(run.load(words)["centroids"], run.digest(words))
        return bool(missing_rows(run, score_maps(run), [variant], known))
    except ArtifactError:  # its scores or words are still to be made
        return True
