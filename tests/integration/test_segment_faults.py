"""The laws of segments hold when trainers sleep, lie or never save."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from headrace_proto import limits
from headrace_proto.layout import arrange
from headrace_proto.messages import (
    FROM_TRAINER,
    Bye,
    Get,
    Give,
    Hello,
    Refused,
    Save,
    Step,
    Unknown,
    Welcome,
)
from tests.located import workers_at
from tests.patience import PATIENCE_S
from tests.waiting import waits_end_with

from .honest import answer, dealer
from .processes import Process, trainer
from .segment_streams import (
    Cell,
    Ledger,
    at_once,
    chained,
    connect,
    full,
    of_counts,
    save_all,
    train,
)
from .serving import in_segments, serving, trainers_of


def told(process: Process, ledger: Ledger) -> list[list[Cell]]:
    """Return the segments of each batch that a process printed, after a check of their states."""
    batches = []
    for event in process.events:
        if event["event"] == "batch":
            cells = [(key.encode(), i) for key, i, _ in event["rows"]]
            assert [state for _, _, state in event["rows"]] == ledger.chains(cells)
            batches.append(cells)
    return batches


# Trainers that sleep


def test_a_late_save_after_a_long_sleep_is_stale_and_does_not_disturb_the_new_holder(tmp_path):
    """1. A trainer takes the only batch that can be formed, and is stopped beyond its lease.
    2. Another gets the same rows.  Meanwhile the first wakes and saves, which is refused.
    3. The other saves: its states are those that the next segments begin with.
    """
    ledger = Ledger(of_counts([4, 4]))
    go_on = tmp_path / "go on"
    pipeline = chained(ledger.examples, batch_size=2, capacity=2)
    with hs.run(pipeline, lease_ttl_s=1.0) as server:
        with trainer(
            server.address, "--prefetch", "0", "--hold", "1", "--until", str(go_on), "--leave", "2"
        ) as sleeper:
            sleeper.wait_for("holding")
            sleeper.signal(signal.SIGSTOP)
            with connect(server) as feed:
                batch = next(feed)
                states = ledger.check(batch)
                go_on.touch()
                sleeper.signal(signal.SIGCONT)
                assert "lease" in sleeper.wait_for("stale")["text"]
                save_all(batch, states)
                train(feed, ledger)
            assert sleeper.finish() == 0, sleeper.output()
        assert server.stats()["default"]["stale"] <= 1
    assert told(sleeper, ledger)[0] == ledger.batches[0]
    ledger.assert_complete()


# A trainer that never saves


def test_whoever_waits_for_a_trainer_that_never_saves_is_told_what_for_and_since_when():
    """1. One trainer takes both examples' first segments and saves nothing; both then wait.
    2. Both deadlines name the segments, the age, and the batch; the other's names the trainer too.
    3. The first leaves, and the other trains all of it.
    """
    ledger = Ledger(of_counts([3, 3]))
    with serving(chained(ledger.examples, batch_size=2, capacity=2), lease_ttl_s=2.0) as server:
        with connect(server) as other:
            with connect(server) as lazy:
                batch = next(lazy)
                with connect(server) as waiting:

                    def fails(feed: headrace.Feed) -> str:
                        with pytest.raises(headrace.DeadlineExceeded) as caught:
                            next(feed)
                        return str(caught.value)

                    with waits_end_with("waits for save_state.*leased to trainer"):
                        of_lazy, of_waiting = at_once([lambda: fails(lazy), lambda: fails(waiting)])
                number = next(t["trainer"] for t in trainers_of(server) if t["leases"])
                assert batch.rows == 2
            train(other, ledger)
    ledger.assert_complete()
    for text in (of_lazy, of_waiting):
        assert "0 of 2 rows are ready" in text, text
        assert "waits for save_state of 00000_of_00003:k000 and 1 more (batch 0)" in text, text
        here = f"{socket.gethostname()}:{os.getpid()}"
        assert f"leased to trainer {number} at {here} for " in text, text
    assert "has not saved state 'chain' of 2 segments" in of_lazy, of_lazy
    assert "00000_of_00003:k000, 00000_of_00003:k001" in of_lazy, of_lazy
    assert "s ago as batch 0/0" in of_lazy, of_lazy
    assert "has not saved" not in of_waiting


# Trainers that lie


class Raw:
    """A trainer that sends arbitrary messages."""

    def __init__(self, peer: Any) -> None:
        self._peer, self._taken = peer, 0
        self.say(Hello(limits.PROTOCOL, "t", "", os.urandom(8)))
        self.number = self.hear(Welcome).session

    def say(self, message: Any, *frames: bytes) -> None:
        self._peer.send_multipart([FROM_TRAINER.encode(message), *frames])

    def hear(self, kind: type) -> Any:
        """Return the next message of a kind; fail at a refusal."""
        while not isinstance(message := answer(self._peer), kind):
            assert not isinstance(message, Refused), message
        return message

    def take(self) -> Any:
        """Ask partition 0 for a batch."""
        self._taken += 1
        self.say(Step(self.number, gets=(Get(self._taken, 0),)))
        while not (items := self.hear(Give).items):
            pass
        return items[0]

    def save(self, token: int, columns: Any, block: bytes | None) -> Give:
        save = Save(token, 0 if block is None else 1, columns)
        frames = [] if block is None else [block]
        self.say(Step(self.number, saves=(save,)), *frames)
        answer: Give = self.hear(Give)
        return answer


@contextlib.contextmanager
def raw(server: hs.Server) -> Iterator[Raw]:
    with dealer(workers_at(server.address)[0]) as peer:
        trainer = Raw(peer)
        yield trainer
        trainer.say(Bye(trainer.number))
        trainer.hear(Unknown)


def states_of(rows: int) -> tuple[list[list[Any]], bytearray]:
    """Return right columns and block of the states chain, flags, mark and sums; all empty."""
    told = [
        ("int32", (rows,), 0),
        ("bool", (rows, 3), 0),
        ("bytes", (rows, 2), 4 * rows),
        ("float32", (rows, 2, 1), 0),
    ]
    slots, nbytes = arrange(told)
    return [[slot.offset, slot.nbytes, list(slot.shape)] for slot in slots], bytearray(nbytes)


def lies() -> dict[str, tuple[Any, bytes]]:
    """Return columns and blocks that are not the states of three rows."""
    columns, block = states_of(3)
    good, first, texts = bytes(block), columns[0], columns[2][0]
    falling = np.array([0, 2, 1, 0, 0, 0, 0], np.int64).tobytes()
    return {
        "no columns": ((), good),
        "one state less": (columns[:-1], good),
        "a row less": ([[first[0], 8, [2]], *columns[1:]], good),
        "past the end": ([[64 * 1000, *first[1:]], *columns[1:]], good),
        "a huge shape": ([[*first[:2], [2**61, 2**61]], *columns[1:]], good),
        "half a block": (columns, good[: len(good) // 2]),
        "strings that fall": (columns, good[:texts] + falling + good[texts + len(falling) :]),
    }


def test_lies_about_states_are_answered_and_nobody_else_notices_them():
    """A liar sends wrong states of a batch again and again, and an honest trainer trains beside it.
    The liar leaves, and its rows are trained with the states that they had."""
    ledger = Ledger(of_counts([1 + i % 4 for i in range(20)]))
    with serving(full(ledger.examples, batch_size=3)) as server, connect(server) as feed:
        with raw(server) as liar:
            train(feed, ledger, 3)
            for what, (columns, block) in lies().items():
                held = liar.take()
                answer = liar.save(held.token, columns, block)
                assert [fault[:2] for fault in answer.faults] == [[held.token, "state"]], what
                assert not answer.committed and not answer.stale, what
            held = liar.take()
            liar.say(Step(liar.number, commits=(held.token,)))
            assert "save them" in liar.hear(Give).faults[0][2]
            train(feed, ledger, 2)
        train(feed, ledger)
    ledger.assert_complete()


def test_tokens_of_others_save_nothing():
    ledger = Ledger(of_counts([3] * 8))
    with serving(full(ledger.examples, batch_size=3)) as server, connect(server) as feed:
        with raw(server) as thief:
            batch = next(feed)
            states = ledger.check(batch)
            columns, block = states_of(batch.rows)
            for token in (batch.token, 0, batch.token + 1000, 2**61):
                answer = thief.save(token, columns, bytes(block))
                assert answer.stale == (token,) and not answer.committed
            save_all(batch, states)
            _ = feed.progress  # answered once the save is
            # A second save of a committed batch changes nothing.
            thief.save(batch.token, columns, bytes(block))
        train(feed, ledger)
    ledger.assert_complete()


@pytest.mark.parametrize("order", ["arrival", "lanes"])
def test_what_an_epoch_left_out_is_not_in_the_next_one_of_a_later_server(tmp_path, order):
    """Three sequences of five are begun when the last whole batch of the epoch was made.  The
    segments that are left out are counted in the status of each server, those of earlier ones too.
    """
    steps = [2, 2, 4, 4, 4]
    examples = [{"key": b"%d" % i, "x": np.arange(n)} for i, n in enumerate(steps)]
    source = hs.from_examples(examples).repeat(2, across_batches=False)
    options = {"num_unroll": 1, "batch_size": 4, "allow_small_batch": False, "order": order}
    pipeline = in_segments(source, **options)
    seen: list[tuple[int, list[bytes]]] = []
    for most in (3, 100):
        with (
            hs.run(pipeline, state_dir=tmp_path, durability="process") as server,
            headrace.connect(server.address, timeout=PATIENCE_S) as feed,
        ):
            for batch in (batch for _, epoch in feed.epochs() for batch in epoch):
                seen.append((batch.epoch, list(batch.original_key)))
                batch.save_state("s", batch.state("s") + 1)
                if len(seen) >= most:
                    break
            dropped = server.stats()["default"]["dropped"]
    epochs = [epoch for epoch, _ in seen]
    half = len(seen) // 2
    assert epochs == [0] * half + [1] * half
    assert seen[half:] == [(1, keys) for _, keys in seen[:half]]
    assert dropped == {"remainder": 2 * sum(steps) - 4 * len(seen)}
