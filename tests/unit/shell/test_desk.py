"""A desk turns what workers say into events, and effects into news for workers."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_proto.errors import HeadraceError
from headrace_proto.messages import FROM_SERVER, Ended
from headrace_server import pipeline as hs
from headrace_server.core.handover import Freed, Send, Taken
from headrace_server.shell.config import FeedConfig, RunConfig
from headrace_server.shell.desk import Desk, News, delivery_of
from headrace_server.shell.worker_messages import (
    FROM_ROUTER,
    Close,
    Failed,
    Finished,
    Made,
    Opened,
    Settled,
)

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
    return Desk(feed, RunConfig((feed,), "/nowhere", (), workers=workers, lease_ttl_s=10))


def made(partition: int, number: int, segment: str = "slab-0-0-0", **more: Any) -> Made:
    values: dict[str, Any] = {"dropped": {}, "crowded": False, **more}
    return Made(
        "default", partition, number, 4, segment, 4096 * number, 32, [[0, 32, [4]]], {}, **values
    )


class At:
    """A desk, one trainer that takes all, and the news for workers."""

    def __init__(self, partitions: int = 1, life: int = 0, **options: Any) -> None:
        self.desk = desk(partitions, **options)
        self.life = life
        self.news = {(0, life): News()}
        self.tokens: list[int] = []
        self.sends: list[Send] = []
        for partition in range(partitions):
            self.desk.on_opened(Opened("default", partition, SCHEMA))
        self.desk.dispatcher.join(TRAINER, 0.0)
        self.desk.dispatcher.window(TRAINER, 64)

    def make(self, partition: int, number: int, **more: Any) -> None:
        cursor = b"after %d" % number
        self.desk.on_made(made(partition, number, **more), cursor, 0, self.life)
        self.act()

    def act(self) -> None:
        for effect in self.desk.dispatcher.take_effects():
            if isinstance(effect, Send):
                self.sends.append(effect)
                self.tokens.append(effect.token)
            elif isinstance(effect, Taken):
                self.desk.on_taken(effect, self.news)
            elif isinstance(effect, Freed):
                self.desk.on_freed(effect, self.news)

    def commit(self, *which: int) -> None:
        self.desk.dispatcher.commit(TRAINER, tuple(self.tokens[i] for i in which))
        self.act()

    def next_life(self) -> None:
        """The worker died, and another life of it is there."""
        del self.news[0, self.life]
        self.life += 1
        self.news[0, self.life] = News()


def test_a_desk_is_open_when_every_partition_is_or_when_the_feed_has_failed():
    d = desk(partitions=2)
    d.on_opened(Opened("default", 1, SCHEMA))
    assert not d.opened and d.schema == SCHEMA
    d.on_opened(Opened("default", 1, SCHEMA))
    assert not d.opened
    d.on_opened(Opened("default", 0, SCHEMA))
    assert d.opened
    failed = desk(partitions=2)
    failed.on_failed(Failed("default", 0, "files", "it is gone"))
    assert failed.opened and failed.over and failed.failure == ("files", "it is gone")


def test_a_worker_runs_its_partitions_from_their_last_cursor_until_they_are_finished():
    d = desk(partitions=5, workers=2)
    assert list(d.open_partitions(1)) == [(1, b""), (3, b"")]
    d.on_made(made(3, 0), b"three", 1, 0)
    d.on_made(made(3, 1), b"three again", 1, 0)
    assert list(d.open_partitions(1)) == [(1, b""), (3, b"three again")]
    d.on_finished(Finished("default", 3, {}))
    assert list(d.open_partitions(1)) == [(1, b"")]
    assert [partition for partition, _ in d.open_partitions(0)] == [0, 2, 4]


def test_a_batch_that_is_settled_is_told_to_the_worker_whose_it_is():
    at = At()
    at.make(0, 0)
    at.make(0, 1)
    assert at.news[0, 0].take() == Settled((), (("default", 2),))
    at.commit(1)
    assert at.news[0, 0].take() == Settled((("default", 0, 1),), (("default", 2),))
    assert at.news[0, 0].take() is None
    assert at.desk.uses("slab-0-0-0") and at.desk.retired == []


def test_a_dead_workers_segment_goes_when_its_last_batch_is_free_and_not_before():
    at = At()
    for number in range(3):
        at.make(0, number, segment=f"slab-0-0-{number // 2}")
    at.next_life()
    at.commit(0)
    assert at.desk.retired == [] and at.desk.uses("slab-0-0-0")
    at.commit(1)
    assert at.desk.retired == ["slab-0-0-0"] and not at.desk.uses("slab-0-0-0")
    at.commit(2)
    assert at.desk.retired == ["slab-0-0-0", "slab-0-0-1"]
    assert at.news[0, 1].take() is None  # its blocks are not the new life's to free


def test_a_batch_that_somebody_still_reads_keeps_the_segment():
    at = At()
    at.make(0, 0)
    at.desk.dispatcher.pin(at.sends[0].batch, "a frame")
    at.next_life()
    at.commit(0)
    assert at.desk.retired == []
    at.desk.dispatcher.unpin(at.sends[0].batch, "a frame")
    at.act()
    assert at.desk.retired == ["slab-0-0-0"]


def test_a_segment_of_a_living_worker_is_the_workers_to_give_up():
    at = At()
    at.make(0, 0)
    at.commit(0)
    assert at.desk.retired == [] and not at.desk.uses("slab-0-0-0")


def test_the_next_life_goes_on_where_the_announcements_ended():
    at = At()
    at.make(0, 0)
    at.next_life()
    assert list(at.desk.open_partitions(0)) == [(0, b"after 0")]
    at.make(0, 1, segment="slab-0-1-0")
    at.desk.on_finished(Finished("default", 0, {"remainder": 2}))
    at.desk.on_finished(Finished("default", 0, {"remainder": 2}))  # the word came twice
    at.commit(0, 1)
    assert at.desk.over and at.desk.dropped() == {"remainder": 2}
    assert at.news[0, 1].take() == Settled((("default", 0, 1),), (("default", 1),))


def test_what_was_dropped_is_the_sum_over_partitions_of_what_each_said_last():
    at = At(partitions=2)
    at.make(0, 0, dropped={"bad:x": 1, "filtered": 2})
    at.make(1, 0, dropped={"filtered": 10})
    at.make(0, 1, dropped={"bad:x": 3, "filtered": 4})
    assert at.desk.dropped() == {"bad:x": 3, "filtered": 14}


def test_more_bad_examples_than_the_limit_over_all_partitions_fail_the_feed():
    at = At(partitions=2, max_bad=3)
    at.make(0, 0, dropped={"bad:corrupt": 1, "filtered": 100})
    at.make(1, 0, dropped={"bad:corrupt": 1, "bad:map_failed": 1})
    assert at.desk.failure is None
    at.desk.on_finished(Finished("default", 0, {"bad:corrupt": 2, "filtered": 100}))
    assert at.desk.failure == (
        "data",
        "more than max_bad_examples=3 bad examples: 3 corrupt, 1 map_failed",
    )


def test_without_a_limit_any_number_of_bad_examples_is_taken():
    at = At()
    at.make(0, 0, dropped={"bad:corrupt": 10**9})
    assert at.desk.failure is None


def test_the_first_reason_of_a_failure_stands():
    d = desk()
    d.fail("data", "first")
    d.fail("server", "second")
    assert d.failure == ("data", "first")


def test_the_text_of_a_failure_fits_a_message_in_any_script():
    d = desk()
    d.fail("server", "𝔣" * 100_000)
    assert d.failure is not None
    header = FROM_SERVER.encode(Ended(2**63, *d.failure))
    assert FROM_SERVER.decode(header).text == d.failure[1]


def test_a_cancel_after_a_close_still_cancels_and_a_close_after_it_does_not_undo_it():
    d = desk()
    d.close(False)
    d.closing_told = True
    d.close(False)
    assert d.closing == Close("default") and d.closing_told
    d.close(True)
    assert d.closing == Close("default", True) and not d.closing_told
    d.closing_told = True
    d.close(False)
    assert d.closing == Close("default", True) and d.closing_told


def test_any_number_of_freed_blocks_is_told_in_messages_that_fit():
    news = News()
    name = "n" * 100
    news.freed += [(name, 4095, 10**15 + i) for i in range(1000)]
    news.count_taken(name)
    told = []
    while (message := news.take()) is not None:
        FROM_ROUTER.encode(message)
        assert message.taken == ((name, 1),)
        told += message.freed
    assert len(told) == len(set(told)) == 1000


def test_a_delivery_is_a_reference_or_the_number_of_a_frame():
    at = At()
    at.make(0, 0, segment="slab-0-0-5", crowded=True)
    there, here = delivery_of(at.sends[0], None), delivery_of(at.sends[0], 1)
    assert (there.segment, there.offset, there.frame, there.copy_out) == ("slab-0-0-5", 0, 0, True)
    assert (here.segment, here.offset, here.frame, here.copy_out) == ("", 0, 1, False)
    assert there.nbytes == here.nbytes == 32 and there.columns == [[0, 32, [4]]]


def test_an_announcement_out_of_turn_is_refused():
    at = At()
    at.make(0, 0)
    with pytest.raises((ValueError, HeadraceError), match="made batch 2; next is 1"):
        at.make(0, 2)
