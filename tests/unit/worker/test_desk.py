"""A desk turns messages of partitions and trainers into events of its machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headrace_server as hs
from headrace_proto.errors import HeadraceError
from headrace_proto.messages import FROM_SERVER, Ended, Handed, Hello
from headrace_proto.messages import Flush as TrainersFlush
from headrace_server.core.dispatch_effects import (
    Answer,
    Batch,
    Claim,
    Leave,
    Send,
    StoreCommit,
    Want,
)
from headrace_server.making.slab import BlockPlace
from headrace_server.process.config import FeedConfig, RunConfig
from headrace_server.worker.desk import Desk
from headrace_server.worker.events import Opened
from headrace_server.worker.state_blocks import StateFlush

SCHEMA = [["i", "int64", [4]]]
TRAINER = 1


def desk(partitions: int = 2, workers: int = 1, max_bad: int | None = None) -> Desk:
    pipeline = hs.from_examples([{"i": 1}]).batch(4)
    if max_bad is not None:
        pipeline = hs.from_examples([{"i": 1}]).options(
            on_bad_example="skip", max_bad_examples=max_bad
        )
        pipeline = pipeline.batch(4)
    feed = FeedConfig("default", pipeline.declaration(), (), partitions)
    return Desk(
        feed, RunConfig((feed,), "/nowhere", (), workers=workers, lease_ttl_s=10, max_ahead=1)
    )


def made(partition: int, *numbers: int, segment: str = "slab-0-0-0", **more: Any) -> list[Batch]:
    meta, crowded = more.pop("meta", {}), more.pop("crowded", False)
    places = [BlockPlace(segment, 4096 * n, [[0, 32, [4]]], crowded) for n in numbers]
    return [
        Batch(partition, n, 4, at, meta, nbytes=32) for n, at in zip(numbers, places, strict=True)
    ]


class At:
    """A desk, and one trainer that takes all."""

    def __init__(self, partitions: int = 1, **options: Any) -> None:
        self.desk = desk(partitions, **options)
        self.sends: list[Send] = []
        for partition in range(partitions):
            self.desk.on_opened(Opened(partition, SCHEMA))
        self.desk.dispatcher.join(TRAINER, 0.0)
        self.desk.dispatcher.window(TRAINER, 64)

    def make(self, partition: int, *numbers: int, **more: Any) -> None:
        for batch in made(partition, *numbers, **more):
            self.desk.on_made(batch)
        effects = self.desk.dispatcher.take_effects()
        self.sends += [effect for effect in effects if isinstance(effect, Send)]


def test_the_desk_of_an_owner_has_the_partitions_of_its_worker_alone():
    feed = FeedConfig("default", hs.from_examples([{"i": 1}]).batch(4).declaration(), (), 5)
    run = RunConfig((feed,), "/nowhere", (), workers=2)
    d = Desk(feed, run, owner=1)
    assert list(d.partitions) == [1, 3] and d.owners == 2
    d.on_opened(Opened(1, SCHEMA))
    assert not d.opened
    d.on_opened(Opened(3, SCHEMA))
    assert d.opened
    for partition in (1, 3):
        d.on_finished(partition, {"dropped": {}})
    assert d.over


def test_more_bad_examples_than_the_limit_over_all_partitions_fail_the_feed():
    at = At(partitions=2, max_bad=3)
    at.desk.on_counted(0, {"dropped": {"bad:corrupt": 1, "filtered": 100}})
    at.desk.on_counted(1, {"dropped": {"bad:corrupt": 1, "bad:map_failed": 1}})
    assert at.desk.failure is None
    at.desk.on_finished(0, {"dropped": {"bad:corrupt": 2, "filtered": 100}})
    code, text = at.desk.failure
    assert code == "data"
    assert text.startswith("more than max_bad_examples=3 bad examples: 3 corrupt, 1 map_failed; ")


def test_the_text_of_a_failure_fits_a_message_in_any_script():
    d = desk()
    d.fail("server", "𝔣" * 100_000)
    assert d.failure is not None
    header = FROM_SERVER.encode(Ended(2**63, *d.failure))
    assert FROM_SERVER.decode(header).text == d.failure[1]


def test_an_announcement_out_of_turn_is_refused():
    at = At()
    at.make(0, 0, 2)
    with pytest.raises((ValueError, HeadraceError), match="made batch 1; next is 3"):
        at.make(0, 1)


# Segments


STATES = [["name", "bytes", []], ["vector", "float32", [2]]]


class Segments:
    """A desk of a feed of segments, and one trainer."""

    def __init__(self, order: str = "arrival", placement: str = "server") -> None:
        pipeline = hs.from_examples([{"k": b"a", "x": np.zeros((3, 1), np.float32)}])
        shaped = pipeline.batch_sequences_with_states(
            input_key="k",
            input_sequences=["x"],
            input_context=[],
            input_length=None,
            initial_states={"vector": np.zeros(2, np.float32)},
            num_unroll=2,
            batch_size=3,
            order=order,
            state_placement=placement,
        )
        feed = FeedConfig("default", shaped.declaration(), (), 2)
        bounds = {"lease_ttl_s": 10, "max_ahead": 1}
        self.desk = Desk(feed, RunConfig((feed,), "/nowhere", (), **bounds))
        self.answers: list[Answer] = []
        self.told: list[Any] = []  # effects for partitions
        self.tokens: list[int] = []
        for partition in range(2):
            properties = {"states": STATES, "placement": placement}
            self.desk.on_opened(Opened(partition, SCHEMA, properties))
        self.desk.dispatcher.join(TRAINER, 0.0)
        self.desk.dispatcher.window(TRAINER, 2)
        self.act()

    def make(self, partition: int, number: int) -> None:
        self.desk.on_made(*made(partition, number, meta={"stripe": 0}))
        self.act()

    def save(self, which: int = 0, payload: Any = ([], None)) -> None:
        self.desk.dispatcher.save(TRAINER, self.tokens[which], payload)  # type: ignore[attr-defined]

    def act(self) -> None:
        for effect in self.desk.dispatcher.take_effects():
            if isinstance(effect, Send):
                self.tokens.append(effect.token)
            elif isinstance(effect, StoreCommit | Want | Leave):
                self.told.append(effect)
            elif isinstance(effect, Answer):
                self.answers.append(effect)

    def take_told(self) -> list[Any]:
        """Return the orders to partitions since the last call."""
        self.act()
        told, self.told = self.told, []
        return told


def test_the_holder_of_the_awaited_batch_is_named():
    at = Segments()
    at.make(0, 0)
    at.desk.on_waiting(0, "it waits for save_state of 00000_of_00002:a", 0)
    assert at.desk.describe(61.0).startswith(
        "partition 0: it waits for save_state of 00000_of_00002:a, leased to trainer 1 for 61 s; "
    )
    at.desk.on_stored(0, [])
    assert "save_state" not in at.desk.describe(61.0)


GOOD: list[Any] = [[0, 40, [2]], [64, 16, [2, 2]]]


def states(offsets: list[int]) -> bytes:
    return np.array(offsets, np.int64).tobytes().ljust(80, b"x")


def test_a_flush_goes_to_its_partition_after_the_save_of_its_batch_and_before_the_leave():
    at = Segments("lanes", "trainer")
    at.make(0, 0)
    assert at.desk.states_stay
    at.save()
    flush = TrainersFlush(TRAINER, 5, at.tokens[0], (0, 2), GOOD)
    assert at.desk.on_flush(TRAINER, flush, states([0, 3, 16])) == ("", "")
    at.desk.dispatcher.leave(TRAINER)
    saved, flushed, left = [told for told in at.take_told() if not isinstance(told, Want)]
    assert (saved.batch.number, saved.token) == (0, at.tokens[0])
    assert flushed.payload == (StateFlush(0, TRAINER, 5, (0, 2), GOOD), states([0, 3, 16]))
    assert left == Leave(0, 0)


def test_an_invalid_flush_is_refused_with_the_reason_and_not_passed_on():
    at = Segments("lanes", "trainer")
    at.make(0, 0)
    token, block = at.tokens[0], states([0, 3, 16])

    def fault(rows: tuple[int, ...] = (0, 1), columns: Any = GOOD, token: int = token) -> str:
        flush = TrainersFlush(TRAINER, 5, token, rows, columns)
        code, text = at.desk.on_flush(TRAINER, flush, block)
        assert code == ("state" if text else "")
        return text

    assert f"{token} is not the last batch that trainer 1 has saved" in fault()
    at.save()
    assert at.take_told()
    for rows in ((0, 4), (1, 1), ()):
        assert "the rows of a flush are not different ones of 4" in fault(rows)
    assert "2 states are saved together" in fault(columns=[])
    assert "a state of shape" in fault((0, 1, 2))
    assert "is not the last" in fault(token=token + 1)
    assert at.take_told() == [] and fault() == ""
    none = desk().on_flush(1, TrainersFlush(1, 1, 1, (0,), []), b"")
    assert none == ("state", "this feed has no states")


# A server that is started anew


def hello_of(*batches: Handed, held: tuple[int, ...] = (), committed: Any = ()) -> Hello:
    return Hello(1, 1, "t", "", b"n", held=held, batches=batches, committed=committed)


def durable(partitions: int = 2) -> Desk:
    pipeline = hs.from_examples([{"i": 1}]).batch(4)
    feed = FeedConfig("default", pipeline.declaration(), (), partitions)
    run = RunConfig((feed,), "/nowhere", (), state_directory="/state", term=7)
    d = Desk(feed, run)
    for partition in range(partitions):
        d.on_opened(Opened(partition, SCHEMA, {}, 3))
    return d


def test_a_welcome_says_whether_the_feed_outlives_its_server_or_only_its_workers():
    assert durable().properties == {"durable": True, "generation": 0, "epoch": 7}
    memory = desk()
    memory.on_opened(Opened(0, SCHEMA))
    assert memory.properties == {"generation": 0, "recovers": True}


def test_a_hello_with_many_commits_asks_a_worker_once_for_each_partition():
    d = durable()
    told = tuple(number for token in range(1, 1000) for number in (token % 2, token))
    d.on_hello(TRAINER, hello_of(committed=told))
    asked = [effect for effect in d.dispatcher.take_effects() if isinstance(effect, Claim)]
    assert sorted(effect.place.token for effect in asked) == [998, 999]
