"""``redi compare``: measure the rows of some studies on a finished run, and say what they say."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from redi import artifacts
from redi.compare.statistics import Comparison, Line, ranking_matrix, summarise
from redi.compare.studies import STUDIES, Bench, Request, Study, grid
from redi.config import RunConfig, read_config
from redi.equal import Geometry
from redi.errors import ArtifactError, ConfigError
from redi.pipeline import open_run, run_stages
from redi.plugins import is_plugin, load_plugin
from redi.records import Row, collect, write_results
from redi.reduction import WORD_MERGING
from redi.run import Run
from redi.stages.ablation import make_codebooks, make_embedding_words
from redi.stages.evaluate import (
    classifiers,
    missing_rows,
    paper_rows,
    predict_variants,
    score_maps,
)
from redi.stages.scorers import make_scorer_maps
from redi.variants import Catalogue, Variant, catalogue

FILE = "compare.json"


@dataclass(frozen=True)
class Rankings:
    """How much the scores of a study agree: Spearman's rho and the overlap of the kept patches."""

    names: list[str]
    classifier: str
    spearman: list[list[float]]
    overlap: list[list[float]]  # percent


@dataclass(frozen=True)
class Bundle:
    """What compare.json holds."""

    comparisons: list[Comparison]
    rankings: list[Rankings]


def configuration(folder: Path) -> RunConfig:
    """Of a run folder; the folder itself may have been moved."""
    path = folder / "config.toml"
    if not path.exists():
        raise ConfigError(
            f"{folder} is not a run folder: it has no config.toml. Use `redi run` first."
        )
    config = read_config(path)
    return RunConfig(**{**vars(config), "out": str(folder)})


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
        bench = Bench(Geometry.of(run.backbone), run.config.budget, known, run.config.vocabulary)
        chosen = [STUDIES[name](bench) for name in studies]
        if request is not None:
            chosen.append(grid(bench, request))
        chosen = [_against(study, against, chosen, run) for study in chosen]
        variants = list(dict.fromkeys(v for s in chosen for v in (*s.variants, s.reference)))
        if dry_run:
            if run.ranks.is_main:
                _print_plan(run, chosen, variants)
            return None
        run_stages(run)
        return _compare(run, chosen, variants, known)


@torch.no_grad()
def _compare(
    run: Run, studies: Sequence[Study], variants: Sequence[Variant], known: Catalogue
) -> Bundle | None:
    if books := [v.corpus.codebook for v in variants if v.corpus.codebook is not None]:
        make_codebooks(run, list(dict.fromkeys(books)))
    if any(variant.reducer == WORD_MERGING for variant in variants):
        words = make_embedding_words(run)
        known = known.with_words(run.load(words)["centroids"], run.digest(words))
    make_scorer_maps(run, known, list(dict.fromkeys(v.local for v in variants if v.local)))
    own = set(paper_rows(run).values())  # the run itself has measured them
    predict_variants(run, [variant for variant in variants if variant not in own], known)
    if not run.ranks.is_main:
        return None
    write_results(run.folder, collect(run))
    maps = score_maps(run)
    comparisons = [
        summarise(run, study, classifier, maps)
        for study in studies
        for classifier in classifiers(run)
    ]
    rankings = [
        _rankings(run, study, classifier, maps)
        for study in studies
        if study.name == "scorers"
        for classifier in classifiers(run)
    ]
    bundle = _merged(run.folder, Bundle(comparisons, rankings))
    artifacts.write_text(run.folder / FILE, json.dumps(asdict(bundle), indent=1) + "\n")
    shutil.rmtree(run.folder / "partial", ignore_errors=True)
    return Bundle(comparisons, rankings)


def _rankings(run: Run, study: Study, classifier: str, maps: Any) -> Rankings:
    """Of scores that are not products: what a product agrees with is its factors."""
    variants = [v for v in study.variants if v.scorer and not (v.term and v.local)]
    variants = list({(v.scorer, v.labels): v for v in variants}.values())
    keep, _, _ = run.config.budget.counts(Geometry.of(run.backbone).patches)
    rho, overlap = ranking_matrix(maps, variants, classifier, keep)
    names = [f"{v.scorer} [{v.labels}]" if v.labels else v.scorer for v in variants]
    return Rankings(names, classifier, rho.tolist(), overlap.tolist())


def _merged(folder: Path, new: Bundle) -> Bundle:
    """What earlier calls compared stays, unless it was compared anew."""
    old = read_bundle(folder) if (folder / FILE).exists() else Bundle([], [])
    done = {(c.study, c.classifier) for c in new.comparisons}
    ranked = {r.classifier for r in new.rankings}
    return Bundle(
        [c for c in old.comparisons if (c.study, c.classifier) not in done] + new.comparisons,
        [r for r in old.rankings if r.classifier not in ranked] + new.rankings,
    )


def read_bundle(folder: Path) -> Bundle:
    path = folder / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Bundle(
            [_comparison(entry) for entry in content["comparisons"]],
            [Rankings(**entry) for entry in content["rankings"]],
        )
    except FileNotFoundError:
        raise ArtifactError(f"There is no {FILE} in {folder}: run `redi compare` first.") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            f"{path} cannot be read: {error}. Delete it and compare again."
        ) from None


def _comparison(entry: dict[str, Any]) -> Comparison:
    lines = [
        Line(
            **{
                **line,
                "row": Row.read(line["row"]),
                "dense_interval": tuple(line["dense_interval"]),
                "reference_interval": tuple(line["reference_interval"]),
            }
        )
        for line in entry["lines"]
    ]
    return Comparison(**{**entry, "lines": lines})


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
    for prefix in ("redi_", "bm25_"):
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


def _print_plan(run: Run, studies: Sequence[Study], variants: Sequence[Variant]) -> None:
    for study in studies:
        print(f"{study.name:<10} {len(study.variants)} rows")
    left = sum(map(partial(_is_missing, run), variants))
    print(
        f"together   {len(variants)} rows, {left} of them still to be measured: each a short forward of "
        f"{len(run.validation.labels)} images"
    )


def _is_missing(run: Run, variant: Variant) -> bool:
    try:
        return bool(missing_rows(run, score_maps(run), [variant], catalogue({}, {}, {})))
    except ArtifactError:  # its scores are still to be made
        return True
