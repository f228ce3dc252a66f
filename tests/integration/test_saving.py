"""A batch of segments is committed by its last state, once, and by nothing else."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from headrace.connection import state_block
from headrace.connection.link import Link

from .segment_streams import connect, full, of_counts
from .serving import serving

CHAIN, TAG = np.arange(4, dtype=np.int32), [b"a", b"b", b"", b"d"]


@pytest.fixture(params=["server", "trainer"])
def feed(request: pytest.FixtureRequest) -> Iterator[headrace.Feed]:
    """A feed with two states, which stay with either."""
    states = {"chain": "origin", "tag": hs.zeros((), "bytes")}
    lanes = {"order": "lanes", "state_placement": request.param}
    with serving(full(of_counts([4] * 4), initial_states=states, **lanes)) as server:
        with connect(server, prefetch=2) as feed:
            yield feed


def assert_saved(feed: headrace.Feed) -> None:
    """Check that the batch before the next one was saved with these states."""
    batch = next(feed)
    assert batch.state("chain").tolist() == CHAIN.tolist()
    assert batch.state("tag").tolist() == TAG


def test_the_first_good_save_of_a_state_stands(feed):
    batch = next(feed)
    with pytest.raises(ValueError, match=r"'chain': got int32\[1\], wanted int32\[4\]"):
        batch.save_state("chain", CHAIN[:1])

    class Overtaken:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            batch.save_state("chain", CHAIN)
            return CHAIN * 0

    for later in (Overtaken(), CHAIN * 0):
        with pytest.raises(headrace.StateError, match="'chain' of batch 0/0 is saved already"):
            batch.save_state("chain", later)
    batch.save_state("tag", TAG)
    with pytest.raises(headrace.StateError):
        batch.save_state("chain", CHAIN)
    assert_saved(feed)


@pytest.mark.parametrize("late", [False, True])
def test_a_save_that_ctrl_c_ends_stands_or_can_be_repeated(feed, late, monkeypatch):
    """It stands where the session has it already."""
    batch, save = next(feed), Link.commit
    batch.save_state("chain", CHAIN)

    def interrupted(*arguments: Any) -> None:
        if late:
            save(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Link, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            batch.save_state("tag", TAG)
    if late:
        with pytest.raises(headrace.StateError, match="is saved already, and that stands"):
            batch.save_state("tag", TAG[::-1])
    else:
        batch.save_state("tag", TAG)
    assert_saved(feed)


def test_a_deadline_names_the_states_that_are_owed_and_for_how_long(feed):
    batch = next(feed)
    explain, now = feed._link.waits.explain, feed._link.waits.looked_at
    keys = ", ".join(f"00000_of_00004:k00{n}" for n in range(3))
    assert f"not saved states 'chain', 'tag' of 4 segments ({keys}, …) that" in explain(now)
    batch.save_state("chain", CHAIN)
    assert re.search(r"state 'tag' of .* that it took 6[12] s ago as batch 0/0", explain(now + 61))
    batch.save_state("tag", TAG)
    assert not explain(now)


@pytest.mark.parametrize("feed", ["trainer"], indirect=True)
def test_a_save_waits_for_a_flush_in_another_thread_and_a_flush_for_a_save(feed, monkeypatch):
    """The server takes a flush after the last save alone: one before or behind it is refused."""
    monkeypatch.setattr(state_block, "_PART_BYTES", 1)  # at least one row to each part
    said: list[Any] = []
    flushings: list[threading.Thread] = []
    ask, save = Link.ask, Link.commit

    def train(batch: Any) -> None:
        batch.save_state("chain", CHAIN)
        batch.save_state("tag", TAG)

    def asked(link: Link, request: Any, *of: Any) -> Any:
        if not said:
            saving.start()
            saving.join(0.1)
        rows = [rows for (_, rows, *_), _ in request.parts]
        said.append(("flush", request.parts[0][0][0], rows))
        return ask(link, request, *of)

    def saved(link: Link, token: int, *states: Any) -> bool:
        said.append(("save", token))
        flushings.append(threading.Thread(target=feed.flush_states))
        flushings[-1].start()
        flushings[-1].join(0.1)
        counts = save(link, token, *states)
        said.append(("saved", token))
        return counts

    train(next(feed))
    saving = threading.Thread(target=train, args=(next(feed),))
    with monkeypatch.context() as patch:
        patch.setattr(Link, "ask", asked)
        patch.setattr(Link, "commit", saved)
        feed.flush_states()
        saving.join()
        for flushing in flushings:
            flushing.join()
    (_, first, parts), (_, second), *_ = said
    assert parts == [(0,), (1,), (2,), (3,)] and first != second
    assert said[1:] == [("save", second), ("saved", second), ("flush", second, parts)]
