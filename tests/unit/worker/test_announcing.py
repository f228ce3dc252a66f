"""Each batch is announced with its place."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace_proto.errors import ProtocolError
from headrace_proto.layout import Slot
from headrace_server.core.dispatch_effects import Batch
from headrace_server.making.partition_run import InSlab
from headrace_server.making.slab import Slab
from headrace_server.worker.desk import Desk
from headrace_server.worker.partitions import Announcer
from tests.footprint import entries

PAGE = 4096


class Run:
    """A partition that makes batches ahead, and notes how to go on after them."""

    made_ahead = True
    noted = 0

    @property
    def commits(self) -> Run:
        return self

    def announced(self) -> None:
        self.noted += 1


class Bench:
    """An announcer, and its announcements."""

    def __init__(self, directory: Path) -> None:
        self.slab = Slab(directory, 0, 0, 8 * PAGE, 4 * PAGE)
        self.sent: list[Any] = []
        self.announcer = Announcer(self.slab, self.sent.append)
        self.made = 0
        self.runs = Run(), Run()

    def make(
        self,
        partition: int = 0,
        columns: int = 1,
        pages: int = 1,
        slots: list[Slot] | None = None,
    ) -> Batch:
        block = self.slab.allocate(pages * PAGE)
        assert block is not None
        slots = slots or [Slot("int64", (4,), 64 * i, 32) for i in range(columns)]
        meta = {"bucket": self.made}
        made = Batch(
            partition,
            self.made,
            4,
            InSlab(block, cast(Any, SimpleNamespace(slots=slots))),
            meta,
            nbytes=64 * columns,
        )
        self.made += 1
        run: Any = self.runs[partition]
        self.announcer.announce("f", run, made)
        return made

    def told(self) -> list[Any]:
        told, self.sent[:] = list(self.sent), []
        return told


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_batch_is_announced_with_its_description_and_its_place(bench: Bench):
    for partition in (0, 1, 0):
        bench.make(partition)
    told = bench.told()
    assert [event[:2] for event in told] == [("f", Desk.on_made)] * 3
    batches = [event[-1] for event in told]
    assert [batch.partition for batch in batches] == [0, 1, 0]
    assert [batch.number for batch in batches] == [0, 1, 2]
    assert [batch.body.offset for batch in batches] == [0, PAGE, 2 * PAGE]
    assert [batch.meta for batch in batches] == [{"bucket": n} for n in range(3)]
    assert {batch.body.segment for batch in batches} == {"slab-0-0-0"}
    assert batches[0].body.columns == [[0, 32, [4]]]


def test_partitions_note_once_how_to_go_on_after_what_was_announced(bench: Bench):
    for partition in (0, 1, 0):
        bench.make(partition)
    assert [run.noted for run in bench.runs] == [0, 0]
    bench.announcer.note()
    bench.announcer.note()
    assert [run.noted for run in bench.runs] == [1, 1]


def test_columns_are_those_of_their_batch_whichever_were_announced_before(bench: Bench):
    def told(slots: list[Slot]) -> Any:
        bench.slab.free(bench.make(slots=slots).body.block)
        ((*_, batch),) = bench.told()
        return batch.body.columns

    one, other = [Slot("int64", (4,), 0, 32)], [Slot("int64", (2, 2), 64, 32)]
    assert told(one) is told(one) and told(one) == [[0, 32, [4]]] != told(other)
    kept = []
    for i in range(1000):
        assert told([Slot("int64", (4,), 64 * i, 32)]) == [[64 * i, 32, [4]]]
        kept.append(entries(bench.announcer))
    assert max(kept[500:]) <= max(kept[:500]) and told(other) == [[64, 32, [2, 2]]]


def test_a_batch_that_fits_no_message_is_refused(bench: Bench):
    with pytest.raises(ProtocolError, match="limit"):
        bench.make(0, columns=8000)
    bench.make(1)
    ((*_, batch),) = bench.told()
    assert batch.partition == 1


def test_announcements_carry_a_crowded_slab(bench: Bench):
    small = [bench.make() for _ in range(4)]
    assert bench.told()[0][-1].body.crowded is False
    for made in small:
        bench.slab.free(made.body.block)
    bench.make(pages=8)
    ((*_, batch),) = bench.told()
    assert batch.body.crowded is True and bench.slab.removed == ["slab-0-0-0"]
