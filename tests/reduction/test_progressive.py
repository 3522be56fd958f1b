"""Progressive reducers: by hand, against loops written from their papers' equations, and inside
the backbones against forwards with eager attention."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import exp, fsum, log, sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.nn.functional import one_hot, pad

from families import make_model
from insides import make_inside
from loops import Expected, Vector, cosine, image_of, mean_over_heads, merged, most_similar, naive_cls_attention
from redi.attention import cls_rows
from redi.backbone import Backbone, Watch, load_backbone
from redi.backbone.hook import attention_forward
from redi.backbone.timm_model import TimmBlock, TimmModel
from redi.errors import InvalidInput
from redi.reduction import DROPPED, PROGRESSIVE, Inside, Progressive, Reduction, Schedule, unreduce
from redi.reduction.peers import evit, pitome, tome
from redi.reduction.progressive import merge_pairs
from timm_families import without_fused_attention

#: The reducers whose papers' loops are below.
PEERS = {name: PROGRESSIVE[name] for name in ("tome", "pitome", "evit")}

COUNTS = [(2, 1), (3, 2), (9, 8), (9, 5), (16, 11), (16, 8), (25, 20), (25, 13)]
SCHEDULE = (30, 30, 19)  # of 36: a block in the middle that removes nothing

counts = pytest.mark.parametrize(("n", "count"), COUNTS)
prefixes = pytest.mark.parametrize("prefix", [1, 5])
progressives = pytest.mark.parametrize("reducer", PEERS.values(), ids=PEERS)


def with_keys(inside: Inside, keys: Tensor) -> Inside:
    """The same keys ``[batch, patches, dim]``, filled up with zeros, in every head, but of other lengths."""
    keys = pad(keys, (0, inside.key.shape[3] - keys.shape[2]))
    heads = torch.stack([keys, 2 * keys, keys, 4 * keys], dim=1)
    noise = torch.randn(len(keys), 4, inside.prefix, keys.shape[2])
    return replace(inside, key=torch.cat([noise, heads], dim=2))


def with_tied_keys(inside: Inside) -> Inside:
    """Tokens in three groups of 1/7, 2/7 and 4/7, shuffled; within a group all similarities tie."""
    batch, n = inside.sizes.shape
    group = torch.tensor([0, 1, 1, 2, 2, 2, 2]).repeat(n // 7 + 1)[:n]
    keys = torch.stack([one_hot(group[torch.randperm(n)], 6).float() for _ in range(batch)])
    return with_keys(inside, keys)


def naive_tome(patches: list[Vector], sizes: Vector, keys: list[Vector], count: int) -> Expected:
    """Sec. 3 of ToMe, "Bipartite Soft Matching", its five steps in order."""
    sequence = [-1, *range(len(patches))]  # -1 is CLS
    a_set = [i for i in sequence[0::2] if i != -1]  # 1. alternate; CLS is not merged
    b_set = sequence[1::2]
    edges = [(*most_similar(a, b_set, keys), a) for a in a_set]  # 2. one edge from each of A
    edges.sort(key=lambda edge: -edge[0])
    joins = {a: b for _, b, a in edges[: len(patches) - count]}  # 3. the r most similar
    groups = [[a] for a in a_set if a not in joins]
    groups += [[b] + [a for a in a_set if joins.get(a) == b] for b in b_set]  # 4. merge, 5. concat
    return merged(patches, sizes, groups)


def energies(keys: list[Vector], margin: float) -> Vector:
    """Eq. 4 of PiToMe over a token's neighbours: all tokens but itself, whose f(1) = 1 they share."""

    def f(x: float) -> float:
        return x if x >= margin else 1.0 * (exp(x - margin) - 1)

    everyone = range(len(keys))
    return [fsum(f(cosine(keys[i], keys[j])) for j in everyone if j != i) / len(keys) for i in everyone]


def naive_pitome(patches: list[Vector], sizes: Vector, keys: list[Vector], count: int, depth_share: float) -> Expected:
    """Algorithm 1 of PiToMe: order by energy, protect all but the first 2r, match within those."""
    n, r = len(patches), len(patches) - count
    energy = energies(keys, margin=0.9 - 0.9 * depth_share)
    order = sorted(range(n), key=lambda i: -energy[i])
    merging, protected = order[: 2 * r], sorted(order[2 * r :])
    a_set, b_set = merging[0::2], merging[1::2]
    joins = {a: most_similar(a, b_set, keys)[1] for a in a_set}
    groups = [[i] for i in protected]
    groups += [[b] + [a for a in a_set if joins[a] == b] for b in b_set]
    return merged(patches, sizes, groups)


def naive_evit(patches: list[Vector], attention: Vector, count: int) -> Expected:
    """Sec. 3.2 and 3.3 of EViT: top k attentive tokens, and sum of a_i x_i over the others."""
    n = len(patches)
    order = sorted(range(n), key=lambda i: -attention[i])
    attentive, rest = sorted(order[: count - 1]), order[count - 1 :]
    tokens = [patches[i] for i in attentive]
    tokens.append([fsum(attention[i] * patches[i][axis] for i in rest) for axis in range(len(patches[0]))])
    source = [attentive.index(i) if i in attentive else count - 1 for i in range(n)]
    return Expected(tokens, [*attentive, rest[0]], source)


def expected_of(method: str, inside: Inside, image: int, count: int) -> Expected:
    patches, sizes, key = image_of(inside, image)
    if method == "evit":
        return naive_evit(patches, naive_cls_attention(inside, image), count)
    keys = mean_over_heads(key, inside.prefix)
    if method == "tome":
        return naive_tome(patches, sizes, keys, count)
    return naive_pitome(patches, sizes, keys, count, inside.block / inside.depth)


def assert_as_expected(method: str, inside: Inside, count: int) -> None:
    result = PEERS[method].step(inside, count)
    assert result.tokens.shape[1] == count
    for image in range(len(inside.patches)):
        expected = expected_of(method, inside, image, count)
        assert result.positions[image].tolist() == expected.positions
        assert result.source[image].tolist() == expected.source
        torch.testing.assert_close(result.tokens[image], torch.tensor(expected.tokens), atol=1e-5, rtol=1e-5)


def unit(degrees: list[float]) -> Tensor:
    angle = torch.tensor(degrees).deg2rad()
    return torch.stack([angle.cos(), angle.sin()], dim=1)[None]


def by_hand(keys: Tensor, sizes: list[float], values: list[float], block: int = 0) -> Inside:
    inside = replace(
        make_inside(len(values), 1, block, batch=1),
        patches=torch.tensor(values).float()[None, :, None],
        sizes=torch.tensor([sizes]).float(),
    )
    return with_keys(inside, keys)


def test_tome_by_hand() -> None:
    # B is patches 0, 2, 4 at 0, 40 and 90 degrees; A is 1 and 3 at 38 and 80: both edges go to the
    # nearest, 2 degrees to patch 2 and 10 degrees to patch 4, so the first of them merges first.
    inside = by_hand(unit([0, 38, 40, 80, 90]), [1, 1, 3, 2, 1], [1, 2, 6, 5, 8])
    one = tome(inside, 4)
    assert one.positions.tolist() == [[3, 0, 2, 4]]
    assert one.source.tolist() == [[1, 2, 2, 0, 3]]
    assert one.tokens.flatten().tolist() == [5, 1, (2 + 3 * 6) / 4, 8]
    two = tome(inside, 3)
    assert two.positions.tolist() == [[0, 2, 4]]
    assert two.source.tolist() == [[0, 1, 1, 2, 2]]
    assert two.tokens.flatten().tolist() == [1, 5, (2 * 5 + 8) / 3]


def test_pitome_by_hand() -> None:
    # Three equal tokens and one at a right angle, m = 0.9: energies 1 + 1 + 1 + (e^-0.9 - 1) and
    # 1 + 3 (e^-0.9 - 1), over 4. The first two of the three merge, the lonely one is protected.
    inside = by_hand(unit([0, 90, 0, 0]), [1, 1, 2, 1], [3, 7, 6, 9])
    result = pitome(inside, 3)
    assert result.positions.tolist() == [[1, 3, 2]]
    assert result.source.tolist() == [[2, 0, 2, 1]]
    assert result.tokens.flatten().tolist() == [7, 9, (3 + 2 * 6) / 3]


def test_pitomes_margin_falls_with_depth() -> None:
    # At the first block m = 0.9 and only the pair that is one degree apart counts fully: it merges.
    inside = by_hand(unit([0, 1, 120, 150, 180]), [1] * 5, [0.0, 1, 2, 3, 4])
    first = pitome(inside, 4)
    assert first.positions.tolist() == [[2, 3, 4, 0]]
    assert first.source.tolist() == [[3, 3, 0, 1, 2]]
    # At the last of four m = 0.225, so cos 30 and cos 60 count as well: patch 3 gains twice 0.87,
    # patches 2 and 4 gain 0.87 + 0.5, of which patch 2 is the nearer to the pair.
    last = pitome(replace(inside, block=3), 4)
    assert last.positions.tolist() == [[0, 1, 4, 2]]
    assert last.source.tolist() == [[0, 1, 3, 3, 2]]


def test_evit_by_hand() -> None:
    # Logits 0 for CLS and log 1, log 5, log 2, log 1 for the patches: attention 1, 5, 2, 1 of 10.
    inside = replace(
        make_inside(4, 1, batch=1),
        patches=torch.tensor([[[10.0], [20.0], [30.0], [40.0]]]),
        query=torch.tensor([1.0]).expand(1, 2, 5, 1),
        key=torch.tensor([0.0, 0.0, log(5), log(2), 0.0])[:, None].expand(1, 2, 5, 1),
        value=torch.zeros(1, 2, 5, 1),
        bias=None,
        scale=1.0,
    )
    torch.testing.assert_close(inside.attention, torch.tensor([[0.1, 0.5, 0.2, 0.1]]))
    result = evit(inside, 2)
    assert result.positions.tolist() == [[1, 2]], "the best of the rest lends its position"
    assert result.source.tolist() == [[1, 0, 1, 1]]
    torch.testing.assert_close(result.tokens.flatten(), torch.tensor([20.0, 1 + 6 + 4.0]))


def test_merge_pairs_by_hand() -> None:
    inside = replace(
        make_inside(4, 1, batch=1),
        patches=torch.tensor([[[1.0], [2.0], [3.0], [4.0]]]),
        sizes=torch.tensor([[1.0, 3.0, 2.0, 5.0]]),
    )
    rest, targets = torch.tensor([[2]]), torch.tensor([[3]])
    both, into = torch.tensor([[0, 1]]), torch.tensor([[0, 0]])
    result = merge_pairs(inside, rest, targets, both, into)
    torch.testing.assert_close(result.tokens.flatten(), torch.tensor([3.0, (1 + 3 * 2 + 5 * 4) / 9]))
    assert result.positions.tolist() == [[2, 3]]
    assert result.source.tolist() == [[1, 1, 0, 1]]


@prefixes
@counts
def test_tome_equals_the_papers_loop(n: int, count: int, prefix: int) -> None:
    assert_as_expected("tome", make_inside(n, prefix), count)


@prefixes
@pytest.mark.parametrize(("n", "count"), COUNTS[1:])  # of two tokens both have the same energy
@pytest.mark.parametrize("block", [0, 2, 3])
def test_pitome_equals_the_papers_loop(n: int, count: int, prefix: int, block: int) -> None:
    assert_as_expected("pitome", make_inside(n, prefix, block), count)


@prefixes
@pytest.mark.parametrize(("n", "count"), [*COUNTS, (9, 1), (25, 3)])
def test_evit_equals_the_papers_loop(n: int, count: int, prefix: int) -> None:
    inside = make_inside(n, prefix)
    assert_as_expected("evit", replace(inside, bias=None), count)
    assert_as_expected("evit", inside, count)


@pytest.mark.parametrize("method", ["tome", "pitome"])
@prefixes
@pytest.mark.parametrize(("n", "count"), [(14, 13), (14, 10), (14, 7), (21, 16), (21, 11)])
def test_ties_fall_to_the_first_as_in_the_loop(method: str, n: int, count: int, prefix: int) -> None:
    assert_as_expected(method, with_tied_keys(make_inside(n, prefix)), count)


def test_equal_attention_keeps_the_first_tokens() -> None:
    inside = make_inside(9, 5)
    inside = replace(inside, query=torch.zeros_like(inside.query), bias=None)
    result = evit(inside, 4)
    assert result.positions.tolist() == [[0, 1, 2, 3]] * 3
    assert result.source.tolist() == [[0, 1, 2] + [3] * 6] * 3


@prefixes
@counts
@pytest.mark.parametrize("method", PEERS)
def test_every_token_went_where_source_says(method: str, n: int, count: int, prefix: int) -> None:
    inside = make_inside(n, prefix)
    result = PEERS[method].step(inside, count)
    assert result.source.min() >= 0
    assert torch.equal(result.source.gather(1, result.positions), torch.arange(count).expand(3, -1)), (
        "who lends a token its position went into it"
    )
    if method == "evit":
        return
    # The size-weighted sum over all tokens is the same before and after.
    sizes = torch.zeros(3, count).scatter_add(1, result.source, inside.sizes)
    assert torch.equal(sizes.sum(dim=1), inside.sizes.sum(dim=1))
    torch.testing.assert_close(
        (sizes[..., None] * result.tokens).sum(dim=1),
        (inside.sizes[..., None] * inside.patches).sum(dim=1),
        atol=1e-5,
        rtol=1e-5,
    )


@pytest.mark.parametrize("method", ["tome", "pitome"])
def test_tokens_that_nothing_joins_keep_every_bit(method: str) -> None:
    inside = make_inside(25, 1)
    inside = replace(inside, sizes=inside.sizes * 3 + 0.1)  # x s / s is not x for many of these
    result = PEERS[method].step(inside, 20)
    alone = 0
    for image in range(3):
        for place, position in enumerate(result.positions[image].tolist()):
            if int((result.source[image] == place).sum()) == 1:
                alone += 1
                assert torch.equal(result.tokens[image, place], inside.patches[image, position])
    assert alone >= 3 * 15


@pytest.mark.parametrize("method", ["tome", "pitome"])
def test_half_precision_tokens_are_merged_in_fp32(method: str) -> None:
    inside = make_inside(25, 1)
    rough = replace(inside, patches=inside.patches.bfloat16())
    result = PEERS[method].step(rough, 13)
    expected = PEERS[method].step(replace(rough, patches=rough.patches.float()), 13)
    assert result.tokens.dtype == torch.bfloat16
    assert torch.equal(result.tokens, expected.tokens.bfloat16())


@prefixes
def test_keys_are_the_mean_over_heads_without_the_prefix(prefix: int) -> None:
    inside = make_inside(9, prefix)
    for image in range(3):
        expected = mean_over_heads(image_of(inside, image).key, prefix)
        torch.testing.assert_close(inside.keys[image], torch.tensor(expected))


@prefixes
def test_cls_attention_is_the_softmax_with_log_sizes(prefix: int) -> None:
    inside = make_inside(9, prefix)
    for given in (inside, replace(inside, bias=None)):
        for image in range(3):
            torch.testing.assert_close(given.attention[image], torch.tensor(naive_cls_attention(given, image)))


def test_given_scores_replace_the_attention_as_shares_of_their_sum() -> None:
    inside = make_inside(9, 1)
    assert torch.equal(inside.relevance, inside.attention)
    assert torch.equal(inside.weights(inside.relevance), inside.attention)
    scores = 5 * torch.rand(3, 9)
    scored = replace(inside, scores=scores)
    assert torch.equal(scored.relevance, scores)
    result = evit(scored, 4)
    for image in range(3):
        omega = [float(score) + 1e-4 for score in scores[image]]
        shares = [weight / sum(omega) for weight in omega]
        weights = scored.weights(scored.relevance)[image]
        torch.testing.assert_close(weights, torch.tensor(shares))
        expected = naive_evit(image_of(inside, image).patches, shares, 4)
        assert result.positions[image].tolist() == expected.positions
        assert result.source[image].tolist() == expected.source
        torch.testing.assert_close(result.tokens[image], torch.tensor(expected.tokens))


def test_negative_scores_keep_their_order() -> None:
    inside = replace(make_inside(4, 1), scores=torch.tensor([[-4.0, -3, -2, -1]] * 3))
    assert evit(inside, 3).positions[:, :2].tolist() == [[2, 3]] * 3


@progressives
def test_permuting_the_images_permutes_a_step(reducer: Progressive) -> None:
    inside = make_inside(16, 5, batch=4)
    order = torch.tensor([2, 0, 3, 1])
    permuted = replace(
        inside, **{name: getattr(inside, name)[order] for name in ("patches", "sizes", "query", "key", "value", "bias")}
    )
    result, other = reducer.step(inside, 10), reducer.step(permuted, 10)
    torch.testing.assert_close(other.tokens, result.tokens[order])
    assert torch.equal(other.positions, result.positions[order])
    assert torch.equal(other.source, result.source[order])


def attend(inside: Inside, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
    module = nn.Module()
    module.is_causal = False  # type: ignore[assignment]
    output, _ = attention_forward(module, inside.query, key, value, bias, scaling=inside.scale)
    return output


def test_attention_to_a_token_is_proportional_to_its_size() -> None:
    """ToMe, Eq. 1: softmax(Q K^T / sqrt(d) + log s) weighs a key s times exp(q k / sqrt(d))."""
    inside = make_inside(7, 5, batch=2)
    output = attend(inside, inside.key, inside.value, inside.bias)
    sizes = torch.cat([torch.ones(2, 5), inside.sizes], dim=1).double()
    query, key, value = inside.query.double(), inside.key.double(), inside.value.double()
    for image in range(2):
        for head in range(4):
            for token in range(12):
                weights = [
                    float(sizes[image, j]) * exp(float(query[image, head, token] @ key[image, head, j]) / sqrt(6))
                    for j in range(12)
                ]
                rows = [w * value[image, head, j] for j, w in enumerate(weights)]
                expected = torch.stack(rows).sum(dim=0) / fsum(weights)
                torch.testing.assert_close(output[image, token, head], expected.float())


def test_a_token_of_size_s_is_attended_to_like_s_equal_tokens() -> None:
    inside = make_inside(7, 1, batch=1)
    output = attend(inside, inside.key, inside.value, inside.bias)
    copies = torch.cat([torch.ones(1), inside.sizes[0]]).long()
    keys, values = (x.repeat_interleave(copies, dim=2) for x in (inside.key, inside.value))
    repeated = attend(inside, keys, values, None)
    assert keys.shape[2] > 8
    torch.testing.assert_close(output, repeated)


# Inside the backbones.


@dataclass
class Recorder:
    """Lets a reducer work and writes down what it saw and what it did."""

    reducer: Progressive
    insides: list[Inside] = field(default_factory=list)
    reductions: list[Reduction] = field(default_factory=list)

    def step(self, inside: Inside, count: int) -> Reduction:
        self.insides.append(inside)
        self.reductions.append(self.reducer.step(inside, count))
        return self.reductions[-1]

    @property
    def progressive(self) -> Progressive:
        return replace(self.reducer, step=self.step)


def members_of(reductions: list[Reduction], image: int, n: int) -> list[list[int]]:
    """The image patches that each token stands for after these steps, patch by patch."""
    groups = [[i] for i in range(n)]
    for reduction in reductions:
        after: list[list[int]] = [[] for _ in range(reduction.tokens.shape[1])]
        for token, group in enumerate(groups):
            place = int(reduction.source[image, token])
            if place != DROPPED:
                after[place] += group
        groups = after
    return groups


def drop(inside: Inside, count: int) -> Reduction:
    """Throws away the tokens that CLS attends to least; every second time only, and merges else."""
    if inside.block != 1:
        return tome(inside, count)
    tokens, positions = [], []
    source = torch.full(inside.sizes.shape, DROPPED)
    for image, attention in enumerate(inside.attention):
        kept = sorted(attention.argsort(descending=True)[:count].tolist())
        source[image, kept] = torch.arange(count)
        tokens.append(inside.patches[image, kept])
        positions.append(kept)
    return Reduction(torch.stack(tokens), torch.tensor(positions), source)


def positions_of(backbone: Backbone, pixels: Tensor) -> dict[str, Any]:
    rope = backbone.embed(pixels).rope
    return {} if rope is None else {"position_embeddings": rope}


def test_the_halves_are_the_block_to_the_last_bit(backbone: Backbone, pixels: Tensor) -> None:
    hidden = backbone.embed(pixels).sequence
    bias = torch.rand(3, 1, 1, hidden.shape[1])
    halves = backbone.family.halves
    for block in backbone.blocks:
        for mask in (None, bias):
            options = {**positions_of(backbone, pixels), "attention_mask": mask}
            whole = block(hidden, **options)
            attended = halves.attend(block, hidden, **options, redi_capture={})
            assert torch.equal(halves.transform(block, attended), whole)
            assert not torch.equal(attended, whole)
        hidden = whole


@contextmanager
def inputs_of_linear_layers(module: nn.Module) -> Iterator[list[Tensor]]:
    seen: list[Tensor] = []
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    hooks = [layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])) for layer in layers]
    yield seen
    for hook in hooks:
        hook.remove()


def attention_of(block: Any) -> nn.Module:
    if isinstance(block, TimmBlock):
        block = block.block
    names = ("attn", "attention", "self_attn")  # of timm, of most families of transformers, of CLIP and SigLIP
    attention: nn.Module = next(getattr(block, name) for name in names if hasattr(block, name))
    return attention


def test_a_step_sees_the_attention_of_its_block(backbone: Backbone, pixels: Tensor) -> None:
    tokens = backbone.embed(pixels)
    for block in range(3):
        schedule = (36,) * block + (30,) * (3 - block)
        recorder = Recorder(PEERS["evit"])
        with inputs_of_linear_layers(attention_of(backbone.blocks[block])) as seen:
            backbone.encode_progressively(tokens, recorder.progressive, schedule)
        (inside,) = recorder.insides
        assert (inside.block, inside.depth, inside.prefix) == (block, 3, backbone.prefix)
        attention = (inside.query @ inside.key.transpose(2, 3) * inside.scale).softmax(dim=-1)
        # The last layer of an attention module is its output projection.
        context = (attention @ inside.value).transpose(1, 2).flatten(2)
        torch.testing.assert_close(context, seen[-1], atol=1e-5, rtol=1e-5)
        if backbone.has_cls:
            rows = Watch(cls_rows, [block])
            backbone.encode(tokens, stop=block + 1, watch=[rows])
            expected = rows.value(block)
        else:  # the attention of the mean query
            query = inside.query.mean(dim=2, keepdim=True)
            expected = (query @ inside.key.transpose(2, 3) * inside.scale).softmax(dim=-1)[:, :, 0]
        torch.testing.assert_close(inside.attention, expected.mean(dim=1)[:, backbone.prefix :])


@progressives
def test_removing_nothing_is_the_dense_encoding_to_the_last_bit(
    reducer: Progressive, backbone: Backbone, pixels: Tensor
) -> None:
    tokens = backbone.embed(pixels)
    schedule = reducer.schedule(36, backbone.depth, 0.0)
    result = backbone.encode_progressively(tokens, reducer, schedule)
    assert torch.equal(result.hidden, backbone.encode(tokens))
    assert torch.equal(result.sizes, torch.ones(3, 36))
    assert torch.equal(result.source, torch.arange(36).expand(3, -1))


@progressives
def test_source_and_sizes_follow_every_patch_through_the_blocks(
    reducer: Progressive, backbone: Backbone, pixels: Tensor
) -> None:
    recorder = Recorder(reducer)
    schedule = (30, 24, 13)
    tokens = backbone.embed(pixels)
    result = backbone.encode_progressively(tokens, recorder.progressive, schedule)
    assert [inside.patches.shape[1] for inside in recorder.insides] == [36, 30, 24]
    assert [reduction.tokens.shape[1] for reduction in recorder.reductions] == list(schedule)
    assert result.hidden.shape[1] == backbone.prefix + 13
    assert torch.equal(result.sizes.sum(dim=1), torch.full((3,), 36.0))
    for image in range(3):
        groups = members_of(recorder.reductions, image, 36)
        for place, group in enumerate(groups):
            assert result.sizes[image, place] == len(group)
            assert set(result.source[image, group].tolist()) == {place}
        for step, inside in enumerate(recorder.insides):
            before = members_of(recorder.reductions[:step], image, 36)
            assert inside.sizes[image].tolist() == [len(group) for group in before]
            if step == 0 or not reducer.proportional:
                assert inside.bias is None
            else:
                assert inside.bias is not None
                bias = [0.0] * backbone.prefix + [log(len(group)) for group in before]
                torch.testing.assert_close(inside.bias[image, 0, 0], torch.tensor(bias))


def test_dropped_patches_stay_dropped_and_spread_back_as_zero(backbone: Backbone, pixels: Tensor) -> None:
    recorder = Recorder(Progressive(drop, PEERS["tome"].schedule))
    tokens = backbone.embed(pixels)
    scores = torch.rand(3, 36)
    result = backbone.encode_progressively(tokens, recorder.progressive, (30, 20, 15), scores)
    spread = unreduce(result.hidden[:, backbone.prefix :], result.source)
    for image in range(3):
        groups = members_of(recorder.reductions, image, 36)
        gone = set(range(36)) - {i for group in groups for i in group}
        assert len(gone) >= 10
        assert set(result.source[image, list(gone)].tolist()) == {DROPPED}
        assert result.sizes[image].tolist() == [len(group) for group in groups]
        assert int(result.sizes[image].sum()) == 36 - len(gone)
        for place, group in enumerate(groups):
            for i in group:
                assert torch.equal(spread[image, i], result.hidden[image, backbone.prefix + place])
        assert not spread[image, list(gone)].any()
        kept = members_of(recorder.reductions[:2], image, 36)
        seen = recorder.insides[2].scores
        assert seen is not None
        assert seen[image].tolist() == [max(scores[image, group].tolist()) for group in kept]


@progressives
def test_a_merged_token_has_the_best_score_of_its_members(
    reducer: Progressive, dinov3: Backbone, pixels: Tensor
) -> None:
    scores = torch.rand(3, 36) - 2  # below zero, so that a zero from nowhere would be seen
    recorder = Recorder(reducer)
    tokens = dinov3.embed(pixels)
    dinov3.encode_progressively(tokens, recorder.progressive, (30, 24, 13), scores)
    assert len(recorder.insides) == 3
    for step, inside in enumerate(recorder.insides):
        assert inside.scores is not None
        for image in range(3):
            groups = members_of(recorder.reductions[:step], image, 36)
            best = [max(scores[image, group].tolist()) for group in groups]
            assert inside.scores[image].tolist() == best


def test_scores_from_outside_decide_what_evit_keeps(dinov3: Backbone, pixels: Tensor) -> None:
    scores = torch.rand(3, 36)
    tokens = dinov3.embed(pixels)
    recorder = Recorder(PEERS["evit"])
    dinov3.encode_progressively(tokens, recorder.progressive, (36, 11, 11), scores)
    (reduction,) = recorder.reductions
    for image in range(3):
        best = scores[image].argsort(descending=True)[:10].sort().values
        assert torch.equal(reduction.positions[image, :10], best)


@progressives
@pytest.mark.parametrize("schedule", [SCHEDULE, (30, 24, 13)])
def test_the_blocks_equal_eager_attention_with_log_sizes(
    reducer: Progressive, schedule: Schedule, backbone: Backbone, checkpoint: Path, pixels: Tensor
) -> None:
    """The recorded steps in a second forward: the library's eager attention, sizes counted anew."""
    recorder = Recorder(reducer)
    result = backbone.encode_progressively(backbone.embed(pixels), recorder.progressive, schedule)
    eager = load_backbone(checkpoint)
    if isinstance(eager.model, TimmModel):
        without_fused_attention(eager.model)
    else:
        eager.model.set_attn_implementation("eager")
    tokens = eager.embed(pixels)
    steps = iter(zip(recorder.insides, recorder.reductions, strict=True))
    hidden, rope, prefix = tokens.sequence, tokens.rope, backbone.prefix
    done: list[Reduction] = []
    for block, count in zip(eager.blocks, schedule, strict=True):
        options: dict[str, Any] = {"attention_mask": None}
        if rope is not None:
            options["position_embeddings"] = rope
        if done and reducer.proportional:
            groups = [members_of(done, image, 36) for image in range(3)]
            sizes = torch.tensor([[float(len(group)) for group in image] for image in groups])
            options["attention_mask"] = torch.cat([torch.ones(3, prefix), sizes], dim=1).log()[:, None, None]
        if count == hidden.shape[1] - prefix:
            hidden = block(hidden, **options)
            continue
        hidden = eager.family.halves.attend(block, hidden, **options)
        inside, reduction = next(steps)
        torch.testing.assert_close(inside.patches, hidden[:, prefix:], atol=1e-4, rtol=1e-4)
        if rope is not None:
            place = reduction.positions
            rope = (
                torch.stack([_rows(rope[0], image)[place[image]] for image in range(3)])[:, None],
                torch.stack([_rows(rope[1], image)[place[image]] for image in range(3)])[:, None],
            )
        done.append(reduction)
        hidden = torch.cat([hidden[:, :prefix], reduction.tokens], dim=1)
        hidden = eager.family.halves.transform(block, hidden)
    assert next(steps, None) is None
    torch.testing.assert_close(result.hidden, hidden, atol=1e-4, rtol=1e-4)


def _rows(positions: Tensor, image: int) -> Tensor:
    """(cos or sin) of one image's tokens, from the shared grid or from its own."""
    return positions if positions.ndim == 2 else positions[image, 0]


def reference_dinov3(
    pixels: Tensor, method: str, schedule: Schedule, wrong_positions: bool = False
) -> list[tuple[Tensor, list[int]]]:
    """DINOv3 written out: image by image, float64, RoPE gathered by grid index, the papers' loops.

    Gives the sequence before the final norm and the number of patches behind each patch token.
    """
    model: Any = make_model("dinov3").double()
    heads, prefix = 4, 5
    results = []
    for image in pixels.double():
        hidden = model.embeddings(image[None])[0]
        cos, sin = model.rope_embeddings(image[None])
        at, sizes = list(range(len(cos))), [1] * len(cos)  # each token's grid position and size
        for index, (block, count) in enumerate(zip(model.model.layer, schedule, strict=True)):
            normed, attention = block.norm1(hidden), block.attention
            query, key, value = (
                layer(normed).unflatten(-1, (heads, -1)).transpose(0, 1)
                for layer in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            query, key = (_rotated(x, cos[at], sin[at], prefix) for x in (query, key))
            logits = query @ key.transpose(1, 2) / sqrt(query.shape[-1])
            if method != "evit":
                logits = logits + torch.tensor([1] * prefix + sizes).double().log()
            output = attention.o_proj((logits.softmax(-1) @ value).transpose(0, 1).flatten(1))
            hidden = hidden + block.layer_scale1(output)
            if count < len(at):
                inside = replace(
                    make_inside(len(at), prefix, index, batch=1),
                    patches=hidden[None, prefix:],
                    sizes=torch.tensor(sizes).float()[None],
                    query=query[None],
                    key=key[None],
                    bias=None,
                    scale=query.shape[-1] ** -0.5,
                    depth=3,
                )
                expected = expected_of(method, inside, 0, count)
                patches = torch.tensor(expected.tokens, dtype=torch.float64)
                hidden = torch.cat([hidden[:prefix], patches])
                at = at[:count] if wrong_positions else [at[i] for i in expected.positions]
                grown = [0] * count
                for token, place in enumerate(expected.source):
                    grown[place] += sizes[token]
                sizes = grown
            hidden = hidden + block.layer_scale2(block.mlp(block.norm2(hidden)))
        results.append((hidden.float(), sizes))
    return results


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, prefix: int) -> Tensor:
    """Each pair (first half, second half) of a patch's vector turned by its position's angles."""
    first, second = x[:, prefix:].chunk(2, dim=-1)
    (cos, _), (sin, _) = cos.chunk(2, dim=-1), sin.chunk(2, dim=-1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return torch.cat([x[:, :prefix], turned], dim=1)


@pytest.mark.parametrize("method", PEERS)
@pytest.mark.parametrize("schedule", [SCHEDULE, (33, 24, 12)])
def test_dinov3_equals_the_written_out_forward(
    method: str, schedule: Schedule, dinov3: Backbone, pixels: Tensor
) -> None:
    result = dinov3.encode_progressively(dinov3.embed(pixels), PEERS[method], schedule)
    for image, (hidden, sizes) in enumerate(reference_dinov3(pixels, method, schedule)):
        assert result.sizes[image].tolist() == sizes
        torch.testing.assert_close(result.hidden[image], hidden, atol=1e-4, rtol=1e-4)


def test_other_rotary_positions_give_another_output(dinov3: Backbone, pixels: Tensor) -> None:
    result = dinov3.encode_progressively(dinov3.embed(pixels), PEERS["evit"], (30, 30, 30))
    wrong = reference_dinov3(pixels[:1], "evit", (30, 30, 30), wrong_positions=True)
    assert not torch.allclose(result.hidden[0], wrong[0][0], atol=1e-2)


@progressives
def test_permuting_the_images_permutes_the_results(reducer: Progressive, backbone: Backbone, pixels: Tensor) -> None:
    order = torch.tensor([2, 0, 1])
    result = backbone.encode_progressively(backbone.embed(pixels), reducer, SCHEDULE)
    other = backbone.encode_progressively(backbone.embed(pixels[order]), reducer, SCHEDULE)
    torch.testing.assert_close(other.hidden, result.hidden[order], atol=1e-5, rtol=1e-5)
    assert torch.equal(other.sizes, result.sizes[order])
    assert torch.equal(other.source, result.source[order])


@pytest.mark.parametrize("schedule", [(30, 20), (37, 30, 20), (30, 31, 20), (30, 20, 0)])
def test_impossible_schedules_are_refused(schedule: Schedule, dinov3: Backbone, pixels: Tensor) -> None:
    with pytest.raises(InvalidInput):
        dinov3.encode_progressively(dinov3.embed(pixels), PEERS["tome"], schedule)


@pytest.mark.compiles
@progressives
def test_it_is_traced_whole_and_once_for_all_batch_sizes(reducer: Progressive, dinov3: Backbone) -> None:
    torch._dynamo.reset()
    counter = CompileCounter()
    encode: Callable[..., Any] = torch.compile(dinov3.encode_progressively, fullgraph=True, backend=counter)
    compilations: list[int] = []
    for batch in (3, 3, 2, 5, 4):
        tokens = dinov3.embed(torch.randn(batch, 3, 48, 48))
        result = encode(tokens, reducer, (30, 30, 20))
        expected = dinov3.encode_progressively(tokens, reducer, (30, 30, 20))
        torch.testing.assert_close(result.hidden, expected.hidden)
        assert torch.equal(result.sizes, expected.sizes)
        assert torch.equal(result.source, expected.source)
        compilations.append(counter.frame_count)
    assert compilations[:2] == [1, 1], "a second batch of the same shape"
    assert compilations[-1] <= 2, "all other batch sizes"
