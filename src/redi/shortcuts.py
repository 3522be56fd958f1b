"""What defines a class in a labelled data set, and which of it may be a shortcut.

A visual word is a suspect of a class if its presence tells the class, and it lies where no object should be:

* **unattended**: it tells the class where it lies on patches that the model does not attend to, such as a ground;
* **fixed place**: it tells the class where it lies in one and the same place off the middle of the picture, such as a
  watermark in a corner. Such a word may itself get attention.

Presence is counted in images, not in patches, so that one unusual picture is one observation. Labels are those of the
training images; nothing here looks at a validation image.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import torch
from jaxtyping import Bool, Float, Int, Integer, UInt8
from torch import Tensor
from torch.nn.functional import avg_pool2d

from redi.errors import InvalidInput
from redi.grid import Grid
from redi.tfidf import CorpusStatistics

#: z above which the presence of a word is evidence; what exceeds it is added up over words.
LEVEL = 3.0
#: Least evidence of a flagged class.
FLAG = 6.0
#: A flagged class is also this many robust standard deviations above the median class.
OUTLIER = 5.0
#: Classes from which on the median class says what is usual.
CROWD = 10
#: Unattended patches of a word that an image must have to count: one may be a chance assignment.
UNATTENDED_PATCHES = 2
#: A place is fixed if the coincidence of a word's patches is larger: 0 is that of chance, 1 means always.
FIXED = 0.22
#: Words of a class whose places are examined, those that tell it best.
CANDIDATES = 16
#: A defining word occurs in at least this share of the images of its class.
COVERAGE = 0.1
#: Attention ranks are stored in a byte; a patch below the middle is unattended.
RANK_STEPS = 255
#: Attention lifts are added up as multiples of this step, so that the order of the sum does not matter.
LIFT_STEP = 2.0**-16


def attention_rank(maps: Sequence[Float[Tensor, "batch patches"]]) -> UInt8[Tensor, "batch patches"]:
    """The rank of each patch by attention in its image, from 0 (least) to 255 (most), as a mean over ``maps``.

    Ranks are robust: a few patches that take most of the attention, as in ViTs without registers, count once each.
    """
    patches = maps[0].shape[1]
    ranks = [values.argsort(dim=1, stable=True).argsort(dim=1).double() / max(patches - 1, 1) for values in maps]
    return (torch.stack(ranks).mean(dim=0) * RANK_STEPS).round().to(torch.uint8)


def attention_lift(maps: Sequence[Float[Tensor, "batch patches"]]) -> Float[Tensor, "batch patches"]:
    """Attention of each patch relative to the mean patch of its image, as a mean over ``maps``."""
    return torch.stack([values / values.mean(dim=1, keepdim=True).clamp(min=1e-12) for values in maps]).mean(dim=0)


class WordUse:
    """How the classes use the words: ``update`` per batch, ``merge_state`` per process. All sums are integers.

    ``images[y, k]`` counts the images of class y that hold word k, ``unattended[y, k]`` those that hold it on at least
    two unattended patches, and ``lift[y, k]`` adds up the attention lift of its patches.
    """

    def __init__(self, n_classes: int, n_words: int) -> None:
        self.corpus = CorpusStatistics(n_classes, n_words)
        self.images = torch.zeros(n_classes, n_words, dtype=torch.int64)
        self.unattended = torch.zeros(n_classes, n_words, dtype=torch.int64)
        self.lift = torch.zeros(n_classes, n_words, dtype=torch.int64)

    def update(
        self,
        words: Integer[Tensor, "batch patches"],
        ranks: UInt8[Tensor, "batch patches"],
        lift: Float[Tensor, "batch patches"],
        labels: Integer[Tensor, " batch"],
    ) -> "WordUse":
        self.corpus.update(words, labels)
        words, ranks, labels = words.cpu().long(), ranks.cpu().long(), labels.cpu().long()
        n_words = self.corpus.n_words
        empty = torch.zeros(len(words), n_words, dtype=torch.int64)
        every = empty.scatter_add(1, words, torch.ones_like(words))
        below = empty.scatter_add(1, words, is_unattended(ranks).long())
        steps = empty.scatter_add(1, words, (lift.cpu().double() / LIFT_STEP).round().long())
        self.images.index_add_(0, labels, (every > 0).long())
        self.unattended.index_add_(0, labels, (below >= UNATTENDED_PATCHES).long())
        self.lift.index_add_(0, labels, steps)
        return self

    def state(self) -> dict[str, Tensor]:
        own = {"images": self.images, "unattended": self.unattended, "lift": self.lift}
        return {**own, **self.corpus.state()}

    def merge_state(self, state: Mapping[str, Tensor]) -> None:
        self.corpus.merge_state({name: state[name] for name in self.corpus.state()})
        for name in ("images", "unattended", "lift"):
            getattr(self, name).add_(state[name])

    def mean_lift(self) -> Float[Tensor, "classes words"]:
        """Mean attention lift of the patches of a word in a class; 1 is the mean patch, 0 if there are none."""
        return self.lift * LIFT_STEP / self.corpus.word_counts.clamp(min=1)


def is_unattended(ranks: Integer[Tensor, "*axes"]) -> Bool[Tensor, "*axes"]:
    """Whether a patch is in the lower half by attention."""
    return ranks.long() * 2 < RANK_STEPS


def presence_z(
    images: Int[Tensor, "classes words"], class_images: Int[Tensor, " classes"]
) -> Float[Tensor, "classes words"]:
    """How much more often images of a class hold a word than other images do, as a z-score.

    ::

        z = 2 (asin sqrt(p) - asin sqrt(q)) / sqrt(1/n + 1/m)

    p is the share of the n images of the class that hold the word, q the share of the m other images. The arcsine makes
    the variance of a share independent of it, so that a rare word in two images is no strong evidence.
    """
    inside, outside = shares(images, class_images)
    n = class_images.double()[:, None]
    m = class_images.sum() - n
    z = 2 * (inside.sqrt().asin() - outside.sqrt().asin()) / (1 / n.clamp(min=1) + 1 / m.clamp(min=1)).sqrt()
    return torch.where((n > 0) & (m > 0), z, 0.0)


def shares(
    images: Int[Tensor, "classes words"], class_images: Int[Tensor, " classes"]
) -> tuple[Float[Tensor, "classes words"], Float[Tensor, "classes words"]]:
    """The share of the images of a class that hold each word, and the share of all other images."""
    n = class_images.double()[:, None]
    others = (class_images.sum() - n).clamp(min=1)
    return images / n.clamp(min=1), (images.sum(dim=0) - images) / others


def excess(z: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """The evidence of z-scores: what exceeds ``LEVEL``."""
    return (z - LEVEL).clamp(min=0)


def mass_share(corpus: CorpusStatistics, table: Float[Tensor, "classes words"]) -> Float[Tensor, "classes words"]:
    """The share of a class's TF-IDF mass that each word carries: n_y(k) TFIDF(y, k), divided by its sum over words.

    It is the share of the corpus score that the patches of the class's images get from the word.
    """
    mass = corpus.word_counts * table.double()
    return mass / mass.sum(dim=1, keepdim=True).clamp(min=1e-12)


def defining_words(
    table: Float[Tensor, "classes words"],
    images: Int[Tensor, "classes words"],
    class_images: Int[Tensor, " classes"],
    count: int,
) -> list[list[int]]:
    """The words of highest TF-IDF per class, among those that enough of its images hold. Zeros are left out."""
    chosen = []
    for row, held, total in zip(table, images, class_images.tolist(), strict=True):
        allowed = torch.where(held >= max(2, ceil(COVERAGE * total)), row, 0)
        values, places = allowed.sort(descending=True, stable=True)
        chosen.append([word for word, value in zip(places[:count].tolist(), values.tolist(), strict=False) if value])
    return chosen


@dataclass(frozen=True)
class Places:
    """Where the patches of some words lie in the images of one class."""

    counts: Int[Tensor, "words patches"]
    rank: Float[Tensor, " words"]  # mean attention rank of the patches in their images, in [0, 1]
    coincidence: Float[Tensor, " words"]


def places_of(
    words: Integer[Tensor, "images patches"],
    ranks: Integer[Tensor, "images patches"],
    chosen: Sequence[int],
    grid: Grid,
) -> Places:
    """Where the ``chosen`` words lie in the images of a class, and how fixed their places are.

    Two patches coincide if they lie within one patch of each other. The coincidence of a word is the probability p that
    two of its patches from different images coincide, scaled such that places drawn at random give 0. With h_d(i) = 1
    where image d has the word at place i, h their sum, B the sum over a patch and its neighbours, and n_d the number of
    the word's patches in image d::

        p = [sum_i h(i) B h(i) - sum_d sum_i h_d(i) B h_d(i)] / [(sum_d n_d)^2 - sum_d n_d^2]
        C = (p - c) / (1 - c)

    c is the same probability for two places drawn at random. A word of fewer than two images has p = 0.
    """
    if words.shape[1] != grid[0] * grid[1]:
        raise InvalidInput(f"The grid {grid[0]}x{grid[1]} does not have {words.shape[1]} patches.")
    hit = words.long()[None] == torch.tensor(list(chosen), dtype=torch.int64).view(-1, 1, 1)  # [words, images, patches]
    counts = hit.sum(dim=1)
    total = counts.sum(dim=1)
    sums = torch.tensor([int(ranks[each].long().sum()) for each in hit])
    rank = sums / (RANK_STEPS * total.clamp(min=1))
    chance = _around(torch.ones(1, grid[0] * grid[1]), grid).sum() / (grid[0] * grid[1]) ** 2
    coincidence = []
    for each, held, number in zip(hit, counts, total, strict=True):
        each = each[each.any(dim=1)].double()
        own = each.sum(dim=1)
        near = (held * _around(held[None].double(), grid)[0]).sum() - (each * _around(each, grid)).sum()
        pairs = number.double().square() - own.square().sum()
        coincidence.append((near / pairs.clamp(min=1) - chance) / (1 - chance).clamp(min=1e-12))
    return Places(counts, rank, torch.stack(coincidence).double() if coincidence else torch.zeros(0).double())


def _around(values: Float[Tensor, "rows patches"], grid: Grid) -> Float[Tensor, "rows patches"]:
    """The sum over each patch and its neighbours."""
    pooled = avg_pool2d(values.view(-1, 1, *grid), 3, stride=1, padding=1, count_include_pad=True)
    return pooled.flatten(1) * 9


def border_share(counts: Int[Tensor, "words patches"], grid: Grid) -> Float[Tensor, " words"]:
    """The share of a word's patches that lie in the outermost ring of the grid."""
    ring = torch.ones(grid, dtype=torch.bool)
    ring[1:-1, 1:-1] = False
    return counts[:, ring.flatten()].sum(dim=1) / counts.sum(dim=1).clamp(min=1)


def is_fixed(places: Places, grid: Grid) -> Bool[Tensor, " words"]:
    """Whether a word lies in a fixed place that is farther from the middle of the picture than the mean place is.

    Objects of a class often lie in the middle, so a fixed place there is no sign of a shortcut.
    """
    distance = _from_middle(grid)
    own = (places.counts * distance).sum(dim=1) / places.counts.sum(dim=1).clamp(min=1)
    return (places.coincidence > FIXED) & (own > distance.mean())


def _from_middle(grid: Grid) -> Float[Tensor, " patches"]:
    """The distance of every place from the middle of the picture: 0 in the middle, 1 at the edges."""
    down, across = (torch.linspace(-1, 1, side, dtype=torch.float64).abs() for side in grid)
    return torch.maximum(down[:, None], across[None, :]).flatten()


def usual_place(counts: Int[Tensor, " patches"], grid: Grid) -> Bool[Tensor, " patches"]:
    """The three by three places that hold most patches of a word; of several such squares, the first."""
    centre = torch.zeros(1, len(counts), dtype=torch.float64)
    centre[0, _around(counts[None].double(), grid)[0].argmax()] = 1
    return _around(centre, grid)[0] > 0.5


def place_name(counts: Int[Tensor, " patches"], grid: Grid) -> str:
    """Where most patches of a word lie, in words: the third of the rows and of the columns, such as "top left"."""
    place = usual_place(counts, grid).view(grid).nonzero().double().mean(dim=0).tolist()
    down, across = (min(int(3 * (at + 0.5) / side), 2) for at, side in zip(place, grid, strict=True))
    name = f"{('top', '', 'bottom')[down]} {('left', '', 'right')[across]}".strip()
    return name or "middle"


def images_with_word_at(
    words: Integer[Tensor, "images patches"],
    labels: Integer[Tensor, " images"],
    word: int,
    place: Bool[Tensor, " patches"],
    n_classes: int,
) -> Int[Tensor, "classes one"]:
    """How many images of each class hold a word at a place."""
    held = (words[:, place] == word).any(dim=1)
    return torch.bincount(labels[held].long(), minlength=n_classes)[:, None]


class Suspects:
    """The evidence of shortcuts in a labelled data set, class by class.

    ``words`` and ``ranks`` are those of all images, ``use`` what :class:`WordUse` counted of them.
    """

    def __init__(
        self,
        use: WordUse,
        words: Integer[Tensor, "images patches"],
        ranks: Integer[Tensor, "images patches"],
        labels: Integer[Tensor, " images"],
        grid: Grid,
    ) -> None:
        self.words, self.ranks, self.labels, self.grid = words, ranks, labels, grid
        self.class_images = use.corpus.class_images
        self.presence = presence_z(use.images, self.class_images)
        self.unattended = excess(presence_z(use.unattended, self.class_images))

    def rows(self, label: int) -> Int[Tensor, " rows"]:
        """The images of a class."""
        return (self.labels == label).nonzero().flatten()

    def places(self, label: int, chosen: Sequence[int]) -> Places:
        rows = self.rows(label)
        return places_of(self.words[rows], self.ranks[rows], chosen, self.grid)

    def fixed(self, label: int) -> Float[Tensor, " words"]:
        """The evidence from words in a fixed place: they are counted only where most of them lie."""
        evidence = torch.zeros_like(self.unattended[label])
        telling = self.presence[label].topk(min(CANDIDATES, len(evidence))).indices.tolist()
        places = self.places(label, telling)
        for k in is_fixed(places, self.grid).nonzero().flatten().tolist():
            place = usual_place(places.counts[k], self.grid)
            held = images_with_word_at(self.words, self.labels, telling[k], place, len(self.class_images))
            evidence[telling[k]] = excess(presence_z(held, self.class_images)[label, 0])
        return evidence

    def evidence(self, label: int) -> tuple[Float[Tensor, " words"], Bool[Tensor, " words"]]:
        """The evidence of each word, the larger of the two kinds, and whether it is from a fixed place."""
        fixed = self.fixed(label)
        return torch.maximum(self.unattended[label], fixed), fixed > self.unattended[label]


def flag_limit(suspicion: Float[Tensor, " classes"]) -> float:
    """The suspicion above which a class is flagged: max(FLAG, median + OUTLIER * 1.4826 MAD) over the classes.

    The first bound keeps chance out. The second keeps it rare where every class has some ground of its own, as in
    photographs; then only classes that stand out are flagged. A few classes have no such crowd, so they have the first
    bound alone.
    """
    if len(suspicion) < CROWD:
        return FLAG
    median = suspicion.median()
    deviation = 1.4826 * (suspicion - median).abs().median()
    return max(FLAG, float(median + OUTLIER * deviation))


def overlaps(
    mass: Float[Tensor, "classes words"], label: int
) -> tuple[Float[Tensor, " classes"], Float[Tensor, "classes words"]]:
    """How much of its TF-IDF mass a class shares with every class: sum_k min(share(y, k), share(y', k)), and its terms.

    The overlap of a class with itself is set to 0.
    """
    terms = torch.minimum(mass[label], mass)
    terms[label] = 0
    return terms.sum(dim=1), terms
