"""Plain loops over tokens, from which the tests write the papers' equations."""

from math import exp, fsum, sqrt
from typing import NamedTuple

from redi.reduction import DROPPED, Inside

Vector = list[float]


class Expected(NamedTuple):
    """What a loop says comes out of one image."""

    tokens: list[Vector]
    positions: list[int]
    source: list[int]


def dot(u: Vector, v: Vector) -> float:
    return fsum(a * b for a, b in zip(u, v, strict=True))


def cosine(u: Vector, v: Vector) -> float:
    return dot(u, v) / sqrt(dot(u, u) * dot(v, v))


def mean_of_heads(heads: list[Vector]) -> Vector:
    return [fsum(column) / len(heads) for column in zip(*heads, strict=True)]


def mean_over_heads(key: list[list[Vector]], prefix: int) -> list[Vector]:
    """``key`` is [heads][tokens][head_dim]; the prefix does not take part."""
    return [mean_of_heads([head[token] for head in key]) for token in range(prefix, len(key[0]))]


def merged(patches: list[Vector], sizes: Vector, groups: list[list[int]]) -> Expected:
    """A group's first member is the one that the others merge into: sum of s x / sum of s."""
    tokens, source = [], [DROPPED] * len(patches)
    for place, members in enumerate(groups):
        weight = fsum(sizes[i] for i in members)
        tokens.append([fsum(sizes[i] * patches[i][axis] for i in members) / weight for axis in range(len(patches[0]))])
        for i in members:
            source[i] = place
    return Expected(tokens, [members[0] for members in groups], source)


def most_similar(a: int, candidates: list[int], keys: list[Vector]) -> tuple[float, int]:
    best, similarity = -1, -2.0
    for b in candidates:
        value = cosine(keys[a], keys[b])
        if value > similarity:
            best, similarity = b, value
    return similarity, best


def attention_of(inside: Inside, image: int, queries: int | None = None) -> list[list[Vector]]:
    """[heads][queries][keys], softmax(q k / sqrt(d) + log s) of the first queries; a prefix token's size is 1."""
    sizes = [1.0] * inside.prefix + inside.sizes[image].double().tolist()
    if inside.bias is None:
        sizes = [1.0] * len(sizes)
    heads = []
    for query, keys in zip(inside.query[image].double().tolist(), inside.key[image].double().tolist(), strict=True):
        rows = []
        for row in query[:queries]:
            weights = [size * exp(dot(row, key) * inside.scale) for size, key in zip(sizes, keys, strict=True)]
            rows.append([weight / fsum(weights) for weight in weights])
        heads.append(rows)
    return heads


def naive_cls_attention(inside: Inside, image: int) -> Vector:
    """Of the patches, mean over heads."""
    return mean_of_heads([head[0] for head in attention_of(inside, image, queries=1)])[inside.prefix :]


class Image(NamedTuple):
    """One image of an ``Inside`` as Python lists."""

    patches: list[Vector]
    sizes: Vector
    key: list[list[Vector]]


def image_of(inside: Inside, image: int) -> Image:
    return Image(*(part[image].double().tolist() for part in (inside.patches, inside.sizes, inside.key)))
