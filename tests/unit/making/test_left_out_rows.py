"""Rows that are left out: batches keep their numbers and rows, later epochs come without them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import msgpack
import numpy as np
import pytest

import headrace_server as hs
from headrace_proto.layout import array_at
from headrace_server.core.dispatch_effects import Batch
from headrace_server.files.index_cache import IndexCache
from headrace_server.making.compose import compose
from headrace_server.making.left_out_rows import ALL_ROWS, LeftOut
from headrace_server.making.partition_run import Busy, Done, Run
from headrace_server.making.slab import Slab
from headrace_server.pipeline.builder import Pipeline
from headrace_server.reading.reader import BadRecords
from headrace_server.reading.sources import open_reader
from headrace_server.reading.trace import NO_TRACING, Trace, Tracing

PAGE = 4096


class Place:
    """A reader and a slab, and feeds of one partition."""

    def __init__(self, pipeline: Pipeline, directory: Path) -> None:
        self.declaration = pipeline.declaration()
        self.bad = BadRecords()
        self.tracing = NO_TRACING
        self.reader = open_reader(self.declaration.source, (), self.bad, IndexCache(None))
        self.slab = Slab(directory, 0, 0, 256 * PAGE, 8 * PAGE)

    def feed(self, out: LeftOut = ALL_ROWS) -> Run:
        given = self.reader, self.declaration, 0, 1, self.slab, self.bad
        return compose(*given, left_out=out, tracing=self.tracing)

    def batches(self, feed: Run) -> Iterator[tuple[int, list[int], bytes]]:
        """Number, rows and cursor of each batch."""
        while (step := feed.advance()) is not Done:
            if step is Busy:
                continue
            assert isinstance(step, Batch)
            rows = array_at(self.slab.memory(step.body.block), step.body.slots[0]).tolist()
            self.slab.free(step.body.block)
            yield step.number, rows, feed.commits.cursor()


def pipeline(epochs: int = 3) -> Pipeline:
    source = hs.from_examples([{"i": i} for i in range(60)]).shuffle(seed=4).repeat(epochs)
    return source.batch(5, allow_smaller_final_batch=True)


def plain(batches: Iterator[tuple[int, list[int], bytes]]) -> list[tuple[int, list[int]]]:
    return [(number, rows) for number, rows, _ in batches]


def test_a_row_is_out_from_its_epoch_on() -> None:
    out = LeftOut([(7, 1), (3, 0), (2**50, 2)])
    rows = np.array([3, 7, 2**50, 4, 3])
    assert len(out) == 3
    assert out.mask(rows, 0).tolist() == [True, False, False, False, True]
    assert out.mask(rows, 2).tolist() == [True, True, True, False, True]
    assert out.mask(rows, 1, later=True).tolist() == [True, False, False, False, True]
    assert not LeftOut([]).mask(rows, 5).any() and not len(out.mask(rows[:0], 5))


def test_a_batch_is_passed_over_and_later_epochs_come_without_its_rows(tmp_path: Path) -> None:
    place = Place(pipeline(), tmp_path)
    whole = plain(place.batches(place.feed()))
    poisoned = whole[6][1]
    out = LeftOut((row, 0) for row in poisoned)
    feed = place.feed(out)
    less = plain(place.batches(feed))
    assert less[:11] == [batch for batch in whole[:12] if batch[0] != 6]
    rest = [row for _, rows in less[11:] for row in rows]
    assert sorted(rest) == sorted([row for row in range(60) if row not in poisoned] * 2)
    assert feed.dropped() == {"skipped": 15}


def test_every_cursor_goes_on_in_the_same_way_though_rows_are_out(tmp_path: Path) -> None:
    place = Place(pipeline(), tmp_path)
    poisoned = plain(place.batches(place.feed()))[6][1]
    out = LeftOut((row, 0) for row in poisoned)
    feed = place.feed(out)
    less = list(place.batches(feed))
    for at, (_, _, cursor) in enumerate(less):
        again = place.feed(out)
        again.commits.restore(msgpack.unpackb(cursor, strict_map_key=False))
        assert plain(place.batches(again)) == [batch[:2] for batch in less[at + 1 :]]
        assert again.dropped() == feed.dropped()


@pytest.mark.parametrize("named", [0, 3, 5, 6, 9])
def test_rows_that_are_named_later_move_nothing_that_was_read(tmp_path: Path, named: int) -> None:
    place = Place(pipeline(2), tmp_path)
    whole = list(place.batches(place.feed()))
    out = LeftOut((row, 0) for row in whole[6][1])
    again = place.feed(out)
    again.commits.restore(msgpack.unpackb(whole[named][2], strict_map_key=False))
    rest = plain(place.batches(again))
    still = [batch[:2] for batch in whole[named + 1 : 12] if batch[0] != 6]
    assert rest[: len(still)] == still
    # Of the epochs to come only what was not read yet could be left out.
    later = [row for _, rows in rest[len(still) :] for row in rows]
    assert len(later) == len(set(later)) and len(later) in (55, 60)


def test_a_row_that_can_not_be_left_out_alone_goes_out_and_that_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(pipeline(1), tmp_path)
    whole = plain(place.batches(place.feed()))
    with caplog.at_level(logging.WARNING, "headrace.worker"):
        feed = place.feed(LeftOut([(whole[2][1][0], 0)]))
        assert plain(place.batches(feed)) == whole
    assert ["batch 2 holds 1 rows" in record.message for record in caplog.records] == [True]
    assert feed.dropped() == {}


def test_a_batch_that_is_passed_over_counts_as_done(tmp_path: Path) -> None:
    place = Place(pipeline(1), tmp_path)
    whole = plain(place.batches(place.feed()))
    feed = place.feed(LeftOut((row, 0) for row in whole[1][1]))
    numbers = [number for number, _, _ in place.batches(feed)]
    feed.commits.announced()
    for number in numbers:
        feed.commits.saved(number)
    changes = feed.commits.take_changes()
    assert sorted(number for change in changes for number in change.done) == list(range(12))
    assert changes[-1].base == 12


def test_a_trace_has_the_origin_of_the_rows_of_a_batch(tmp_path: Path) -> None:
    place = Place(pipeline(), tmp_path)
    traces: list[tuple[int, int, Trace]] = []
    place.tracing = Tracing(lambda *traced: traces.append(traced))
    feed = place.feed()
    made = 0
    while (step := feed.advance()) is not Done:
        if isinstance(step, Batch):
            rows = array_at(place.slab.memory(step.body.block), step.body.slots[0]).tolist()
            number, count, trace = traces.pop()
            assert (number, count, traces) == (step.number, step.rows, [])
            parts = [(trace.sources[part.chunk], part.rows) for part in trace.parts]
            told = [row for source, at in parts for row in source.ordinals[at].tolist()]
            assert told == rows
            place.slab.free(step.body.block)
            made += 1
    assert made == 36
