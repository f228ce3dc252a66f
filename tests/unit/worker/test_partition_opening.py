"""Partitions are opened as they were left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace_server as hs
from headrace_proto.errors import ServerError
from headrace_server.leasing.protocol import Outlook
from headrace_server.making.plain_run import PlainRun
from headrace_server.pipeline.builder import Pipeline
from headrace_server.process.worker_diary import IDLE, OPENING
from headrace_server.worker import partition_opening
from tests.unit.lives import House, step

Open = Callable[..., House]
#: Two partitions of five batches.
NUMBERS = hs.from_examples([{"i": i} for i in range(10)]).batch(1)
NUMBERS_OF_NOBODY = hs.from_examples([{"i": 1}]).map(f"{__file__}:nobody").batch(1)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Open]:
    houses: list[House] = []
    (tmp_path / "lives").mkdir()

    def open_(pipeline: Pipeline = NUMBERS, durable: bool = False, **more: Any) -> House:
        state = tmp_path / "state" if durable else None
        houses.append(House(pipeline, tmp_path / "lives", state, **more))
        return houses[-1]

    yield open_
    for one in houses:
        one.stores.close()


def test_partitions_of_a_feed_share_one_reader(house: Open, monkeypatch: pytest.MonkeyPatch):
    open_reader, opened = partition_opening.open_reader, []
    monkeypatch.setattr(
        partition_opening, "open_reader", lambda *of: opened.append(of) or open_reader(*of)
    )
    one = house()
    first, second = one.open(0), one.open(1)
    assert len(opened) == 1
    made = [step(run) for run in (first, second) for _ in range(5)]
    assert [batch.number for (batch,) in made] == [*range(5), *range(5)]
    for run in (first, second):
        assert step(run) is Outlook.IDLE and run.finished
    assert one.diary_file.read().doing == IDLE


def test_a_source_without_an_example_is_logged_once(
    house: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "empty.jsonl").touch()
    one = house(hs.read_jsonl(str(tmp_path / "empty.jsonl"), {"i": hs.scalar("int64")}).batch(1))
    assert step(one.open(0)) is step(one.open(1)) is Outlook.ENDED
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1 and told[0].endswith(": the source has no example")


def test_a_source_that_can_not_be_opened_as_declared_has_an_error_with_a_name(house: Open):
    """Other errors are logged with their traceback."""
    complex_ = hs.read_tfrecord(__file__, {"x": hs.scalar("complex64")}).batch(1)
    with pytest.raises(ServerError, match="TFRecord holds no complex numbers"):
        house(complex_).open(0)
    with pytest.raises(ServerError, match="there is no 'nobody' in"):
        house(NUMBERS_OF_NOBODY).open(0)


def test_damage_that_shows_when_a_file_is_opened_is_counted_by_partition_0_alone(
    house: Open, tmp_path: Path
):
    file = tmp_path / "cut.tfrecord"
    file.write_bytes(bytes(5))
    declared = hs.read_tfrecord(str(file), {"i": hs.scalar("int64")}).batch(1)
    declared = declared.options(on_bad_example="skip")
    assert sum(house(declared).open(0).dropped().values()) == 1
    assert sum(house(declared).open(1).dropped().values()) == 0


def test_the_partition_whose_opening_fails_stays_in_the_diary(
    house: Open, monkeypatch: pytest.MonkeyPatch
):
    one = house(durable=True)

    def broken(memory: PlainRun, saved: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(PlainRun, "resume", broken)
    with pytest.raises(MemoryError):
        one.open(1)
    entry = one.diary_file.read()
    assert (entry.doing, entry.feed, entry.partition) == (OPENING, "f", 1)


def test_how_far_an_index_is_stands_in_the_diary(
    house: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    file = tmp_path / "large.tfrecord"
    file.write_bytes(bytes(1000))

    def scan(data: Any, told: Callable[[int], None]) -> None:
        told(470)
        raise MemoryError

    monkeypatch.setattr("headrace_server.reading.sources.tfrecord.scan", scan)
    monkeypatch.setattr("headrace_server.worker.partition_opening._LOG_S", 0.0)
    one = house(hs.read_tfrecord(str(file), {"i": hs.scalar("int64")}).batch(1))
    one.diary.begin("f", 0, opening=True)
    beats = one.diary_file.beats()
    with caplog.at_level("INFO"), pytest.raises(MemoryError):
        one.open()
    where = f"{file}, of which 470 of 1,000 bytes are indexed"
    assert one.diary_file.beats() > beats
    assert one.diary_file.read().describe().endswith(f"opening feed 'f', partition 0, at {where}")
    assert f"opening {where}" in caplog.messages


def test_a_partition_goes_on_from_its_store(house: Open):
    one, name = house(durable=True), ("f", 0)
    run = one.open()
    (batch,) = step(run)
    assert run.commit(batch, 70, None) is None
    one.stores.submit(name, run, [70], 1)
    one.settle(name)
    one.stores.close()
    two = house(durable=True)
    run = two.open()
    assert run.next_turn(-1) == (0, 1) and two.stores.tokens(name) == {70}
    assert not two.stores.lacks(name, 70) and two.stores.lacks(name, 71)
