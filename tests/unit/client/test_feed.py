"""A feed of plain batches over a real socket: what commits a batch, and what gives it back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import headrace
from headrace_proto.messages import (
    Bye,
    Deliver,
    Delivery,
    Ended,
    Outcome,
    Retarget,
    Retargeted,
    Step,
)
from headrace_proto.schema import Field, schema_to_wire

from .peer import Peer

SCHEMA = schema_to_wire({"x": Field("int64", (None,))})


def batch(seq: int) -> tuple[Deliver, bytes]:
    item = Delivery(seq, 10 + seq, 0, seq, 1, 8, [[0, 8, [1]]], {}, "", 0, 1)
    return Deliver(7, (item,)), np.int64(seq).tobytes()


def trained(peer: Peer, train: Callable[[headrace.Feed], Any]) -> threading.Thread:
    """A trainer in a thread, with two batches on their way to it."""

    def run() -> None:
        with headrace.connect(peer.address, timeout=10) as feed:
            train(feed)

    thread = threading.Thread(target=run)
    thread.start()
    peer.welcome(SCHEMA)
    peer.say(*batch(1))
    peer.say(*batch(2))
    return thread


def commits(peer: Peer, count: int) -> list[int]:
    """Answers commits until there were so many."""
    tokens: list[int] = []
    while len(tokens) < count:
        step = peer.hear(Step)
        tokens += step.commits
        if step.commits:
            peer.say(Outcome(7, step.commits))
    return tokens


def test_asking_for_the_next_batch_commits_the_one_in_hand(peer: Peer):
    taken: list[int] = []

    def train(feed: headrace.Feed) -> None:
        assert (feed.name, list(feed.schema), dict(feed.states)) == ("f", ["x"], {})
        assert not feed.local
        taken.extend(int(batch["x"][0]) for batch in feed)

    thread = trained(peer, train)
    assert commits(peer, 2) == [11, 12]
    peer.say(Ended(7))
    assert peer.hear(Bye) == Bye(7)
    thread.join(5)
    assert taken == [1, 2] and not thread.is_alive()


def test_leaving_with_a_batch_in_hand_commits_it(peer: Peer):
    thread = trained(peer, next)
    assert commits(peer, 1) == [11]
    thread.join(5)
    assert not thread.is_alive()


def test_an_exception_gives_the_batch_in_hand_back(peer: Peer):
    raised: list[BaseException] = []

    def train(feed: headrace.Feed) -> None:
        try:
            with feed:
                next(feed)
                raise LookupError("of the trainer")
        except LookupError as error:
            raised.append(error)

    thread = trained(peer, train)
    returned: tuple[int, ...] = ()
    while not returned:
        step = peer.hear(Step)
        assert not step.commits
        returned = step.returned
    assert returned == (11,)
    thread.join(5)
    assert raised and not thread.is_alive()


def test_other_proportions_hold_from_the_batches_told_or_are_refused_with_the_reason(peer: Peer):
    told: list[Any] = []

    def train(feed: headrace.Feed) -> None:
        told.append(feed.set_target_probs([0.25, 0.75]))
        with pytest.raises(ValueError, match=r"set_target_probs\(\[1.0\]\): two classes"):
            feed.set_target_probs([1])
        told.append("refused")

    thread = trained(peer, train)
    for fault in ("", "two classes"):
        asked = peer.hear(Retarget)
        peer.say(Retargeted(7, asked.request, [[0, 5], [1, 4]], fault))
    thread.join(5)
    assert told == [{0: 5, 1: 4}, "refused"]


def test_a_feed_that_was_closed_is_not_used_again(peer: Peer):
    def train(feed: headrace.Feed) -> None:
        feed.close()
        for use in (lambda: next(feed), feed.drain, feed.flush_states, feed.as_dataset):
            with pytest.raises(headrace.FeedClosed, match="connect again"):
                use()
        feed.close()
        told.append("closed")

    told: list[str] = []
    thread = trained(peer, train)
    peer.hear(Bye)
    thread.join(5)
    assert told == ["closed"]
