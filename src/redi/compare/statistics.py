"""What a study says: each row against dense and against a reference row, corrected for their number;
and how much two rankings agree."""

import torch
from torch import Tensor

from redi.compare.records import Comparison, Line, Rankings
from redi.compare.studies import Study
from redi.evaluate import hits
from redi.records import Results
from redi.run import Run
from redi.stages.evaluate import prediction_name
from redi.stages.maps import ScoreMaps
from redi.statistics import (
    holm,
    keep_overlap,
    mcnemar_test,
    paired_bootstrap,
    paired_mean_test,
    spearman,
)
from redi.variants import Variant


def summarise(
    run: Run, study: Study, classifier: str, maps: ScoreMaps, results: Results
) -> Comparison:
    """Read predictions and score maps; nothing is run."""
    default = run.config.budget
    names = list(dict.fromkeys(variant.name(default) for variant in study.variants))
    variants = {variant.name(default): variant for variant in study.variants}
    reference = study.reference.name(default)
    used = dict.fromkeys(["dense", *names, reference])
    found = {name: run.load(prediction_name(classifier, name)) for name in used}
    correct = {name: hits(one["top5"], one["labels"])[0] for name, one in found.items()}
    rows = {name: results.row(name, classifier) for name in dict.fromkeys([*names, reference])}
    to_dense = holm([rows[name].p_value for name in names])
    others = [name for name in names if name != reference]
    tests = [mcnemar_test(correct[name], correct[reference]) for name in others]
    to_reference = dict(zip(others, holm(tests), strict=True))
    strayed = {name: one["divergence"] for name, one in found.items()}
    tests = [paired_mean_test(strayed[name], strayed[reference]) for name in others]
    strayed_more = dict(zip(others, holm(tests), strict=True))
    ranking = maps.map(study.reference, classifier)
    keep, _, _ = default.counts(ranking.shape[1]) if ranking is not None else (0, 0, 0)
    lines = []
    for name, p_dense in zip(names, to_dense, strict=True):
        against = paired_bootstrap(correct[name], correct[reference])
        rho, overlap = _agreement(maps, variants[name], classifier, ranking, keep)
        lines.append(
            Line(
                row=rows[name],
                p_dense=p_dense,
                dense_interval=paired_bootstrap(correct[name], correct["dense"]).interval,
                delta_reference=against.delta,
                reference_interval=against.interval,
                p_reference=to_reference.get(name, 1.0),
                p_divergence=strayed_more.get(name, 1.0),
                spearman=rho,
                overlap=overlap,
            )
        )
    return Comparison(study.name, study.title, classifier, rows[reference], lines)


def _agreement(
    maps: ScoreMaps, variant: Variant, classifier: str, ranking: Tensor | None, keep: int
) -> tuple[float | None, float | None]:
    scores = maps.map(variant, classifier)
    if scores is None or ranking is None:
        return None, None
    rho = spearman(scores, ranking).mean().item()
    return rho, 100 * keep_overlap(scores, ranking, keep).mean().item()


def rankings(run: Run, study: Study, classifier: str, maps: ScoreMaps) -> Rankings:
    """Between all pairs of scores that are not products: what a product agrees with is its factors."""
    variants = [v for v in study.variants if v.scorer and not (v.term and v.local)]
    variants = list({(v.scorer, v.labels): v for v in variants}.values())
    found = [scores for v in variants if (scores := maps.map(v, classifier)) is not None]
    keep, _, _ = run.config.budget.counts(found[0].shape[1])
    rho, overlap = torch.eye(len(found)), 100 * torch.eye(len(found))
    for i, first in enumerate(found):
        for j, second in enumerate(found[:i]):
            rho[i, j] = rho[j, i] = spearman(first, second).mean()
            overlap[i, j] = overlap[j, i] = 100 * keep_overlap(first, second, keep).mean()
    names = [f"{v.scorer} [{v.labels}]" if v.labels else v.scorer for v in variants]
    return Rankings(names, classifier, rho.tolist(), overlap.tolist())
