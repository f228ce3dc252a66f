"""What was made is told together and in order, once how to go on after it is noted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace_proto.layout import Slot
from headrace_server.making.run import MadeBatch
from headrace_server.making.slab import Slab
from headrace_server.worker import announcing as module
from headrace_server.worker.announcing import Announcer
from headrace_server.worker.events import Made, Removed

PAGE = 4096


class Run:
    """A partition that says how many batches it has made."""

    def __init__(self) -> None:
        self.made = self.noted = 0

    def announced(self) -> None:
        self.noted = self.made


class Bench:
    """An announcer, and what it has told."""

    def __init__(self, directory: Path) -> None:
        self.slab = Slab(directory, 0, 0, 8 * PAGE, 4 * PAGE)
        self.sent: list[Any] = []
        self.announcer = Announcer(self.slab, self.sent.append)
        self.runs: dict[int, Run] = {}

    def make(self, partition: int = 0, columns: int = 1, pages: int = 1) -> MadeBatch:
        run = self.runs.setdefault(partition, Run())
        block = self.slab.allocate(pages * PAGE)
        assert block is not None
        slots = [Slot("int64", (4,), 64 * i, 32) for i in range(columns)]
        made = MadeBatch(run.made, 4, block, 64 * columns, slots, {"bucket": run.made})
        run.made += 1
        self.announcer.add(("f", partition), run, made)
        return made

    def told(self) -> list[Any]:
        told, self.sent[:] = list(self.sent), []
        return told


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_each_partition_tells_all_it_has_made_at_once_and_notes_it(bench: Bench):
    for partition in (0, 1, 0, 0):
        bench.make(partition)
    assert bench.announcer.announce() == []
    first, second = bench.told()
    assert isinstance(first, Made) and first.partition == 0 and second.partition == 1
    assert [batch.number for batch in first.batches] == [0, 1, 2]
    assert [batch.body.offset for batch in first.batches] == [0, 2 * PAGE, 3 * PAGE]
    assert [batch.meta for batch in first.batches] == [{"bucket": n} for n in range(3)]
    assert {batch.body.segment for batch in first.batches} == {"slab-0-0-0"}
    assert first.batches[0].body.columns == [[0, 32, [4]]]
    assert [bench.runs[partition].noted for partition in (0, 1)] == [3, 1]
    assert [b.number for b in second.batches] == [0]


def test_columns_are_those_of_their_batch_whichever_were_told_before(bench: Bench):
    def told(slots: list[Slot]) -> Any:
        return bench.announcer._columns_of(slots)

    one, other = [Slot("int64", (4,), 0, 32)], [Slot("int64", (2, 2), 64, 32)]
    assert told(one) is told(one) and told(one) == [[0, 32, [4]]] != told(other)
    for i in range(1000):
        assert told([Slot("int64", (4,), 64 * i, 32)]) == [[64 * i, 32, [4]]]
    assert len(bench.announcer._known) <= module._MOST_KNOWN and told(other) == [[64, 32, [2, 2]]]


def test_what_was_told_is_not_told_again(bench: Bench):
    bench.make()
    bench.announcer.announce()
    assert len(bench.told()) == 1
    assert bench.announcer.announce() == [] and bench.told() == []


def test_it_is_full_with_many_batches(bench: Bench):
    for _ in range(15):
        bench.slab.free(bench.make().block)
        assert not bench.announcer.full
    bench.slab.free(bench.make().block)
    assert bench.announcer.full
    bench.announcer.announce()
    assert not bench.announcer.full


def test_a_batch_that_fits_no_message_is_told_of_and_the_others_go_out(bench: Bench):
    bench.make(0, columns=8000)
    bench.make(1)
    ((name, error),) = bench.announcer.announce()
    assert name == ("f", 0) and "limit" in str(error)
    (message,) = bench.told()
    assert message.partition == 1


def test_a_slab_that_is_short_of_room_and_segments_that_went_are_told_along(bench: Bench):
    small = [bench.make() for _ in range(4)]
    bench.announcer.announce()
    assert bench.told()[0].batches[0].body.crowded is False
    for made in small:
        bench.slab.free(made.block)
    bench.make(pages=8)
    bench.announcer.announce()
    made, removed = bench.told()
    assert made.batches[0].body.crowded is True
    assert removed == Removed(("slab-0-0-0",))
