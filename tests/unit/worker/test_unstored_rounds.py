"""Batches of a round wait until it is stored, and what a trainer is told after them waits, too."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from headrace_proto.messages import Following, Idle
from headrace_server.core.dispatch_effects import Batch, Dealt, Send
from headrace_server.worker.unstored_rounds import UnstoredRounds


class _Desk:
    """A feed."""


class _Stores:
    """Rounds of partitions that are stored once the test says so."""

    def __init__(self) -> None:
        self.stored: set[tuple[str, int]] = set()

    def settled(self, name: tuple[str, int]) -> bool:
        return name in self.stored


def test_notices_do_not_overtake_batches_whose_round_is_not_stored():
    stores, sent = _Stores(), list[Any]()
    partitions: Any = SimpleNamespace(stores=stores, store_rounds=lambda name: None)
    outbox: Any = SimpleNamespace(
        deliver=lambda desk, effect: sent.append(effect), tell_turn=sent.append
    )
    dispatcher = SimpleNamespace(segmented=True, holds=lambda session, token: token != 2)
    desk: Any = _Desk()
    desk.name, desk.dispatcher = "feed", dispatcher
    rounds = UnstoredRounds(partitions, outbox)
    before = Following(1, 0, 0)
    rounds.deliver(desk, before)
    assert sent == [before]
    rounds.dealt(desk, Dealt((0,)))
    effects = [Send(1, n, n, Batch(p, n, 1)) for n, p in ((1, 0), (2, 0), (3, 1))]
    notices = [Following(1, 1, 0), Idle(1, 3)]
    for effect in (*effects, *notices):
        rounds.deliver(desk, effect)
    rounds.deliver_stored()
    assert sent == [before]
    stores.stored.add(("feed", 0))
    rounds.deliver_stored()
    assert sent == [before, effects[0], effects[2], *notices]  # the second was taken back


def test_batches_that_are_sent_again_are_sent_in_their_order():
    """1. The third batch of a trainer waits.  2. It greets again, and has got none of the three.
    A third one before the others would count as proof that they had come.
    """
    stores, sent = _Stores(), list[Any]()
    partitions: Any = SimpleNamespace(stores=stores, store_rounds=lambda name: None)
    outbox: Any = SimpleNamespace(
        deliver=lambda desk, effect: sent.append((effect.session, effect.seq)),
        tell_turn=lambda effect: sent.append(effect.number),
    )
    desk: Any = _Desk()
    dispatcher = SimpleNamespace(segmented=True, holds=lambda session, token: True)
    desk.name, desk.dispatcher = "feed", dispatcher
    rounds = UnstoredRounds(partitions, outbox)
    rounds.dealt(desk, Dealt((0,)))
    third, other, first, second = (
        Send(session, n, 10 * session + n, Batch(0, n, 1))
        for session, n in ((1, 3), (2, 1), (1, 1), (1, 2))
    )
    for effect in (third, other, Following(1, 4, 0), first, second, third, Following(1, 5, 0)):
        rounds.deliver(desk, effect)
    stores.stored.add(("feed", 0))
    rounds.deliver_stored()
    assert sent == [(2, 1), (1, 1), (1, 2), (1, 3), 5]
