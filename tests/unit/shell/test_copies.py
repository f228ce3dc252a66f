"""A snapshot's copies are done when every partition has spoken."""

from __future__ import annotations

from headrace_server.shell.copies import Copies
from headrace_server.shell.events import Copied


def test_a_snapshot_is_copied_when_every_partition_has_answered():
    copies = Copies(range(2))
    copies.begin(7)
    copies.answer(Copied("f", 1, 7))
    assert copies.take_done() == []
    copies.answer(Copied("f", 1, 7))
    assert copies.take_done() == []
    copies.answer(Copied("f", 0, 7))
    assert copies.take_done() == [(7, "")]
    assert copies.take_done() == []
    copies.answer(Copied("f", 0, 7))
    assert copies.take_done() == []


def test_the_first_fault_is_told_with_its_partition():
    copies = Copies(range(2))
    copies.begin(1)
    copies.answer(Copied("f", 1, 1, "full"))
    copies.answer(Copied("f", 0, 1, "gone"))
    assert copies.take_done() == [(1, "partition 1: full")]


def test_a_feed_that_fails_gives_up_all():
    copies = Copies(range(1))
    copies.begin(1)
    assert copies.give_up() == [1]
    assert copies.give_up() == []
    assert copies.take_done() == []
