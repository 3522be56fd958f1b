"""Paired statistics of two rows on the same images, the correction for many tests, and Zipf's law."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, comb, erfc, exp, inf, isqrt, lgamma, log, log1p, sqrt

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax

from redi.checks import require_axes, require_finite, require_float, require_same_shape
from redi.errors import InvalidInput

#: The normal quantile of a 95 % interval.
Z = 1.959963984540054
#: The normal quantile of a one-sided 95 % bound.
Z_ONE_SIDED = 1.6448536269514722
#: Where a search for a number of images ends.
MOST_IMAGES = 10**9


@dataclass(frozen=True)
class Bootstrap:
    """The difference in Top-1, first minus second, in percent points."""

    delta: float
    interval: tuple[float, float]  # 95 %, percentiles of the resampled differences
    p_value: float


@dataclass(frozen=True)
class ZipfFit:
    """A straight line through log frequency against log rank."""

    slope: float  # minus the exponent of Zipf's law; -1 in its classical form
    r2: float  # share of the variance of log frequency that the line explains
    words: int  # the line covers ranks 1 to ``words``


def wilson(correct: int, images: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion, in percent."""
    share = correct / images
    centre = share + Z**2 / (2 * images)
    spread = Z * sqrt(share * (1 - share) / images + Z**2 / (4 * images**2))
    scale = 100 / (1 + Z**2 / images)
    return scale * (centre - spread), scale * (centre + spread)


def paired_interval(gained: int, lost: int, images: int) -> tuple[float, float]:
    """Wald's 95 % interval of a difference of paired proportions, in percent points."""
    difference = (gained - lost) / images
    spread = Z * sqrt((gained + lost) / images - difference**2) / sqrt(images)
    return 100 * (difference - spread), 100 * (difference + spread)


def paired_bound(lost: int, gained: int, images: int) -> float:
    """The one-sided 95 % upper bound of a drop in paired proportions, in percent points.

    ``lost`` images are right in the first row alone, ``gained`` ones in the second alone; the drop is their
    difference over ``images``. This is Tango's score bound [1] with a continuity correction of half an image. It is
    the largest drop D for which (D - drop - 1 / (2 n)) / sqrt((2 q + D - D^2) / n) <= 1.645. Here q is the share of
    gained images that is most likely if the drop is D.

    Without the correction, the bound is below the true drop in up to 7 % of samples with few changed images. With it,
    this is at most 5 % of them (``tests/test_statistics.py`` sums over all samples). If nothing changed the bound is
    about 3.6 / n. For ``gained = 0`` it is Wilson's bound of one proportion, with the same correction.

    [1] T. Tango, Equivalence test and confidence interval for the difference in proportions for the paired-sample
    design, Statistics in Medicine 17, 1998.
    """
    if images < 1 or min(lost, gained) < 0 or lost + gained > images:
        raise InvalidInput(f"{lost} lost and {gained} gained images do not fit into {images} images.")
    first, second = lost / images, gained / images
    low, high = first - second, 1.0
    for _ in range(40):  # bisection, to far below the step of one image
        drop = (low + high) / 2
        excess = drop - (first - second) - 1 / (2 * images)
        exceeded = excess > Z_ONE_SIDED * sqrt(_score_variance(first, second, drop) / images)
        low, high = (low, drop) if exceeded else (drop, high)
    return 100 * high


def images_needed(lost: float, gained: float, allowed: float) -> int | None:
    """The number of images from which :func:`paired_bound` is within ``allowed`` percent points.

    ``lost`` and ``gained`` are shares of the images. The result is None if no number is enough, because the drop
    itself is not below ``allowed``.
    """
    drop = allowed / 100
    excess = drop - (lost - gained)
    if drop >= 1:
        return 1
    if excess <= 0:
        return None
    # The bound is reached at excess n - z s sqrt(n) - 1/2 = 0, a quadratic equation in sqrt(n).
    spread = Z_ONE_SIDED * sqrt(_score_variance(lost, gained, drop))
    return ceil(((spread + sqrt(spread**2 + 2 * excess)) / (2 * excess)) ** 2)


def _score_variance(lost: float, gained: float, drop: float) -> float:
    """The variance of one image's difference if the true drop is ``drop``, by restricted maximum likelihood."""
    linear = lost + gained - drop * (2 - lost + gained)
    share = (linear + sqrt(max(linear**2 + 8 * gained * drop * (1 - drop), 0.0))) / 4
    return max(2 * share + drop - drop**2, 0.0)


def mean_bound(values: Float[Tensor, " images"]) -> float:
    """The one-sided 95 % upper bound of a mean over images, by Student's t: mean + t sd / sqrt(n).

    ``values`` has one number per image, such as the share of its patches that changed. Images are drawn independently
    of each other; the patches of one image are not, so they must not be counted as if each were a sample of its own.
    The bound assumes that the mean is nearly normal. It needs some tens of images, and says nothing beyond the mean if
    all values are equal.
    """
    require_axes(values, "images", "The values of the images")
    if len(values) < 2:
        raise InvalidInput("The bound of a mean needs at least two images.")
    values = values.double()
    return values.mean().item() + t_quantile(len(values) - 1) * values.std().item() / sqrt(len(values))


def images_needed_for_mean(mean: float, deviation: float, allowed: float) -> int | None:
    """The number of images from which :func:`mean_bound` is within ``allowed``, at the same mean and deviation.

    The result is None if no number up to ``MOST_IMAGES`` is enough: the mean is not below ``allowed``, or only just.
    """
    if mean >= allowed:
        return None

    def enough(images: int) -> bool:
        return mean + t_quantile(images - 1) * deviation / sqrt(images) <= allowed

    high = 2
    while not enough(high):
        high *= 2
        if high > MOST_IMAGES:
            return None
    return bisect_left(range(high), True, lo=2, key=enough)


def t_quantile(freedom: int) -> float:
    """The 95 % quantile of Student's t, by the expansion around the normal one (Abramowitz and Stegun, 26.7.5).

    It is too small by 0.001 at 3 degrees of freedom and by less than 2e-5 from 7 on.
    """
    z = Z_ONE_SIDED
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / float(freedom) ** power for power, term in enumerate(terms, start=1))


def mcnemar(gained: int, lost: int) -> float:
    """Two-sided exact McNemar test that a changed image is as likely gained as lost.

    Above 2,000 changed images the normal approximation with continuity correction is used. It is within about one
    percent of p down to 1e-4 and too large by up to a fifth at 1e-15.
    """
    changed = gained + lost
    if changed == 0:
        return 1.0
    if changed > 2000:
        z = max(abs(gained - lost) - 1, 0) / sqrt(changed)
        return erfc(z / sqrt(2))
    tail = sum(comb(changed, k) for k in range(min(gained, lost) + 1))
    return float(min(1.0, 2 * tail / 2**changed))


def mcnemar_test(first: Bool[Tensor, " images"], second: Bool[Tensor, " images"]) -> float:
    """:func:`mcnemar` of two rows, where True is a right prediction."""
    return mcnemar(int((first & ~second).sum()), int((~first & second).sum()))


def paired_bootstrap(
    first: Bool[Tensor, " images"], second: Bool[Tensor, " images"], resamples: int = 10_000, seed: int = 0
) -> Bootstrap:
    """Bootstrap over images of d = mean_i (first_i - second_i), where 1 is right and 0 is wrong.

    The difference of a resample depends only on its numbers of gained (+1), lost (-1) and unchanged (0) images.
    These are one multinomial draw with the observed shares, so single images are not drawn.

    The p-value is two-sided. It is that of the centred bootstrap, which moves the resampled d* to the null
    hypothesis of no difference: p = (k + 1) / (resamples + 1), where k counts |d* - d| >= |d|. The interval is not
    centred, so near p = 0.05 it may include 0 although p is smaller, or the reverse.
    """
    require_axes(first, "images", "The first row")
    require_same_shape(first, second, "The rows to compare")
    if first.dtype != torch.bool or second.dtype != torch.bool:
        raise InvalidInput(f"The rows must be boolean (True is right), not {first.dtype} and {second.dtype}.")
    if resamples < 1:
        raise InvalidInput(f"resamples must be at least 1, not {resamples}.")
    images = len(first)
    gained, lost = int((first & ~second).sum()), int((~first & second).sum())
    shares = np.array([gained, lost, images - gained - lost]) / images
    counts = np.random.default_rng(seed).multinomial(images, shares, size=resamples)
    net, resampled = gained - lost, counts[:, 0] - counts[:, 1]
    low, high = np.quantile(resampled, [0.025, 0.975]) * 100 / images
    # Numbers of images are integers, for which >= is exact.
    extreme = int((np.abs(resampled - net) >= abs(net)).sum())
    return Bootstrap(100 * net / images, (float(low), float(high)), (extreme + 1) / (resamples + 1))


def paired_mean_test(first: Float[Tensor, " images"], second: Float[Tensor, " images"]) -> float:
    """Two-sided p-value of Student's paired t-test that the mean paired difference is zero.

    t = mean(d) / (sd(d) / sqrt(n)), d_i = first_i - second_i, with n - 1 degrees of freedom. With few images it is
    right for differences that are nearly normal, and with many images for all.
    """
    _check(first, second, "images", "The rows to compare")
    difference = (first - second).double()
    if len(difference) < 2:
        return 1.0
    spread = difference.std().item() / sqrt(len(difference))
    if spread == 0:
        return float(difference[0] == 0)
    return t_tail(abs(difference.mean().item()) / spread, len(difference) - 1)


def mean_interval(values: Float[Tensor, " images"]) -> tuple[float, float]:
    """The 95 % interval of a mean over images, by Student's t: mean -+ t sd / sqrt(n). One image gives no width."""
    values = values.double()
    mean, width = values.mean().item(), 0.0
    if len(values) > 1:
        low, high = 0.0, 13.0  # the quantile is 12.7 at one degree of freedom, the largest
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if t_tail(middle, len(values) - 1) > 0.05 else (low, middle)
        width = high * values.std().item() / sqrt(len(values))
    return mean - width, mean + width


def t_tail(t: float, freedom: int) -> float:
    """P(abs(T) >= t) of Student's t: the regularised incomplete beta function I_x(freedom / 2, 1 / 2).

    x = freedom / (freedom + t^2). The continued fraction (Abramowitz and Stegun, 26.5.8) is exact in the far tail too.
    """
    if t == 0:
        return 1.0
    a, b, x = freedom / 2, 0.5, freedom / (freedom + t * t)
    swapped = x > (a + 1) / (a + b + 2)
    if swapped:  # where the fraction of 1 - I_(1-x)(b, a) is the one that converges
        a, b, x = b, a, t * t / (freedom + t * t)
    # The lower end of x for a large t underflows; so do the probabilities then.
    front = lgamma(a + b) - lgamma(a) - lgamma(b) + (a * log(x) + b * log1p(-x) if x > 0 else -inf)
    fraction = 0.0
    for step in range(50 + 4 * isqrt(freedom), 0, -1):
        even = step * (b - step) * x / ((a + 2 * step - 1) * (a + 2 * step))
        odd = -(a + step) * (a + b + step) * x / ((a + 2 * step) * (a + 2 * step + 1))
        fraction = even / (1 + odd / (1 + fraction))
    first = -(a + b) * x / (a + 1)
    share = exp(front) / (a * (1 + first / (1 + fraction)))
    return min(1.0, max(0.0, 1 - share if swapped else share))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm-Bonferroni adjusted p-values of m tests, in the order given.

    With p_(1) <= ... <= p_(m): adjusted_(i) = max_{j <= i} min(1, (m - j + 1) p_(j)). Rejecting all tests with an
    adjusted p-value of at most alpha keeps the chance of any false rejection at alpha, even for dependent tests.
    """
    if not all(0 <= p <= 1 for p in p_values):
        raise InvalidInput(f"p-values must lie between 0 and 1, but are {list(p_values)}.")
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, test in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[test]))
        adjusted[test] = highest
    return adjusted


def spearman(
    first: Float[Tensor, "images patches"], second: Float[Tensor, "images patches"]
) -> Float[Tensor, " images"]:
    """Spearman's rank correlation of two score maps, per image.

    rho = sum_i r_i s_i / sqrt(sum_i r_i^2 sum_i s_i^2) with r, s the centred ranks; equal scores get the average of
    their ranks. The correlation of a constant map is set to 0.
    """
    _check(first, second, "images patches", "Score maps")
    r, s = _centred_ranks(first), _centred_ranks(second)
    # The ranks are integers, so the sums are exact, and the root is 0 or at least 1.
    norm = ((r * r).sum(dim=1).double() * (s * s).sum(dim=1)).sqrt()
    return ((r * s).sum(dim=1) / norm.clamp(min=1)).float()


def zipf_fit(counts: Int[Tensor, " words"]) -> ZipfFit:
    """Fit log f(r) = a + slope log r by least squares, f(r) being the r-th highest count.

    The fit covers all words that occur, and all ranks weigh the same. R^2 = 1 - residual / total sum of squares. Where
    nothing can be fitted (fewer than two words, or all equally frequent), slope and R^2 are 0.
    """
    frequency = counts[counts > 0].double().sort(descending=True).values
    rank = torch.arange(1, len(frequency) + 1, device=counts.device).double()
    x, y = rank.log(), frequency.log()
    x, y = x - x.mean(), y - y.mean()
    total = (y * y).sum().item()
    if len(frequency) < 2 or frequency[0] == frequency[-1]:
        return ZipfFit(0.0, 0.0, len(frequency))
    slope = ((x * y).sum() / (x * x).sum()).item()
    return ZipfFit(slope, 1 - (y - slope * x).square().sum().item() / total, len(frequency))


def keep_overlap(
    first: Float[Tensor, "images patches"], second: Float[Tensor, "images patches"], keep: int
) -> Float[Tensor, " images"]:
    """|K_1 and K_2| / keep, with K_1 and K_2 the ``keep`` best patches of each map; chance gives keep / patches.

    Raster order wins a tie, as in :func:`redi.reduction.reduce`, so two constant maps overlap fully.
    """
    _check(first, second, "images patches", "Score maps")
    if not 1 <= keep <= first.shape[1]:
        raise InvalidInput(f"keep must be 1 to {first.shape[1]} patches, not {keep}.")
    best_1, best_2 = (scores.argsort(dim=1, descending=True, stable=True)[:, :keep] for scores in (first, second))
    in_first = torch.zeros_like(first, dtype=torch.bool).scatter(1, best_1, True)
    return in_first.gather(1, best_2).float().mean(dim=1)


def agreement(first_best: Int[Tensor, " images"], second_best: Int[Tensor, " images"]) -> float:
    """Percent of images for which two rows predict the same class, right or wrong."""
    require_axes(first_best, "images", "Predictions")
    require_same_shape(first_best, second_best, "The predictions to compare")
    return 100 * int((first_best == second_best).sum()) / len(first_best)


def divergence(
    dense_logits: Float[Tensor, "images classes"], logits: Float[Tensor, "images classes"]
) -> Float[Tensor, " images"]:
    """KL(p || q) = sum_c p_c (log p_c - log q_c) in nats, with p from the dense logits and q from ``logits``.

    It is computed in FP32, whatever the precision of the logits. Negative values from rounding are set to zero.
    """
    _check(dense_logits, logits, "images classes", "Logits")
    log_p, log_q = (log_softmax(x.float(), dim=1) for x in (dense_logits, logits))
    return kl_div(log_q, log_p, reduction="none", log_target=True).sum(dim=1).clamp(min=0)


def _centred_ranks(scores: Float[Tensor, "images patches"]) -> Int[Tensor, "images patches"]:
    """Twice the average rank minus its mean: #lower + #lower-or-equal - patches, an integer."""
    scores = scores.contiguous()
    ordered = scores.sort(dim=1).values
    lower = torch.searchsorted(ordered, scores)
    return lower + torch.searchsorted(ordered, scores, right=True) - scores.shape[1]


def _check(first: Tensor, second: Tensor, axes: str, name: str) -> None:
    require_axes(first, axes, name)
    require_same_shape(first, second, name)
    for values in (first, second):
        require_float(values, name)
        require_finite(values, name)
