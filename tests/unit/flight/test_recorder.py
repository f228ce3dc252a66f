"""A recorder that fails logs it once, and resumes when it can."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import numpy as np
import pytest

from headrace_server.core.dispatch_effects import Batch, Send
from headrace_server.core.plan import Part, Read
from headrace_server.core.slots import Segments
from headrace_server.flight import flight_file
from headrace_server.flight import recorder as flight
from headrace_server.flight.feed_record import FeedRecord
from headrace_server.flight.recorder import Recorder
from headrace_server.flight.rows import BatchId
from headrace_server.process.config import RunConfig
from headrace_server.reading.chunk import Origin
from headrace_server.reading.trace import ChunkTrace, Trace


def config(state: Path) -> RunConfig:
    return RunConfig((), "", (), state_directory=str(state), start=1, record="rows")


def trace() -> Trace:
    numbers = np.arange(2)
    one = ChunkTrace(Read(0, 0, 0, 2), None, numbers, Origin.single("file", numbers))
    return Trace({0: one}, (Part(0, slice(0, 2)),))


def test_a_directory_that_can_not_be_made_is_told_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "feeds"
    blocked.write_text("a file where a directory should be")
    recorder = Recorder(config(tmp_path), "f")
    monkeypatch.setattr(flight, "_PAUSE_S", 0.0)
    with caplog.at_level(logging.ERROR, "headrace.flight"):
        for number in range(3):
            recorder.made(0, number, 2, trace())
            recorder.note([Send(1, number, 1 + number, Batch(0, number, 2))])
    assert [record.message.count("logged once") for record in caplog.records] == [1]
    blocked.unlink()
    recorder.made(0, 3, 2, trace())
    recorder.note([Send(1, 3, 4, Batch(0, 3, 2))])
    recorder.close()
    history = FeedRecord(tmp_path, "f")
    assert [lease.token for lease in history.leases] == [4]
    assert [bool(history.place(BatchId(1, 0, n))) for n in range(4)] == [False] * 3 + [True]


def test_after_a_fault_nothing_is_tried_for_a_while(tmp_path: Path) -> None:
    blocked = tmp_path / "feeds"
    blocked.write_text("")
    rows = Recorder(config(tmp_path), "f")
    rows.made(0, 0, 2, trace())
    blocked.unlink()
    rows.made(0, 1, 2, trace())
    assert not blocked.exists()


def test_what_can_not_be_packed_is_a_gap_and_no_error(tmp_path: Path) -> None:
    rows = Recorder(config(tmp_path), "f")
    of = trace()
    rows.made(0, 0, 2, Trace(of.sources, of.parts, meta={"what": object()}))
    rows.close()


def segments(first: int) -> Segments:
    return Segments(np.arange(2), np.arange(first, first + 12).reshape(6, 2))


def test_a_batch_that_was_made_is_recorded_before_it_is_handed_out(tmp_path: Path) -> None:
    recorder = Recorder(config(tmp_path), "f")
    for number in range(2):
        recorder.made(0, number, 2, trace())
    assert FeedRecord(tmp_path, "f").place(BatchId(1, 0, 0)) is None
    recorder.note([Send(1, 1, 7, Batch(0, 0, 2))])  # it is acted on when this returns
    recorded = FeedRecord(tmp_path, "f")
    assert [lease.token for lease in recorded.leases] == [7]
    assert all(recorded.place(BatchId(1, 0, number)) for number in range(2))
    recorder.close()


def test_batches_that_nobody_gets_are_recorded_when_the_worker_rests_or_ends(
    tmp_path: Path,
) -> None:
    recorder = Recorder(config(tmp_path), "f")
    recorder.made(0, 0, 2, trace())
    recorder.rest()
    assert FeedRecord(tmp_path, "f").place(BatchId(1, 0, 0)) is not None
    recorder.made(0, 1, 2, trace())
    recorder.close()
    assert FeedRecord(tmp_path, "f").place(BatchId(1, 0, 1)) is not None


def test_of_batches_that_nobody_gets_a_few_wait_to_be_recorded(tmp_path: Path) -> None:
    recorder = Recorder(config(tmp_path), "f")
    for number in range(100):
        recorder.made(0, number, 2, trace())
    recorded = FeedRecord(tmp_path, "f")
    missing = [n for n in range(100) if recorded.place(BatchId(1, 0, n)) is None]
    assert len(missing) <= flight._MOST_WAITING and missing == [*range(100 - len(missing), 100)]
    recorder.close()


def test_a_batch_that_is_larger_than_a_file_begins_no_further_file_when_the_worker_rests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_file, "_MOST_BYTES", 16)
    recorder = Recorder(config(tmp_path), "f")
    recorder.made(0, 0, 2, trace())
    recorder.rest()
    assert len([*tmp_path.rglob(f"*{flight_file.SUFFIX}")]) == 1
    recorder.close()
    assert FeedRecord(tmp_path, "f").place(BatchId(1, 0, 0)) is not None


def recorded(state: Path, number: int) -> list[list[int]]:
    found = FeedRecord(state, "f").get(BatchId(1, 0, number))
    assert found is not None and found.trace.segments is not None
    return found.trace.segments.numbers[1:].tolist()


def test_a_batch_is_recorded_as_it_is_whether_or_not_it_was_the_expected_one(
    tmp_path: Path,
) -> None:
    """The last one is another than the one that was expected."""
    recorder = Recorder(config(tmp_path), "f")
    source = dict.fromkeys(range(100), trace().sources[0])
    batches = [Trace(source, segments=segments(12 * n)) for n in range(3)]
    other = Trace(source, segments=segments(50))
    for number, batch in enumerate(batches):
        recorder.expect(0, number, 2, batch)
        recorder.made(0, number, 2, batch if number < 2 else other)
    recorder.rest()
    for number, batch in enumerate([*batches[:2], other]):
        assert batch.segments is not None
        assert recorded(tmp_path, number) == batch.segments.numbers[1:].tolist()
    recorder.close()


def test_an_expected_batch_that_begins_a_file_is_recorded_with_its_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_file, "_MOST_BYTES", 16)  # each write begins a file
    recorder = Recorder(config(tmp_path), "f")
    for number in range(2):
        batch = Trace(dict.fromkeys(range(100), trace().sources[0]), segments=segments(0))
        recorder.expect(0, number, 2, batch)
        recorder.made(0, number, 2, batch)
        recorder.rest()
    assert len([*tmp_path.rglob(f"*{flight_file.SUFFIX}")]) == 2
    assert recorded(tmp_path, 1) == segments(0).numbers[1:].tolist()
    recorder.close()


def test_batches_of_many_rows_do_not_wait(tmp_path: Path) -> None:
    recorder = Recorder(config(tmp_path), "f")
    for number in range(2):
        recorder.made(0, number, 1 + flight._MOST_ROWS // 2, trace())
    assert FeedRecord(tmp_path, "f").place(BatchId(1, 0, 1)) is not None
    recorder.close()


def test_a_batch_that_is_sent_once_more_was_handed_out_once(tmp_path: Path) -> None:
    leases = Recorder(config(tmp_path), "f")
    for _ in range(2):
        leases.note([Send(1, 1, 7, Batch(0, 0, 2))])
    leases.close()
    (lease,) = FeedRecord(tmp_path, "f").leases
    assert lease.token == 7 and lease.events == []


def test_one_thread_makes_batches_while_another_hands_them_out(tmp_path: Path) -> None:
    small = RunConfig(
        (), "", (), state_directory=str(tmp_path), start=1, record="rows", record_bytes=1 << 18
    )
    recorder, number = Recorder(small, "f"), 3000

    def hand_out() -> None:
        for token in range(1, number + 1):
            recorder.note([Send(1, token, token, Batch(0, token, 2))])

    second = threading.Thread(target=hand_out)
    second.start()
    for made in range(1, number + 1):
        recorder.made(0, made, 2, trace())
    second.join()
    recorder.close()
    assert len([*tmp_path.rglob("*.flight")]) > 1
    history = FeedRecord(tmp_path, "f")
    assert history.leases[-1].token == number
    read = [history.get(BatchId(1, 0, made)) for made in range(1, number + 1)]
    assert read[-1] is not None
    assert all(one is None or [row.example for row in one.listed()] == [0, 1] for one in read)
