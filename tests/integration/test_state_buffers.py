"""States that trainers of the host hand over in shared memory, under deaths, lies and shortage."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numpy as np
import pytest

import headrace
import headrace.connection.state_block
import headrace_server as hs
from headrace.connection.session import Said, Session
from headrace_proto.messages import Hello, Step
from headrace_proto.state_buffers import FIRST_BUFFER, MOST, mapped

from .segment_streams import Ledger, cells_of, chained, connect, full, of_counts, save_all, train
from .serving import pid_of, serving


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The frame or buffer that each save of this process names; 0: it is in a greeting."""
    numbers: list[int] = []
    outgoing = Session.outgoing

    def recorded(self: Session, now: float) -> list[Said]:
        said = outgoing(self, now)
        steps = [message for message, _ in said if isinstance(message, Step)]
        numbers.extend(save.frame for step in steps for save in step.saves)
        greetings = [message for message, _ in said if isinstance(message, Hello)]
        numbers.extend(0 for hello in greetings for one in hello.batches if one.state_bytes)
        return said

    monkeypatch.setattr(Session, "outgoing", recorded)
    return numbers


def shared(named: list[int]) -> list[bool]:
    return [number >= FIRST_BUFFER for number in named]


def a_ledger(times: int = 2) -> Ledger:
    return Ledger(of_counts([3, 1, 5, 2, 4, 2, 6, 1, 3, 2] * times))


# Where they go


def test_states_with_strings_go_by_the_socket(named):
    ledger = a_ledger()
    with serving(full(ledger.examples)) as server, connect(server) as feed:
        train(feed, ledger)
    ledger.assert_complete()
    assert named and not any(shared(named))


def test_when_no_buffer_is_free_states_go_by_the_socket(named):
    """More batches are in hand, each with one of its two states saved, than there are buffers."""
    ledger = Ledger(of_counts([1] * (MOST + 8)))
    states = {"chain": "origin", "sums": hs.zeros((2, 1), "float32")}
    pipeline = chained(ledger.examples, batch_size=1, capacity=64, initial_states=states)
    with serving(pipeline, max_credits=64) as server, connect(server, prefetch=8) as feed:
        held = []
        for _ in range(MOST + 8):
            batch = next(feed)
            after = ledger.check(batch)
            batch.save_state("chain", after["chain"])
            held.append((batch, after["sums"]))
        for batch, sums in held:
            batch.save_state("sums", sums)
        assert next(feed, None) is None
    ledger.assert_complete()
    assert shared(named).count(True) == MOST and shared(named).count(False) == 8


# Deaths


def test_a_save_in_a_buffer_counts_though_its_owner_dies_before_it_has_read_it(named, tmp_path):
    """1. The owner is stopped, and a trainer saves: the states lie in a buffer.  2. The owner is
    killed.  3. The trainer sends them to the next life as bytes; nothing is trained twice."""
    ledger = a_ledger()
    with hs.run(chained(ledger.examples), state_dir=tmp_path, durability="process") as server:
        with connect(server) as feed:
            for life in range(2):
                train(feed, ledger, 4)
                batch = next(feed)
                states = ledger.check(batch)
                owner = pid_of(server, f"worker-0-{life}")
                os.kill(owner, signal.SIGSTOP)
                before = len(named)
                save_all(batch, states)
                feed._link.wire.exchange()
                assert shared(named[before:]) == [True]
                os.kill(owner, signal.SIGKILL)
            train(feed, ledger)
        assert server.stats()["default"]["stale"] == 0
    ledger.assert_complete()
    assert shared(named)[-1] and not all(shared(named))


# Lies


def test_a_trainer_that_writes_while_its_buffers_are_read_changes_no_others_states(monkeypatch):
    """1. A liar writes to all of its buffers without end while it saves 41 batches of two.
    2. It closes, and an honest trainer goes on to the end: it gets all segments of the examples
    that the liar never had, 18 at least, with the states that it saved."""
    maps: list[list[np.ndarray]] = []

    def recorded(*of: Any, **how: Any) -> list[np.ndarray]:
        maps.append(mapped(*of, **how))
        return maps[-1]

    monkeypatch.setattr(headrace.connection.state_block, "mapped", recorded)
    ledger, harmed, over = Ledger(of_counts([6] * 100)), set(), threading.Event()
    seen: list[Any] = []

    def scribble() -> None:
        chance = np.random.default_rng(0)
        while not over.is_set():
            for buffer in maps[0]:
                buffer[:] = chance.integers(0, 256, len(buffer), np.uint8)

    def lie(feed: Any) -> None:
        batch = next(feed)
        harmed.update(batch.original_key.tolist())
        batch.save_state("chain", batch.state("chain"))

    def train_on(batch: Any) -> None:
        cells = cells_of(batch)
        got = batch.state("chain").tolist()
        for (key, _), state, right in zip(cells, got, ledger.chains(cells), strict=True):
            assert state == right or key in harmed
        seen.extend(cells)
        after = ledger.chains([(key, i + 1) for key, i in cells])
        batch.save_state("chain", np.array(after, np.int32))

    pipeline = chained(ledger.examples, batch_size=2, capacity=80)
    with serving(pipeline) as server, connect(server) as liar, connect(server) as honest:
        lie(liar)
        thread = threading.Thread(target=scribble)
        thread.start()
        try:
            for _ in range(40):
                lie(liar)
                train_on(next(honest))
        finally:
            over.set()
            thread.join()
        liar.close()
        for batch in honest:
            train_on(batch)
        assert not server.failed_feeds()
    sound = [cell for cell in seen if cell[0] not in harmed]
    assert len(set(sound)) == len(sound) == 6 * (100 - len(harmed)) >= 6 * 18
