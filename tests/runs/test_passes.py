"""A pass over images that exist in memory alone: shared, interrupted, continued, merged."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch
from torch import Tensor

from redi.errors import ArtifactError, CorpusError, ImageError, InvalidInput
from redi.images.loader import Batch
from redi.runs.config import RuntimeConfig
from redi.runs.distributed import Ranks
from redi.runs.passes import Outcome, Pass, PassRunner

SETTINGS = RuntimeConfig(batch_size=2, workers=0, chunk=4, save_every=0)
KEY = {"stage": "test", "words": 16}


def test_an_output_that_is_not_finite_ends_the_pass_with_the_name_of_its_image(tmp_path: Path) -> None:
    def step(batch: Batch, sums: Mapping[str, Any]) -> dict[str, Tensor]:
        logits = torch.ones(len(batch.indices), 3)
        logits[[index == 5 for index in batch.indices], 1] = torch.inf
        return {"logits": logits, "words": torch.ones(len(batch.indices), dtype=torch.int64)}

    runner = PassRunner(tmp_path, Ranks(), SETTINGS)
    with pytest.raises(InvalidInput, match=r"^The logits of image 5 must be finite, but are not: check .*\.$"):
        runner.run(Pass("score", Numbers(8), step), KEY)


@dataclass
class Numbers:
    """The numbers 0, 1, 2 ... as images of one pixel. Each is loaded once a pass; some are broken."""

    count: int
    broken: tuple[int, ...] = ()
    stop_before: int = -1  # the number at which loading fails, as a crash would
    loaded: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return self.count

    def batches(self, plan: Iterable[Sequence[int]], workers: int) -> Iterator[Batch]:
        assert workers == SETTINGS.workers
        for indices in plan:
            if self.stop_before in indices:
                raise KeyboardInterrupt
            self.loaded += indices
            good = [index for index in indices if index not in self.broken]
            yield Batch(
                indices=good,
                labels=torch.tensor(good) % 3,
                views=[],
                pixels=torch.tensor(good, dtype=torch.uint8).view(-1, 1, 1, 1, 1),
                skipped=[(index, f"{index} is broken.") for index in indices if index in self.broken],
            )


class Total:
    """A sum that adds up exactly."""

    def __init__(self) -> None:
        self.value = torch.zeros((), dtype=torch.int64)

    def state(self) -> dict[str, Tensor]:
        return {"value": self.value}

    def merge_state(self, state: Mapping[str, Tensor]) -> None:
        self.value = self.value + state["value"]


@dataclass(frozen=True)
class Threads(Ranks):
    """Processes that are threads of this one."""

    barrier: Barrier = field(default_factory=lambda: Barrier(1))
    decision: list[Any] = field(default_factory=list)  # of the main process

    def wait(self) -> None:
        self.barrier.wait(timeout=60)

    def share(self, decide: Callable[[], Any]) -> Any:
        if self.is_main:
            self.decision[:] = [decide()]
        self.wait()
        decision = self.decision[0]
        self.wait()
        return decision


@dataclass(frozen=True)
class Alone(Ranks):
    """One of several processes whose fellows have died unnoticed."""

    def wait(self) -> None:
        """Nobody comes."""

    def share(self, decide: Callable[[], Any]) -> Any:
        return decide()


def squares(source: Numbers, indices: Sequence[int] | None = None, name: str = "square them") -> Pass:
    def step(batch: Batch, sums: Mapping[str, Any]) -> Mapping[str, Tensor]:
        numbers = batch.pixels.flatten().long()
        sums["total"].value += numbers.sum()
        sums["count"].value += len(numbers)
        return {"square": numbers**2, "label": batch.labels}

    return Pass(name, source, step, lambda: {"total": Total(), "count": Total()}, indices)


def run(folder: Path, work: Pass, settings: RuntimeConfig = SETTINGS, key: Mapping[str, Any] = KEY) -> Outcome:
    outcome = PassRunner(folder, Ranks(), settings).run(work, key)
    assert outcome is not None
    return outcome


def interrupted(folder: Path, count: int, stop_before: int, name: str = "square them") -> list[int]:
    """A pass that crashes; the numbers that it had loaded."""
    source = Numbers(count, stop_before=stop_before)
    with pytest.raises(KeyboardInterrupt):
        run(folder, squares(source, name=name))
    return source.loaded


def check(outcome: Outcome, numbers: Sequence[int]) -> None:
    assert outcome.indices == list(numbers)
    assert outcome.rows["square"].tolist() == [number**2 for number in numbers]
    assert outcome.rows["label"].tolist() == [number % 3 for number in numbers]
    assert int(outcome.sums["total"].value) == sum(numbers)
    assert int(outcome.sums["count"].value) == len(numbers)


@pytest.mark.parametrize("count", [1, 4, 11, 12])
@pytest.mark.parametrize("chunk", [1, 3, 4, 100])
@pytest.mark.parametrize("save_every", [0.0, 1000.0])
def test_rows_come_in_index_order_and_sums_are_merged(
    tmp_path: Path, count: int, chunk: int, save_every: float
) -> None:
    source = Numbers(count)
    outcome = run(tmp_path, squares(source), replace(SETTINGS, chunk=chunk, save_every=save_every))
    check(outcome, range(count))
    assert outcome.skipped == []
    assert source.loaded == list(range(count))


def test_a_batch_never_crosses_a_chunk(tmp_path: Path) -> None:
    sizes: list[int] = []
    work = squares(Numbers(11))

    def step(batch: Batch, sums: Mapping[str, Any]) -> Mapping[str, Tensor]:
        sizes.append(len(batch.indices))
        return work.step(batch, sums)

    run(tmp_path, replace(work, step=step), replace(SETTINGS, batch_size=3))
    assert sizes == [3, 1, 3, 1, 3]


def test_some_images_in_any_order_are_sorted_by_their_index(tmp_path: Path) -> None:
    chosen = [9, 2, 7, 0, 5]
    source = Numbers(10)
    check(run(tmp_path, squares(source, chosen)), sorted(chosen))
    assert source.loaded == chosen


def test_a_pass_over_damaged_data_stops_early_and_tries_again_next_time(tmp_path: Path) -> None:
    source = Numbers(40, broken=(*range(4), 20))
    with pytest.raises(CorpusError, match=r"5 of 40 images cannot be decoded, more than 10%, e\.g\.: 0 is broken"):
        run(tmp_path, squares(source))
    assert source.loaded == list(range(22)), "it stops as soon as it is certain"
    check(run(tmp_path, squares(Numbers(40))), range(40))


def test_damage_that_several_processes_find_is_added_up(tmp_path: Path) -> None:
    """Each half of the chunks is damaged a little; together it is too much."""
    settings = replace(SETTINGS, chunk=2)
    source = Numbers(20, broken=(0, 2, 4))
    barrier, decision = Barrier(2), list[Any]()
    runners = [PassRunner(tmp_path, Threads(rank, 2, barrier, decision), settings) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        main, other = (pool.submit(runner.run, squares(source), KEY) for runner in runners)
        with pytest.raises(CorpusError, match="3 of 20 images"):
            main.result()
        assert other.result() is None
    assert not list(tmp_path.rglob("*.safetensors"))


def test_some_of_the_images_may_be_damaged_more(tmp_path: Path) -> None:
    """A sample of a data set says little about it."""
    check(run(tmp_path, squares(Numbers(40, broken=(3, 4)), [3, 4, 5])), [5])


def test_a_pass_without_images_has_an_empty_outcome(tmp_path: Path) -> None:
    outcome = run(tmp_path, squares(Numbers(10), []))
    assert outcome.indices == []
    assert outcome.rows == {}
    assert int(outcome.sums["count"].value) == 0


def test_images_that_cannot_be_decoded_are_listed_and_left_out(tmp_path: Path) -> None:
    source = Numbers(40, broken=(6, 1, 4, 5))  # 4 and 5 are a whole batch
    outcome = run(tmp_path, squares(source))
    check(outcome, [0, 2, 3, *range(7, 40)])
    assert outcome.skipped == [(index, f"{index} is broken.") for index in (1, 4, 5, 6)]
    with pytest.raises(ImageError, match=r"1 is broken\. \(--strict stops at the first unreadable image\)"):
        run(tmp_path / "strict", squares(source), replace(SETTINGS, strict=True))


@pytest.mark.parametrize("stop_before", [0, 3, 4, 6, 8, 10])
def test_a_pass_continued_after_a_failure_does_only_the_missing_chunks(tmp_path: Path, stop_before: int) -> None:
    interrupted(tmp_path, 11, stop_before)
    source = Numbers(11)
    check(run(tmp_path, squares(source)), range(11))
    assert source.loaded == list(range(stop_before // 4 * 4, 11)), "whole chunks of four are kept"


def test_it_may_be_interrupted_again_and_again(tmp_path: Path) -> None:
    for stop_before in (4, 6, 8, 9):
        interrupted(tmp_path, 11, stop_before)
    assert len(list(tmp_path.rglob("g????-r????.safetensors"))) == 2, "one part for each run that finished a chunk"
    source = Numbers(11)
    check(run(tmp_path, squares(source)), range(11))
    assert source.loaded == [8, 9, 10]
    again = Numbers(11)
    check(run(tmp_path, squares(again)), range(11))
    assert again.loaded == [], "all of it is there until it is discarded"


def test_skipped_images_of_an_earlier_run_are_remembered(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, squares(Numbers(10, broken=(2,), stop_before=7)))
    outcome = run(tmp_path, squares(Numbers(10, broken=(2,))))
    check(outcome, [0, 1, 3, 4, 5, 6, 7, 8, 9])
    assert outcome.skipped == [(2, "2 is broken.")]


def test_saved_rarely_a_killed_run_loses_more_but_nothing_is_wrong(tmp_path: Path) -> None:
    rarely = replace(SETTINGS, save_every=1000.0)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, squares(Numbers(11, stop_before=10)), rarely)
    source = Numbers(11)
    check(run(tmp_path, squares(source), rarely), range(11))
    assert source.loaded == list(range(11))


@pytest.mark.parametrize(
    ("key", "settings", "count"),
    [({"stage": "test", "words": 32}, SETTINGS, 11), (KEY, replace(SETTINGS, chunk=3), 11), (KEY, SETTINGS, 12)],
    ids=["key", "chunk", "images"],
)
def test_parts_of_another_key_chunk_or_set_of_images_are_removed(
    tmp_path: Path, key: Mapping[str, Any], settings: RuntimeConfig, count: int
) -> None:
    interrupted(tmp_path, 11, stop_before=10)
    assert len(list(tmp_path.rglob("g*"))) == 3, "a part and its two files of rows"
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, squares(Numbers(count, stop_before=0)), settings, key)
    assert not list(tmp_path.rglob("g*"))
    source = Numbers(count)
    check(run(tmp_path, squares(source), settings, key), range(count))
    assert source.loaded == list(range(count))


def test_a_part_whose_rows_are_gone_is_done_again(tmp_path: Path) -> None:
    interrupted(tmp_path, 11, stop_before=8)
    next(tmp_path.rglob("*-000001.rows")).unlink()
    source = Numbers(11)
    check(run(tmp_path, squares(source)), range(11))
    assert source.loaded == list(range(11))


def test_rows_that_no_part_mentions_count_for_nothing(tmp_path: Path) -> None:
    """A run that is killed between the rows and its part leaves such rows."""
    interrupted(tmp_path, 11, stop_before=8)
    rows = next(tmp_path.rglob("*-000001.rows"))
    rows.with_name(rows.name.replace("000001", "000002")).write_bytes(rows.read_bytes())
    check(run(tmp_path, squares(Numbers(11))), range(11))


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    interrupted(tmp_path, 11, stop_before=8)
    part = next(tmp_path.rglob("g0001-r0000.safetensors"))
    damaged = bytearray(part.read_bytes())
    damaged[-1] ^= 1
    part.write_bytes(damaged)
    with pytest.raises(ArtifactError, match=r"g0001-r0000\.safetensors is damaged"):
        run(tmp_path, squares(Numbers(11)))


def test_passes_keep_apart_and_one_is_discarded_by_its_name(tmp_path: Path) -> None:
    interrupted(tmp_path, 11, stop_before=8, name="first one")
    interrupted(tmp_path, 11, stop_before=8, name="second one")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first-one", "second-one"]
    PassRunner(tmp_path, Ranks(1, 2), SETTINGS).discard("first one")
    assert len(list(tmp_path.iterdir())) == 2, "only the main process discards"
    PassRunner(tmp_path, Ranks(), SETTINGS).discard("first one")
    PassRunner(tmp_path, Ranks(), SETTINGS).discard("first one")
    assert [path.name for path in tmp_path.iterdir()] == ["second-one"]


@pytest.mark.parametrize("world", [2, 3, 5])
def test_several_processes_share_the_chunks_and_the_main_one_merges(tmp_path: Path, world: int) -> None:
    """After a run of one process that was interrupted, and with more processes than chunks are left."""
    interrupted(tmp_path, 23, stop_before=9)
    barrier, decision = Barrier(world), [None]
    sources = [Numbers(23) for _ in range(world)]

    def work(rank: int) -> Outcome | None:
        ranks = Threads(rank, world, barrier, decision)
        return PassRunner(tmp_path, ranks, SETTINGS).run(squares(sources[rank]), KEY)

    with ThreadPoolExecutor(world) as pool:
        main, *others = pool.map(work, range(world))
    assert main is not None
    check(main, range(23))
    assert others == [None] * (world - 1)
    assert sorted(number for source in sources for number in source.loaded) == list(range(8, 23))


def test_missing_parts_are_refused_and_the_same_command_again_makes_them(tmp_path: Path) -> None:
    source = Numbers(11)
    with pytest.raises(ArtifactError, match=r"do not cover every image once.*run the same command again"):
        PassRunner(tmp_path, Alone(0, 2), SETTINGS).run(squares(source), KEY)
    assert source.loaded == [0, 1, 2, 3, 8, 9, 10]
    rest = Numbers(11)
    check(run(tmp_path, squares(rest)), range(11))
    assert rest.loaded == [4, 5, 6, 7]


def test_chunks_that_two_parts_cover_are_refused(tmp_path: Path) -> None:
    run(tmp_path, squares(Numbers(4)))
    for file in list(tmp_path.rglob("g0001-r0000*")):
        file.with_name(file.name.replace("r0000", "r0001")).write_bytes(file.read_bytes())
    with pytest.raises(ArtifactError, match="do not cover every image once"):
        run(tmp_path, squares(Numbers(4)))
