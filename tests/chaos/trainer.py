"""A trainer that writes a ledger, and sends some messages twice.

    python -m tests.chaos.trainer ADDRESS MODE LEDGER WHO SEED CALM LEASE_S TIMEOUT_S STEP_S

It takes up to STEP_S for a step until the file CALM is there, and then none.  The server's answers
are noted as the session hears them: nothing public tells which batch was acknowledged while others
are on their way.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import headrace
from headrace import wire
from headrace.requests import FlushStates, Request
from headrace.session import Session
from headrace.waits import Link
from headrace_proto.messages import Deliver, Outcome, Step

from .feeds import stateful
from .ledger import Ledger, chained

#: Maximum time of a step, by default.
STEP_S = 0.03
_TWICE = 0.1
_FLUSH = 0.1
#: Variable of the environment that hides the server's memory from a trainer.
FAR = "HEADRACE_TRIAL_FAR"


def _replace(kind: type, method: str, by: Callable[..., Any]) -> None:
    setattr(kind, method, by)


def listen(ledger: Ledger) -> None:
    """Record every answer of the server."""
    hear, ask = Session.receive, Link.ask

    def heard(session: Session, message: Any, frames: list[Any], now: float) -> None:
        known = None if session.welcome is None else session.welcome.session
        if isinstance(message, (Deliver, Outcome)) and message.session == known:
            for token in message.committed:
                ledger.note("ok", token)
            for token in message.stale:
                ledger.note("stale", token)
            for fault in message.faults:
                ledger.note("fault", fault[0], *fault[1:])
        hear(session, message, frames, now)

    def asked(link: Link, request: Request[Any], *rest: Any) -> Any:
        answer = ask(link, request, *rest)
        if isinstance(request, FlushStates) and not answer.code:
            rows = [row for part in request.parts for row in part.rows]
            ledger.note("flush", request.token, rows)
        return answer

    _replace(Session, "receive", heard)
    _replace(Link, "ask", asked)


def stutter(chance: random.Random) -> None:
    """Send some steps twice, as a network that repeats itself would."""
    say = Session.outgoing

    def said(session: Session, now: float) -> list[Any]:
        out = []
        for message in say(session, now):
            out.append(message)
            if isinstance(message, Step) and chance.random() < _TWICE:
                out.append(message)
        return out

    _replace(Session, "outgoing", said)


def hide_memory() -> None:
    """Do not find the server's memory, as on another host: batches come by TCP."""

    def unseen(directory: str, session_file: str) -> None:
        raise FileNotFoundError(session_file)

    wire.Attachment = unseen  # type: ignore[assignment,misc]


def watch(ledger: Ledger, lease_s: float) -> None:
    """Record times in which this process was not run, and could not renew its leases."""

    def run() -> None:
        before = time.monotonic()
        while True:
            time.sleep(lease_s / 8)
            now = time.monotonic()
            if now - before > lease_s / 2:
                ledger.note("gap", 0, now - before)
            before = now

    threading.Thread(target=run, daemon=True).start()


def cells_of(batch: Any, states: bool) -> list[list[Any]]:
    if not states:
        return [[int(i)] for i in batch["i"]]
    keys = [key.decode() for key in batch.original_key]
    return [[key, int(i)] for key, i in zip(keys, batch.sequence, strict=True)]


def train(
    feed: Any, ledger: Ledger, mode: str, chance: random.Random, calm: str, step_s: float
) -> None:
    states = stateful(mode)
    done = 0  # token of the batch that the next one will commit
    while True:
        if done and not states:
            ledger.note("send", done)
        try:
            batch = next(feed, None)
        except headrace.StaleLease:
            continue
        finally:
            done = 0
        if batch is None:
            return
        token = batch.token
        cells = cells_of(batch, states)
        before = batch.state("chain").tolist() if states else []
        ledger.note("take", token, cells, before)
        if not os.path.exists(calm):
            time.sleep(chance.random() * step_s)
        if not states:
            done = token
            continue
        after = [chained(s, cell, token) for s, cell in zip(before, cells, strict=True)]
        ledger.note("send", token, after)
        try:
            batch.save_state("chain", np.array(after, np.int64))
            if mode == "kept" and chance.random() < _FLUSH:
                feed.flush_states()
        except headrace.StaleLease:
            ledger.note("lost", token)
        except headrace.StateError as error:  # a flush that came too late
            ledger.note("late", token, str(error))


def main() -> None:
    address, mode, path, who, seed, calm, lease_s, timeout_s, step_s = sys.argv[1:]
    ledger = Ledger(path, who)
    chance = random.Random(int(seed))
    listen(ledger)
    stutter(chance)
    watch(ledger, float(lease_s))
    if os.environ.get(FAR):
        hide_memory()
    try:
        with headrace.connect(
            address, prefetch=chance.choice((0, 1, 2)), timeout=float(timeout_s)
        ) as feed:
            ledger.note("join", 0, feed.local)
            train(feed, ledger, mode, chance, calm, float(step_s))
    except headrace.StaleLease:
        pass  # of the last batches; noted by token
    except headrace.HeadraceError as error:
        ledger.note("error", 0, type(error).__name__, str(error))
        sys.exit(3)
    ledger.note("end")


if __name__ == "__main__":
    main()
