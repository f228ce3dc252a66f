"""A feed of plain batches over a real socket: commits and returns of batches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import headrace
from headrace_proto.messages import (
    Answer,
    Bye,
    Ended,
    Give,
    Given,
    Step,
)
from headrace_proto.schema import Field, schema_to_wire
from tests.patience import PATIENCE_S, eventually
from tests.waiting import waits_end_after

from .peer import Peer

SCHEMA = schema_to_wire({"x": Field("int64", (None,))})


def trained(peer: Peer, train: Callable[[headrace.Feed], Any], **options: Any) -> threading.Thread:
    """A trainer in a thread, with two batches on their way to it."""

    def run() -> None:
        with headrace.connect(
            peer.address, **{"timeout": PATIENCE_S, "prefetch": 2, **options}
        ) as feed:
            train(feed)

    thread = threading.Thread(target=run)
    thread.start()
    peer.welcome(schema=SCHEMA)
    for get, token in zip(peer.hear_gets(2), (11, 12), strict=True):
        item = Given(
            get.request, token, 0, token - 10, 0, token - 10, 0, 1, 8, [[0, 8, [1]]], frame=1
        )
        peer.say(Give(7, (item,)), np.int64(token - 10).tobytes())
    return thread


def commits(peer: Peer, count: int) -> list[int]:
    """Answer ``count`` commits."""
    tokens: list[int] = []
    while len(tokens) < count:
        step = peer.hear(Step)
        tokens += step.commits
        if step.commits:
            peer.say(Answer(7, step.commits))
    return tokens


def test_it_shows_that_its_server_is_away(peer: Peer):
    shown: list[str] = []
    begun = threading.Event()

    def train(feed: headrace.Feed) -> None:
        shown.append(repr(feed))
        begun.set()
        eventually(lambda: repr(feed) != shown[0])
        shown.append(repr(feed))

    thread = trained(peer, train)
    assert begun.wait(PATIENCE_S)
    peer.say(Ended(7, "lost", "the server was stopped", returns=True))
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    states = ("open", "open, the server is away")
    assert shown == [f"<headrace.Feed 'f' at {peer.address}: {state}>" for state in states]


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
    thread.join(PATIENCE_S)
    assert told == ["closed"]


# Explicit commits


def test_a_commit_of_a_batch_that_went_elsewhere_raises_there_and_once(peer: Peer):
    told: list[str] = []

    def train(feed: headrace.Feed) -> None:
        first, second = next(feed), next(feed)
        with pytest.raises(headrace.StaleLease):
            first.commit()
        first.commit()
        feed.commit([first, second])
        told.append("done")

    thread = trained(peer, train, commit="explicit")
    for answer in (Answer(7, (), (11,)), Answer(7, (12,))):
        while not peer.hear(Step).commits:
            pass
        peer.say(answer)
    thread.join(PATIENCE_S)
    assert told == ["done"]


def test_an_argument_that_can_not_be_committed_is_refused_before_anything_is_sent(peer: Peer):
    told: list[str] = []

    def train(feed: headrace.Feed) -> None:
        batch = next(feed)
        with pytest.raises(
            ValueError, match=r"commit\(\): a feed .* name them: feed.commit\(batch\)"
        ):
            feed.commit()
        with pytest.raises(ValueError, match="token=99 is of no batch that this trainer holds"):
            feed.commit([batch, 99])
        with pytest.raises(TypeError, match="batches='11' is no batch and no token"):
            feed.commit("11")
        feed.commit(batch)
        feed.close()
        with pytest.raises(headrace.FeedClosed, match="connect again"):
            batch.commit()
        told.append("done")

    thread = trained(peer, train, commit="explicit")
    assert commits(peer, 1) == [11]
    thread.join(PATIENCE_S)
    assert told == ["done"]


def test_the_error_of_a_trainer_that_never_commits_names_its_batches_and_the_call_that_commits(
    peer: Peer,
):
    told: list[str] = []

    def train(feed: headrace.Feed) -> None:
        kept = [next(feed), next(feed)]
        with waits_end_after(0.3), pytest.raises(headrace.DeadlineExceeded) as error:
            next(feed)
        told.append(str(error.value))
        assert len(kept) == 2

    thread = trained(peer, train, commit="explicit")
    thread.join(PATIENCE_S)
    assert (
        "this trainer holds 2 batches.  It has taken 2 of them and committed none of these, the "
        "first is batch 0/1 (token"
    ) in told[0] and "a batch is committed by feed.commit(batch)" in told[0]
