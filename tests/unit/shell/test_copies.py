"""A snapshot's copies are done when every partition has spoken, whatever dies meanwhile."""

from __future__ import annotations

from headrace_server.shell.copies import Copies
from headrace_server.shell.worker_messages import Copied, Copy


def test_a_snapshot_is_copied_when_every_partition_has_answered():
    copies = Copies("f", range(2))
    assert copies.begin(7, "/d") == [Copy("f", 0, 7, "/d"), Copy("f", 1, 7, "/d")]
    copies.answer(Copied("f", 1, 7))
    assert copies.take_done() == []
    copies.answer(Copied("f", 1, 7))
    assert copies.take_done() == []
    copies.answer(Copied("f", 0, 7))
    assert copies.take_done() == [(7, "")]
    assert copies.take_done() == []
    copies.answer(Copied("f", 0, 7))  # said again by a worker's next life
    assert copies.take_done() == []


def test_the_first_fault_is_told_with_its_partition():
    copies = Copies("f", range(2))
    copies.begin(1, "/d")
    copies.answer(Copied("f", 1, 1, "full"))
    copies.answer(Copied("f", 0, 1, "gone"))
    assert copies.take_done() == [(1, "partition 1: full")]


def test_a_new_worker_is_told_what_its_partitions_owe():
    copies = Copies("f", range(4))
    copies.begin(1, "/a")
    copies.begin(2, "/b")
    copies.answer(Copied("f", 2, 1))
    told = list(copies.of_a_new_worker({0, 2}))
    assert told == [Copy("f", 0, 1, "/a"), Copy("f", 0, 2, "/b"), Copy("f", 2, 2, "/b")]


def test_a_feed_that_fails_gives_up_all():
    copies = Copies("f", range(1))
    copies.begin(1, "/a")
    assert copies.give_up() == [1]
    assert copies.give_up() == []
    assert copies.take_done() == []
