"""A trainer that writes a ledger, and sends some messages twice.

    python -m tests.chaos.trainer ADDRESS MODE LEDGER WHO SEED CALM LEASE_S TIMEOUT_S STEP_S
        [restless]

It takes up to STEP_S for a step until the file CALM is there, and then none.  The server's answers
are noted as the session hears them: nothing public tells which batch was acknowledged while others
are on their way.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np

import headrace
import headrace_proto
from headrace.connection import connection
from headrace.connection.link import Link
from headrace.connection.session import Session
from headrace.machine.requests import Request
from headrace_proto.messages import Give, Step, Welcome
from tests.located import unseen

from .feeds import MODES, Mode, cells_of
from .ledger import Ledger, chained

#: Maximum time of a step, by default.
STEP_S = 0.03
_TWICE = 0.1
_FLUSH = 0.1
#: Share of the steps after which a restless trainer does something else, …
_RESTLESS = 0.05
#: … and of its calls that are interrupted, within this time, or this much later.
_INTERRUPTED = 0.1
_CALL_S = 0.02
_AGAIN_S = 0.0005
#: Where the code of the client is, and that of the trainer.
_OURS = (*(os.path.dirname(of.__file__) for of in (headrace, headrace_proto)), __file__)
#: Text of the error after which a trainer that was interrupted while it sent joins again.
_EXCUSE = "the connection was interrupted amid a message"
#: Variable of the environment that hides the server's memory from a trainer.
FAR = "HEADRACE_TRIAL_FAR"


def _replace(kind: type, method: str, by: Callable[..., Any]) -> None:
    setattr(kind, method, by)


def listen(ledger: Ledger) -> None:
    """Record every answer of the server."""
    hear, ask = Session.receive, Link.ask

    def heard(session: Session, message: Any, frames: list[Any], now: float) -> None:
        known = None if session.welcome is None else session.welcome.session
        if isinstance(message, Give) and message.session == known:
            for token in message.committed:
                ledger.note("ok", token)
            for token in message.stale:
                ledger.note("stale", token)
            for fault in message.faults:
                ledger.note("fault", fault[0], *fault[1:])
        hear(session, message, frames, now)
        if isinstance(message, Welcome) and session.welcome is message:
            for token in message.stale:  # a later commit of it is refused here
                ledger.note("stale", token)

    def asked(link: Link, request: Request, *rest: Any) -> Any:
        answer = ask(link, request, *rest)
        if request.call == "flush_states" and not answer.code:
            rows = [row for (_, rows, *_), _ in request.parts for row in rows]
            ledger.note("flush", request.parts[0][0][0], rows)
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
    connection.Attachment = unseen  # type: ignore[assignment,misc]


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


class Interrupts:
    """Ctrl-C at a random moment of some calls of the client, as in a notebook.

    The signal counts where the client's code runs, with all that it calls, and nowhere else: amid
    the end of a ``with`` statement it would take a batch from the trainer that it has already.
    """

    def __init__(self, chance: random.Random, share: float) -> None:
        self._chance = chance
        self._share = share
        self._calls = False
        signal.signal(signal.SIGALRM, self._strike)

    def _strike(self, number: int, frame: FrameType | None) -> None:
        if not self._calls:
            return
        while frame is not None and not frame.f_code.co_filename.startswith(_OURS):
            frame = frame.f_back
        code = None if frame is None else frame.f_code
        if code is None or code.co_filename == __file__ or code.co_name in ("__next__", "take"):
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
        else:
            self._calls = False
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def may_come(self) -> Iterator[None]:
        """Interrupt some of these calls."""
        if self._chance.random() >= self._share:
            yield
            return
        self._calls = True
        signal.setitimer(signal.ITIMER_REAL, 1e-6 + self._chance.random() ** 2 * _CALL_S)
        try:
            yield
        finally:
            self._calls = False
            signal.setitimer(signal.ITIMER_REAL, 0)


class Leaves(Exception):
    """The loop's body has failed."""


class Trainer:
    """One process of a job, which joins its feed once or more."""

    def __init__(
        self, ledger: Ledger, mode: Mode, chance: random.Random, calm: str, step_s: float
    ) -> None:
        self._ledger, self._mode, self._chance = ledger, mode, chance
        self._calm, self._step_s = calm, step_s
        self.restless = False
        self._interrupts = Interrupts(chance, 0.0)

    def be_restless(self) -> None:
        self.restless = True
        self._interrupts = Interrupts(self._chance, _INTERRUPTED)

    def train(self, feed: Any) -> bool:
        """Train until the feed has ended; False where it is to be joined again."""
        ledger, states = self._ledger, self._mode.states
        done = 0  # token of the batch that the next one will commit
        while True:
            if done and not states:
                ledger.note("send", done)
            try:
                with self._interrupts.may_come():
                    batch = next(feed, None)
            except headrace.StaleLease:
                continue
            except KeyboardInterrupt:
                continue
            finally:
                done = 0
            if batch is None:
                return True
            token = batch.token
            cells = cells_of(self._mode, batch)
            rows = batch.state("chain").tolist() if states else []
            there = [at for at, key in enumerate(batch.original_key) if key] if states else []
            before = [rows[at] for at in there]
            ledger.note("take", token, cells, before)
            calm = os.path.exists(self._calm)
            if not calm:
                time.sleep(self._chance.random() * self._step_s)
            rests = calm or not self.restless or self._chance.random() >= _RESTLESS
            if not rests and not self._does_something(feed, token):
                return False
            if not states:
                done = token
                continue
            after = [chained(s, cell, token) for s, cell in zip(before, cells, strict=True)]
            ledger.note("send", token, after)
            for at, state in zip(there, after, strict=True):
                rows[at] = state
            self._save(feed, batch, token, rows)

    def _save(self, feed: Any, batch: Any, token: int, states: list[list[int]]) -> None:
        while True:
            try:
                with self._interrupts.may_come():
                    batch.save_state("chain", np.array(states, np.int64))
                    if self._mode.kept and self._chance.random() < _FLUSH:
                        feed.flush_states()
            except KeyboardInterrupt:
                continue
            except headrace.StaleLease:
                self._ledger.note("lost", token)
            except headrace.StateError as error:  # a flush that came too late
                self._ledger.note("late", token, str(error))
            return

    def _does_something(self, feed: Any, token: int) -> bool:
        """Do something other than training; False where that is to leave the feed."""
        chance = self._chance.random()
        if chance < 0.3:
            raise Leaves
        if chance < 0.5:
            if not self._mode.states:
                self._ledger.note("send", token)
            return False
        if chance < 0.6:
            if not self._mode.states:
                self._ledger.note("send", token)
            asked = time.monotonic()
            try:
                feed.snapshot()
            except headrace.ServerError as error:
                self._ledger.note("unmade", 0, asked, str(error))
        elif chance < 0.8:
            feed.stats()
        else:
            if not self._mode.states:
                self._ledger.note("send", token)
            feed.commit()
        return True


def main() -> None:
    address, mode, path, who, seed, calm, lease_s, timeout_s, step_s, *more = sys.argv[1:]
    ledger = Ledger(path, who)
    chance = random.Random(int(seed))
    listen(ledger)
    stutter(chance)
    watch(ledger, float(lease_s))
    if os.environ.get(FAR):
        hide_memory()
    trainer = Trainer(ledger, MODES[mode], chance, calm, float(step_s))
    if more:
        trainer.be_restless()
    ended = False
    while not ended:
        try:
            with headrace.connect(
                address, prefetch=chance.choice((0, 1, 2)), timeout=float(timeout_s)
            ) as feed:
                ledger.note("join", 0, feed.local)
                ended = trainer.train(feed)
            ledger.note("end")
        except headrace.StaleLease:
            ledger.note("end")  # of the last batches; noted by token
            ended = ended or not trainer.restless
        except Leaves:
            ledger.note("leave")
        except headrace.HeadraceError as error:
            if _EXCUSE not in str(error):
                ledger.note("error", 0, type(error).__name__, str(error))
                sys.exit(3)
            ledger.note("leave")
        ledger.join_again()


if __name__ == "__main__":
    main()
