"""Measured speed: what is timed, the arithmetic of the records, and the schedules that peers get."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor
from transformers import DINOv3ViTConfig, DINOv3ViTModel

from families import make_model
from redi.attention import head_mean, mass_of
from redi.backbone import Backbone, Watch
from redi.backbone.families import FAMILIES
from redi.cost import cost_table
from redi.deploy import Setting, accelerate
from redi.errors import ArtifactError, ConfigError
from redi.images import Preprocessing
from redi.records.reading import build
from redi.records.timing import BenchResult, Timing, read_bench, write_bench
from redi.reduction import ADAPTIVE, ONE_SHOT, PROGRESSIVE, REDUCERS, WORD_MERGING, Budget
from redi.report.bench import print_bench
from redi.score import minmax
from redi.speed.bench import DTYPES, MODES, BenchConfig, bf16_obstacle, compile_obstacle, obstacle_here, run_bench
from redi.speed.measure import UNROLLED, Group, affordable, interleave, measure, spread
from redi.speed.memory import LiveTensors, peak_memory
from redi.speed.paths import TimedPath, compiled, random_backbone, timed_paths

CPU = torch.device("cpu")
ALL = (*ONE_SHOT, *PROGRESSIVE)
LOOPING = [name for name, reducer in REDUCERS.items() if reducer.loops]
#: A cost that every progressive reducer reaches on three blocks and 6x6 patches, with products of its own.
REACHED = 0.71


class FakeClock:
    """A clock that only the timed work moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, *seconds: float) -> Callable[..., Tensor]:
        """A forward that takes these seconds, one entry per call and the last one ever after."""
        turn = count()

        def forward(*_: Any) -> Tensor:
            self.now += seconds[min(next(turn), len(seconds) - 1)]
            return torch.zeros(1)

        return forward


def on_a_small_grid(backbone: Backbone) -> Backbone:
    """The same weights on 6x6 patches."""
    preprocessing = Preprocessing(54, 48, (0.5,) * 3, (0.5,) * 3)
    return Backbone(backbone.model, backbone.family, backbone.head, preprocessing)


@pytest.fixture(scope="module")
def small(dinov3: Backbone) -> Backbone:
    return on_a_small_grid(dinov3)


# Timing -------------------------------------------------------------------------------------------


def test_calls_take_turns_forwards_and_backwards() -> None:
    clock, order = FakeClock(), []

    def call(name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            order.append(name)
            clock.now += seconds

        return run

    calls = {"a": call("a", 1.0), "b": call("b", 2.0), "c": call("c", 4.0)}
    synchronised: list[int] = []
    seconds = interleave(calls, 3, clock, lambda: synchronised.append(len(order)))
    assert "".join(order) == "abccbaabc"
    assert seconds == {"a": [1.0] * 3, "b": [2.0] * 3, "c": [4.0] * 3}
    assert synchronised == [done for call in range(9) for done in (call, call + 1)]


def test_quartiles_by_hand() -> None:
    assert spread([5, 1, 2, 4, 3]) == (2, 3, 4)
    assert spread([7]) == (7, 7, 7)


def test_a_time_limit_lowers_the_repeats_to_no_fewer_than_three() -> None:
    assert affordable(20, 60, [1.0, 2.0, 3.0]) == 20
    assert affordable(20, 10, [1.0, 2.0, 3.0]) == 5
    assert affordable(20, 10, [100.0]) == 3
    assert affordable(2, 10, [100.0]) == 2
    assert affordable(20, 10, []) == 3, "nothing to time"


def test_ratios_are_taken_within_repeats() -> None:
    """Three repeats on a machine that slows down. Two calls of each path come before, to warm up."""
    clock = FakeClock()
    dense = TimedPath("dense", False, clock.work(9, 9, 10, 20, 60), cost=1.0, tokens=201)
    ours = TimedPath("keep-merge-compress", False, clock.work(9, 9, 5, 16, 20), cost=0.5, tokens=107)
    scored = replace(ours, scoring=True, forward=clock.work(40), cost=1.5)
    prune = TimedPath("prune", False, clock.work(9, 9, 4, 10, 16), cost=0.4, tokens=107)
    unreachable = TimedPath("tome", False, None, note="No schedule.")
    rows, overheads = measure(
        [dense, ours, scored, prune, unreachable],
        torch.zeros(1, 3, 1, 1),
        torch.zeros(1, 1),
        Group(8, "fp32", "eager"),
        repeats=3,
        limit=1e9,
        clock=clock,
    )
    assert [(row.row, row.scoring) for row in rows] == [
        ("dense", False),
        ("keep-merge-compress", False),
        ("keep-merge-compress", True),
        ("prune", False),
        ("tome", False),
    ]
    assert (rows[0].median_ms, rows[0].low_ms, rows[0].high_ms) == (20000, 15000, 40000)
    assert (rows[0].speedup, rows[0].speedup_low, rows[0].speedup_high) == (1, 1, 1)
    # 10/5, 20/16, 60/20: not the ratio of the medians, 20/16.
    assert (rows[1].speedup, rows[1].speedup_low, rows[1].speedup_high) == (2, 1.625, 2.5)
    assert [row.predicted for row in rows] == [1, 2, pytest.approx(2 / 3), 2.5, None]
    assert all((row.batch, row.dtype, row.mode) == (8, "fp32", "eager") for row in rows)
    assert all(row.compile_seconds is None for row in rows)
    assert (rows[4].median_ms, rows[4].speedup, rows[4].note) == (None, None, "No schedule.")
    # (5-4)/4, (16-10)/10, (20-16)/16
    (overhead,) = overheads
    assert overhead.percent == pytest.approx(25)
    assert (overhead.low, overhead.high) == pytest.approx((25, 42.5))


@pytest.mark.compiles
def test_compile_seconds_are_the_first_call_minus_the_second() -> None:
    clock = FakeClock()
    path = TimedPath("dense", False, clock.work(9, 2), cost=1.0, tokens=201)
    (row,), _ = measure(
        [path],
        torch.zeros(1, 3, 1, 1),
        torch.zeros(1, 1),
        Group(1, "fp32", "compile"),
        repeats=3,
        limit=1,
        backend=_not_compiled,
        clock=clock,
    )
    assert row.memory_mb is None, "the tracker sees eager operations only"
    assert row.compile_seconds is not None


def _not_compiled(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
    return graph.forward


@pytest.mark.usefixtures("unchecked")
def test_what_fails_is_noted_and_the_rest_is_measured() -> None:
    def hungry(*_: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("Tried to allocate too much.\nDetails.")

    def breaking(pixels: Tensor, _: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return pixels

    clock = FakeClock()
    good = TimedPath("dense", False, clock.work(1.0), 1.0, 201)
    options: dict[str, Any] = {"repeats": 3, "limit": 1, "clock": clock}
    inputs = torch.zeros(1, 3, 1, 1), torch.zeros(1, 1)
    rows, _ = measure([good, TimedPath("prune", False, hungry)], *inputs, Group(1, "fp32", "eager"), **options)
    assert rows[0].speedup == 1
    assert rows[1].note == "failed (OutOfMemoryError: Tried to allocate too much.)"
    rows, _ = measure(
        [TimedPath("prune", False, breaking)], *inputs, Group(1, "fp32", "compile"), backend="eager", **options
    )
    assert rows[0].median_ms is None
    assert rows[0].note.startswith("failed (")
    assert "\n" not in rows[0].note


def test_reducers_that_loop_over_pairs_are_not_compiled(small: Backbone) -> None:
    inputs = torch.randn(1, 3, 48, 48), torch.rand(1, 36)
    paths = [path for path in timed_paths(small, LOOPING) if path.row != "dense"]
    group = Group(1, "fp32", "compile")
    rows, _ = measure(paths, *inputs, group, repeats=1, limit=1, backend="eager")
    assert [(row.row, row.median_ms, row.note) for row in rows] == [(name, None, UNROLLED) for name in LOOPING]
    assert all(row.predicted is not None for row in rows)


# Memory -------------------------------------------------------------------------------------------


def test_live_tensors_by_hand() -> None:
    weight = torch.ones(10, 10)
    with torch.no_grad(), LiveTensors() as tensors:
        first = torch.zeros(100)  # 400 bytes
        view = first[10:20]
        turned = weight.T  # nothing: the storage was there before
        assert tensors.live == 400
        del first
        assert tensors.live == 400, "the view holds it"
        second = weight @ turned  # 400 more
        assert (tensors.live, tensors.peak) == (800, 800)
        del view
        second.add_(1)
        assert (tensors.live, tensors.peak) == (400, 800)
        third = torch.zeros(50, dtype=torch.float64)
        del second, third
    assert (tensors.live, tensors.peak) == (0, 800)


def test_peak_memory_counts_intermediate_tensors_and_the_output() -> None:
    values, weight = torch.ones(5, 100), torch.ones(100, 200)

    def call() -> Tensor:
        wide = torch.nn.functional.linear(values, weight.T)  # 5 x 200 x 4 = 4000 bytes
        return (wide + 1).sum(dim=1)  # 4000 more, then 20 more

    assert peak_memory(call, CPU) == 8020
    with torch.inference_mode():
        assert peak_memory(call, CPU) == 8020


def test_a_shorter_sequence_needs_less_memory(small: Backbone) -> None:
    inputs = torch.randn(2, 3, 48, 48), torch.rand(2, 36)
    dense, prune = timed_paths(small, ("prune",), scoring=False)
    assert dense.forward is not None
    assert prune.forward is not None
    peak = peak_memory(partial(dense.forward, *inputs), CPU)
    # No less than the widest pair of neighbours: the MLP's hidden layer, before and after GELU.
    assert peak >= 2 * 2 * 41 * 64 * 4
    assert peak_memory(partial(prune.forward, *inputs), CPU) < peak


# Paths --------------------------------------------------------------------------------------------


def test_paths_are_the_library_called_by_hand(backbone: Backbone) -> None:
    backbone = on_a_small_grid(backbone)
    pixels, scores = torch.randn(2, 3, 48, 48), torch.rand(2, 36)
    tokens = backbone.embed(pixels)
    watch = Watch(head_mean, blocks=(backbone.depth - 1,))
    expected = {("dense", False): backbone.encode(tokens, watch=(watch,))}
    mass = minmax(mass_of(watch.value(backbone.depth - 1), backbone.prefix))
    for name in set(ONE_SHOT) - {WORD_MERGING}:
        for scoring, used in ((False, scores), (True, mass)):
            reduction = ONE_SHOT[name].reduce(tokens.patches, used, Budget(), (6, 6))
            expected[name, scoring] = backbone.encode(tokens.reduced(reduction))
    paths = timed_paths(backbone, ALL, cost=REACHED)
    rows = {(path.row, path.scoring) for path in paths}
    assert len(rows) == len(paths)
    assert {path.row for path in paths} == {"dense", *ALL}
    assert ("pool", True) not in rows, "it needs no scores"
    for path in paths:
        assert path.forward is not None, path.note
        output = path.forward(pixels, scores)
        restored = path.row in PROGRESSIVE and not (backbone.head and backbone.head.prefix_only)
        assert output.shape == (2, backbone.prefix + 36 if restored else path.tokens, backbone.width)
        if path.row in PROGRESSIVE:
            assert path.schedule is not None
            wanted = backbone.encode_progressively(tokens, PROGRESSIVE[path.row], path.schedule, residual=restored)
            expected[path.row, False] = wanted.full(backbone.prefix) if restored else wanted.hidden
        if path.row == WORD_MERGING:
            continue  # its words are the bench's own
        torch.testing.assert_close(output, expected[path.row, path.scoring], atol=1e-4, rtol=1e-4, msg=str(path))


def test_costs_are_those_of_table_3_and_peers_are_set_to_the_operators() -> None:
    paths = {str(path): path for path in timed_paths(random_backbone("base"), ALL)}
    table = cost_table()[-1].reduced
    assert paths["prune"].cost == pytest.approx(table, abs=1e-12)
    operator = paths["keep-merge-compress"].cost
    assert operator is not None
    assert operator > table, "its own products are counted"
    assert operator == pytest.approx(table, abs=1e-3)
    assert paths["prune with scoring"].cost == pytest.approx(1 + table)
    assert paths["keep-merge-compress"].tokens == paths["fuse"].tokens == 107
    for name in PROGRESSIVE:
        assert paths[name].cost == pytest.approx(operator, abs=0.005)


def test_a_reducer_whose_length_follows_the_image_is_not_timed_on_noise(small: Backbone) -> None:
    _, *paths = timed_paths(small, [*ADAPTIVE])
    assert [path.row for path in paths] == [*ADAPTIVE]
    assert all(path.forward is None and "follows the image" in path.note for path in paths)


@pytest.mark.parametrize("name", ["vit_head", "dinov2_registers_head"])
def test_the_accelerated_row_times_what_is_shipped(name: str) -> None:
    model, pixels = accelerate(make_model(name), cost=0.7), torch.randn(2, 3, 48, 48)
    backbone = model.backbone.at_size(48)
    dense, path = timed_paths(backbone, ["accelerate"], cost=0.7)
    assert path.forward is not None
    assert path.cost == model.cost() < 0.7
    assert dense.cost == 1
    assert path.schedule == model.schedule((6, 6))
    hidden = path.forward(pixels, torch.rand(2, 36))
    full = backbone.prefix + 36
    assert hidden.shape[1] == (1 if name == "vit_head" else full), "CLS alone, or the restored grid"
    if name == "vit_head":
        assert torch.equal(backbone.classify(hidden), model(pixels).logits)
    (_, impossible) = timed_paths(backbone, ["accelerate"], cost=0.01)
    assert (impossible.forward, impossible.row) == (None, "accelerate")
    assert "cannot be met" in impossible.note


def test_the_path_of_a_dense_task_ends_with_the_full_grid() -> None:
    backbone = random_backbone("tiny", head=True).at_size(64)
    _, path = timed_paths(backbone, ["accelerate-dense"], cost=0.7)
    assert path.forward is not None
    pixels = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        assert path.forward(pixels, torch.rand(2, 16)).shape == (2, 17, 192)
    assert path.schedule == Setting(0.7, task="dense").extent(backbone.geometry, prefix_only=False).schedule
    assert path.cost == pytest.approx(0.7, abs=0.1)


def test_a_random_classifier_of_another_size() -> None:
    settings: dict[str, Any] = {"reducers": ("accelerate",), "cost": 0.8, "repeats": 1, "quick": True}
    result = run_bench(BenchConfig(head=True, size=64, **settings))
    assert [row.row for row in result.rows] == ["dense", "accelerate"]
    assert result.environment["input"] == 64
    assert result.environment["prefix"] == 1


def test_random_backbones_are_always_the_same_and_leave_the_seed_alone() -> None:
    state = torch.random.get_rng_state()
    first, second = random_backbone("tiny"), random_backbone("tiny")
    assert torch.equal(state, torch.random.get_rng_state())
    pixels = torch.randn(1, 3, 224, 224)
    hidden = first.encode(first.embed(pixels))
    assert hidden.shape == (1, 201, 192)
    assert (first.depth, first.config.num_attention_heads) == (12, 3)
    assert torch.equal(hidden, second.encode(second.embed(pixels)))


class CountingBackend:
    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        self.graphs += 1
        return graph.forward


@pytest.mark.compiles
@torch.inference_mode()
def test_each_compiles_once_to_one_graph_that_equals_eager(small: Backbone) -> None:
    torch._dynamo.reset()
    backend = CountingBackend()
    inputs = [(torch.randn(2, 3, 48, 48), torch.rand(2, 36)) for _ in range(2)]
    paths = timed_paths(small, [name for name in ALL if name not in LOOPING], cost=REACHED)
    ready = []
    for number, path in enumerate(paths, start=1):
        assert path.forward is not None
        forward = compiled(path.forward, backend)
        ready.append(forward)
        for given in inputs:  # the second batch has the same shape
            assert torch.equal(forward(*given), path.forward(*given)), path
            assert backend.graphs == number, path
    for forward in ready:  # rows share Python functions but do not push each other out
        forward(*inputs[0])
    assert backend.graphs == len(paths)
    torch._dynamo.reset()


@pytest.mark.compiles
@pytest.mark.skipif(compile_obstacle(CPU) != "", reason="needs a C++ compiler")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")
@torch.inference_mode()
def test_inductor_gives_what_eager_gives() -> None:
    torch.manual_seed(0)
    config = DINOv3ViTConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_register_tokens=4
    )
    small = Backbone(
        DINOv3ViTModel(config), FAMILIES["dinov3_vit"], None, Preprocessing(72, 64, (0.5,) * 3, (0.5,) * 3)
    )
    _, path = timed_paths(small, ("keep-merge-compress",), scoring=False)
    assert path.forward is not None
    inputs = torch.randn(2, 3, 64, 64), torch.rand(2, 16)
    output = compiled(path.forward)(*inputs)
    torch._dynamo.reset()
    torch.testing.assert_close(output, path.forward(*inputs), atol=1e-5, rtol=1e-5)
    assert output.shape == (2, 5 + 8 + 4, 16)


# The whole bench ----------------------------------------------------------------------------------


def ticking() -> Callable[[], float]:
    """Every call of the clock is a second after the one before."""
    ticks = count()
    return lambda: float(next(ticks))


@pytest.fixture(scope="module")
def result(small: Backbone) -> BenchResult:
    saved: list[int] = []
    config = BenchConfig(
        backbone="small", reducers=("keep-merge-compress", "prune"), batch_sizes=(2,), repeats=4, seconds=1e6
    )
    measured = run_bench(
        config, backbone=small, backend="eager", clock=ticking(), save=lambda so_far: saved.append(len(so_far.rows))
    )
    assert saved == [5 * group for group in range(1, 5)] + [20]
    return measured


@pytest.mark.compiles
def test_every_batch_precision_and_mode_is_measured(result: BenchResult, small: Backbone) -> None:
    groups = {(row.batch, row.dtype, row.mode) for row in result.rows}
    assert groups == {(2, dtype, mode) for dtype in DTYPES for mode in MODES}
    for row in result.rows:
        assert row.note == ""
        assert (row.median_ms, row.low_ms, row.high_ms, row.speedup) == (1000, 1000, 1000, 1)
        assert (row.memory_mb is None) == (row.mode == "compile")
        assert row.compile_seconds == (0 if row.mode == "compile" else None)
    assert len(result.overheads) == 4
    assert all(overhead.percent == 0 for overhead in result.overheads)
    assert small.model.dtype == torch.float32, "a copy was converted"


@pytest.mark.compiles
def test_bf16_tensors_take_about_half_the_memory(result: BenchResult) -> None:
    peaks = {row.dtype: row.memory_mb for row in result.rows if (row.row, row.batch, row.mode) == ("dense", 2, "eager")}
    assert peaks["fp32"] is not None
    assert peaks["bf16"] is not None
    assert 0.4 < peaks["bf16"] / peaks["fp32"] < 0.65


@pytest.mark.compiles
def test_what_was_measured_is_written_down(result: BenchResult) -> None:
    environment = result.environment
    assert environment["device"] == "cpu"
    assert environment["threads"] == torch.get_num_threads()
    assert environment["config"]["batch_sizes"] == [2]
    assert "pixels" in environment["definitions"]["timed"]
    assert "three other views" in environment["definitions"]["scoring"]


@pytest.mark.compiles
def test_json_comes_back_as_it_was(result: BenchResult, tmp_path: Path) -> None:
    write_bench(tmp_path / "bench.json", result)
    assert read_bench(tmp_path / "bench.json") == result
    assert build(BenchResult, json.loads(json.dumps(asdict(result)))) == result
    (tmp_path / "bench.json").write_text('{"rows": [{"row": 1}]}')
    with pytest.raises(ArtifactError, match="cannot be read as a result of `redi bench`"):
        read_bench(tmp_path / "bench.json")


@pytest.mark.compiles
def test_tables_fit_80_characters_and_say_what_they_mean(
    result: BenchResult, capsys: pytest.CaptureFixture[str]
) -> None:
    print_bench(result, Console(width=80, force_terminal=False))
    printed = capsys.readouterr().out
    assert "…" not in printed
    assert "Batch 2, BF16, torch.compile" in printed
    assert "keep-merge-compress     107  1.00 (1.00-1.00)" not in printed
    assert printed.count("  with scoring") == 8
    assert "Analytic" in printed
    assert "MB" in printed
    for words in ("embedding, reducer", "three other views", "+0.00"):
        assert words in printed.replace("\n", " ")


def test_long_times_and_failures_in_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    measured = Timing(
        "dense", 32, "bf16", "compile", False, 12345.6, 12000.0, 13000.0, 1.0, 1.0, 1.0, 1.0,
        None, 87.65, 201,
    )  # fmt: skip
    failed = replace(
        measured, row="tome", median_ms=None, low_ms=None, high_ms=None, speedup=None,
        speedup_low=None, speedup_high=None, compile_seconds=None, note="failed [so].",
    )  # fmt: skip
    skipped = replace(failed, mode="eager", note="no such thing here")
    environment = {
        "backbone": "b", "input": 224, "processor": "p", "device": "cpu", "threads": 2, "torch": "2",
        "definitions": {},
    }  # fmt: skip
    print_bench(BenchResult([measured, failed, skipped], environment, []), Console(width=80, force_terminal=False))
    printed = capsys.readouterr().out
    assert "12.3 (12.0-13.0)" in printed
    assert "Compiling, s: dense 87.7" in printed
    assert "Not measured: ToMe, failed [so]." in printed
    assert "eager SDPA: not measured, no such thing here" in printed


def test_where_it_cannot_work_the_reason_stands_in_the_record(small: Backbone) -> None:
    def obstacle(_: torch.device, dtype: str, mode: str) -> str:
        if dtype == "bf16":
            return "no BF16"
        return "no compiler" if mode == "compile" else ""

    config = BenchConfig(quick=True, cost=REACHED, dtypes=("fp32", "bf16"), modes=("eager", "compile"))
    measured = run_bench(config, backbone=small, obstacle=obstacle)
    rows = measured.rows
    notes = {(row.dtype, row.mode): row.note for row in rows}
    assert notes == {
        ("fp32", "eager"): "",
        ("fp32", "compile"): "no compiler",
        ("bf16", "eager"): "no BF16",
        ("bf16", "compile"): "no BF16",
    }
    for row in rows:
        assert (row.median_ms is None) == (row.note != "")
        assert row.predicted is not None
    assert set(measured.environment["schedules"]) == {"accelerate", "accelerate-dense", *PROGRESSIVE}
    assert len(measured.environment["schedules"]["tome"]) == small.depth


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")
def test_a_missing_compiler_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import cpp_builder

    def none() -> str:
        raise RuntimeError("No working C++ compiler found")

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    assert "C++ compiler" in compile_obstacle(CPU)
    assert "C++ compiler" in obstacle_here(CPU, "fp32", "compile")
    assert obstacle_here(CPU, "fp32", "eager") == ""


def test_bf16_needs_matrix_products_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert "no BF16" in bf16_obstacle(CPU)
    for mode in MODES:
        assert "no BF16" in obstacle_here(CPU, "bf16", mode)
    assert obstacle_here(CPU, "fp32", "eager") == ""


def test_threads_are_set_and_set_back(small: Backbone) -> None:
    before = torch.get_num_threads()
    config = BenchConfig(quick=True, reducers=("prune",), threads=before + 1)
    assert run_bench(config, backbone=small).environment["threads"] == before + 1
    assert torch.get_num_threads() == before


def test_defaults_and_the_quick_choice() -> None:
    full = BenchConfig().resolved(CPU)
    assert (full.model_size, full.batch_sizes, full.repeats) == ("base", (1, 8, 32), 20)
    assert full.reducers == ("accelerate", "accelerate-dense", *REDUCERS)
    assert BenchConfig().resolved(torch.device("cuda")).batch_sizes == (1, 8, 32, 64, 128)
    quick = BenchConfig(quick=True, batch_sizes=(4, 4)).resolved(CPU)
    assert (quick.model_size, quick.batch_sizes, quick.modes) == ("tiny", (4,), ("eager",))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (BenchConfig(backbone="x", model_size="tiny"), "not both"),
        (BenchConfig(backbone="x", head=True), "--head is for random weights"),
        (BenchConfig(model_size="huge"), "no model size 'huge'; choose one of tiny, small, base"),
        (BenchConfig(reducers=("tomato",)), "no reducer 'tomato'; choose one of keep-merge-compress"),
        (BenchConfig(dtypes=("fp8",)), "no dtype 'fp8'"),
        (BenchConfig(modes=("fast",)), "no mode 'fast'"),
        (BenchConfig(batch_sizes=(0,)), "batch_sizes must lie in 1 to"),
        (BenchConfig(repeats=-1), "repeats must lie in 0 to"),
        (BenchConfig(seconds=float("nan")), "seconds must be a finite number"),
    ],
)
def test_impossible_settings_are_refused(config: BenchConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config.resolved(CPU)
