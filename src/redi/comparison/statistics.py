"""The statistics of a study: its rows against dense and a reference row, and the agreement of rankings."""

import torch
from torch import Tensor

from redi.comparison.ground import Study
from redi.evaluate import hits
from redi.records.comparison import Comparison, Line, Rankings
from redi.records.results import Results
from redi.rows import DENSE, Variant
from redi.runs.folder import Run
from redi.stages.evaluate import prediction_name
from redi.stages.maps import ScoreMaps
from redi.statistics import holm, keep_overlap, mcnemar_test, paired_bootstrap, paired_mean_test, spearman


def summarise(run: Run, study: Study, classifier: str, maps: ScoreMaps, results: Results) -> Comparison:
    """Compare the rows of a study, from stored predictions and score maps."""
    default = run.config.budget
    names = list(dict.fromkeys(variant.name(default) for variant in study.variants))
    variants = {variant.name(default): variant for variant in study.variants}
    reference = study.reference.name(default)
    stored = {name: run.load(prediction_name(classifier, name)) for name in dict.fromkeys([DENSE, *names, reference])}
    correct = {name: hits(tensors["top5"], tensors["labels"])[0] for name, tensors in stored.items()}
    rows = {name: results.row(name, classifier) for name in dict.fromkeys([*names, reference])}
    to_dense = holm([rows[name].p_value for name in names])
    others = [name for name in names if name != reference]
    tests = [mcnemar_test(correct[name], correct[reference]) for name in others]
    to_reference = dict(zip(others, holm(tests), strict=True))
    divergence = {name: tensors["divergence"] for name, tensors in stored.items()}
    tests = [paired_mean_test(divergence[name], divergence[reference]) for name in others]
    p_divergence = dict(zip(others, holm(tests), strict=True))
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
                dense_interval=paired_bootstrap(correct[name], correct[DENSE]).interval,
                delta_reference=against.delta,
                reference_interval=against.interval,
                p_reference=to_reference.get(name, 1.0),
                p_divergence=p_divergence.get(name, 1.0),
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
    """Agreement between all pairs of scores. Products are left out, because they agree with their factors."""
    variants = [v for v in study.variants if v.score.name and not v.score.is_product]
    variants = list({(v.score, v.label_source): v for v in variants}.values())
    score_maps = [scores for v in variants if (scores := maps.map(v, classifier)) is not None]
    keep, _, _ = run.config.budget.counts(score_maps[0].shape[1])
    rho, overlap = torch.eye(len(score_maps)), 100 * torch.eye(len(score_maps))
    for i, first in enumerate(score_maps):
        for j, second in enumerate(score_maps[:i]):
            rho[i, j] = rho[j, i] = spearman(first, second).mean()
            overlap[i, j] = overlap[j, i] = 100 * keep_overlap(first, second, keep).mean()
    names = [f"{v.score.name} [{v.label_source}]" if v.label_source else v.score.name for v in variants]
    return Rankings(names, classifier, rho.tolist(), overlap.tolist())
