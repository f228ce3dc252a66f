"""Bugs to be planted in a server, to see that the driver catches them.

Each takes away one thing that the promise rests on.  They are put in from outside, into each
process as it starts (``planted/sitecustomize.py``): the server knows nothing of it.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["BUGS", "Bug", "plant"]


@dataclass(frozen=True, slots=True)
class Bug:
    """A planted bug, and the faults that reveal it."""

    plant: Callable[[], None]
    kinds: tuple[str, ...]
    mode: str = "segments"


def _replace(kind: type, method: str, by: Callable[..., Any]) -> None:
    setattr(kind, method, by)


def _no_fence() -> None:
    """Acknowledge a late commit of a trainer that has lost the lease."""
    from headrace_server.core.lease import CommitVerdict, LeaseTable

    judged = LeaseTable.commit

    def commit(table: Any, token: int, session: int) -> Any:
        verdict, lease = judged(table, token, session)
        return (CommitVerdict.DUPLICATE if verdict is CommitVerdict.STALE else verdict), lease

    _replace(LeaseTable, "commit", commit)


def _reply_before_commit() -> None:
    """Acknowledge a commit before it is on the disk."""
    from headrace_server.core.stored_state import Change
    from headrace_server.state.store import Store

    submit, write = Store.submit, Store._write

    def told(store: Any, change: Change, ticket: Any = None) -> None:
        submit(store, change)
        if ticket is not None:
            with store._changed:
                store._done.append(ticket)
            store._wake()

    def late(store: Any, changes: Any) -> None:
        time.sleep(0.1)
        write(store, changes)

    _replace(Store, "submit", told)
    _replace(Store, "_write", late)


def _no_duplicate_answer() -> None:
    """Refuse a repeated commit, though it counted."""
    from headrace_server.core.lease import CommitVerdict, LeaseTable

    judged = LeaseTable.commit

    def commit(table: Any, token: int, session: int) -> Any:
        verdict, lease = judged(table, token, session)
        return (CommitVerdict.STALE if verdict is CommitVerdict.DUPLICATE else verdict), lease

    _replace(LeaseTable, "commit", commit)


def _no_term() -> None:
    """A restarted server counts its tokens from the same number."""
    from headrace_server.state.statedir import StateDirectory

    _replace(StateDirectory, "raise_term", lambda self, *_: 1)


def _wall_clock() -> None:
    """Measure leases by a clock that jumps an hour ahead every second or so."""
    from headrace_proto.clock import AwakeClock

    if not any("worker.worker" in word for word in sys.orig_argv):
        return
    since = time.monotonic()

    def wall(clock: AwakeClock) -> float:
        now = time.monotonic()
        return now + 3600.0 * int((now - since) / 1.3)

    _replace(AwakeClock, "__call__", wall)


def _answers_lost() -> None:
    """Drop one answer in twenty."""
    from headrace_server.worker.outbox import Outbox

    answered, chance = Outbox.answer, random.Random(5)

    def answer(outbox: Any, effect: Any) -> None:
        if chance.random() > 0.05:
            answered(outbox, effect)

    _replace(Outbox, "answer", answer)


def _nothing_requeued() -> None:
    """Keep batches of a dead trainer from all other trainers."""
    from headrace_server.core.dispatch import Dispatcher

    _replace(Dispatcher, "_put_back", lambda self, session, batch: None)


def _two_records() -> None:
    """Tokens are written before the states, and once in a while the end comes between."""
    from headrace_server.core.stored_state import Change
    from headrace_server.state.store import Store

    write, count = Store._write, itertools.count(1)

    def in_two(store: Any, changes: Any) -> None:
        write(store, [Change(tokens=[token for change in changes for token in change.tokens])])
        left = Path(store.path).with_suffix(".crashed")
        if next(count) % 40 == 0 and not left.exists():
            left.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        for change in changes:
            change.tokens = []
        write(store, [change for change in changes if change])

    _replace(Store, "_write", in_two)


_LATE = ("trainer stopped",)
_LOSSES = ("connections cut", "one way lost")
BUGS = {
    "no fence": Bug(_no_fence, _LATE),
    "reply before commit": Bug(_reply_before_commit, ("server killed",)),
    "no duplicate answer": Bug(_no_duplicate_answer, _LOSSES),
    "no term": Bug(_no_term, ("server killed", "trainer stopped")),
    "wall clock": Bug(_wall_clock, ("trainer killed",)),
    "answers lost": Bug(_answers_lost, ("trainer killed",)),
    "nothing requeued": Bug(_nothing_requeued, ("trainer killed",), "plain"),
    "two records": Bug(_two_records, ("trainer killed",)),
}


def plant(name: str) -> None:
    """Plant a bug."""
    BUGS[name].plant()
