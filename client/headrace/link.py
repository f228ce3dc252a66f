"""What a trainer asks of its session, and every wait of it.

    trainer's thread ── take, commit, save, ask ──► Session ◄── messages ── driver ◄──► server
                                  │                                           ▲
                                  └── wake, or the socket itself in a wait ───┘

Whatever is asked is told to the session at once and said soon; who needs an answer waits for it,
with a deadline that says what it waits for.  While a thread waits it drives the socket itself.

The session is shared under the driver's lock.  Released memory is reported without it, since the
last reader of a batch may go while any lock is held.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from headrace_proto.errors import (
    ConnectionLost,
    DeadlineExceeded,
    FeedClosed,
    ForkedProcess,
    HeadraceError,
)
from headrace_proto.messages import Delivery, Handed, Welcome

from .driver import Driver
from .requests import Request
from .session import Received, Session

if TYPE_CHECKING:
    from .keys import Keys

__all__ = ["Link", "opened"]

A = TypeVar("A")

#: A server that was lost for this long is given up, also where the timeout is longer.
_GIVE_UP_S = 30.0
#: A wait looks up this often, whatever it hears.
_LOOK_S = 0.2


class Link:
    """A trainer's side of a session that is driven."""

    def __init__(
        self, address: str, session: Session, timeout_s: float, keys: Keys | None = None
    ) -> None:
        self.address = address
        self.session = session
        self.left = False  # the trainer closed the feed
        self.explain: Callable[[float], str] = lambda now: ""  # what a trainer owes, in words
        self._pid = os.getpid()
        self._timeout_s = timeout_s
        self._keys = keys
        self._driver = Driver(address, session, keys)
        self._changed = self._driver.changed

    def again(self, resume: str) -> Link:
        """Another link to the same feed, in the same way, which goes on from a snapshot."""
        return Link(self.address, self.session.again(resume), self._timeout_s, self._keys)

    def open(self) -> Welcome:
        """Wait for the server's Welcome."""
        self._wait(lambda s: s.welcome is not None, self._timeout_s, "a server to answer")
        assert self.session.welcome is not None
        return self.session.welcome

    def check_usable(self) -> None:
        """ForkedProcess or FeedClosed where this can not be used any more."""
        if os.getpid() != self._pid:
            raise ForkedProcess(
                f"this feed was connected in process {self._pid} and is used in its fork "
                f"{os.getpid()}: connect in the process that uses it (in a torch DataLoader: in "
                "the dataset's __iter__, or use num_workers=0 and let headrace do the reading)"
            )
        if self.left:
            raise FeedClosed("this feed was closed; connect again")

    def take(self, claim: Callable[[Session], Received | None] = Session.take) -> Received | None:
        """The next batch; None when the feed has ended.

        ``claim`` takes it from the session, and may leave it there until something was saved.
        """
        session, meter = self.session, self.session.meter
        meter.asks(now := time.monotonic())
        with self._changed:
            received = claim(session) if not session.failure and not session.refused else None
            if received is None:
                session.want()
            enough = session.much_to_say
        if received is not None:
            meter.gets(now)
            self._driver.say_soon(enough)
            return received
        try:
            received = self._wait(claim, self._timeout_s, "a batch", or_end=True)
        finally:
            meter.gets(time.monotonic(), received is not None)
        return received  # type: ignore[no-any-return]

    def commit(self, token: int) -> None:
        """Say, soon, that a batch is done."""
        with self._changed:
            self.session.commit(token)

    def place(self, delivery: Delivery, segments: bytes) -> None:
        """A batch goes to the trainer: what a server that is started anew would know it by."""
        d = delivery
        with self._changed:
            self.session.place(Handed(d.token, d.partition, d.number, d.rows, segments))

    def give_back(self, token: int) -> None:
        with self._changed:
            self.session.give_back(token)

    def save(self, token: int, columns: list[Any], block: Any) -> bool:
        """Say, soon, that the states of a batch are saved.  False when it is not held any more.

        In a loop of small steps it goes along with the wish for the next batch.
        """
        with self._changed:
            saved = self.session.save(token, columns, block)
            self._driver.tell()
        self._driver.say_soon(False)
        return saved

    def ask(self, request: Request[A], at_most_s: float = inf) -> A:
        """Ask the server for something, and wait for the answer."""
        with self._changed:
            self.session.requests.ask(request)
        self.wake()

        def answer(session: Session) -> A | None:
            answer = session.requests.answer_to(request)
            if answer is None and session.ended and session.welcome is not None:
                return request.at_end(session.welcome.session)
            return answer

        answered: A = self._wait(
            answer,
            min(self._timeout_s, at_most_s),
            f"the answer to {request.call}",
            raise_refused=request.tells_refusals,
        )
        return answered

    def settle(self, at_most_s: float = inf) -> None:
        """Wait until every commit was answered."""
        self.wake()
        try:
            self._wait(
                lambda s: s.settled,
                min(self._timeout_s, at_most_s),
                "answers to commits",
                raise_refused=False,
            )
        except HeadraceError:  # a server may answer, and stop in the same breath
            with self._changed:
                if not self.session.settled:
                    raise

    def wake(self) -> None:
        """There is something to say."""
        self._driver.wake()

    def close(self) -> None:
        """Leave: what is held goes back.  Ends the thread, and every wait with FeedClosed."""
        self._driver.close()

    def _wait(
        self,
        done: Callable[[Session], Any],
        timeout_s: float,
        what: str,
        or_end: bool = False,
        raise_refused: bool = True,
    ) -> Any:
        """Wait until ``done`` yields something; every wait of a trainer is this one."""
        session, driver = self.session, self._driver
        started = time.monotonic()
        drives = False
        try:
            while True:
                with self._changed:
                    if session.failure is not None:
                        raise session.failed()
                    if driver.closing:
                        raise FeedClosed(f"the feed was closed while this thread waited for {what}")
                    if raise_refused and session.refused:
                        raise session.refused.popleft()
                    result = done(session)
                    if result:
                        return result
                    if or_end and session.ended:
                        return None
                    now = time.monotonic()
                    self._check_deadline(now, started, timeout_s, what)
                    rest_s = min(_LOOK_S, started + timeout_s - now)
                    if not drives and not (drives := driver.take_over()):
                        driver.wait_for_news(rest_s)
                        continue
                driver.turn(rest_s)
        finally:
            if drives:
                driver.hand_back()  # saying what a batch that was taken makes room for
            else:
                driver.wake()

    def _check_deadline(self, now: float, started: float, timeout_s: float, what: str) -> None:
        session = self.session
        silence = session.silence(now)
        over = now - started >= timeout_s
        if session.welcome is not None and (silence > _GIVE_UP_S or (over and silence)):
            hint = f".{self._driver.hint}" if self._driver.hint else ""
            raise ConnectionLost(
                f"the server at {self.address} was lost: nothing was heard of it for "
                f"{silence:.0f} s, while this trainer waited for {what}{hint}"
            )
        if not over:
            return
        if session.welcome is None and session.waiting:
            raise DeadlineExceeded(
                f"waited timeout={timeout_s:g} s for the feed at {self.address} to open; "
                f"the server says: {session.waiting}"
            )
        if session.welcome is None:
            raise ConnectionLost(
                f"no server answered at {self.address} within timeout={timeout_s:g} s: "
                f"is it running, and is the address right?{self._driver.hint}"
            )
        held, most = session.held(), session.welcome.max_credits
        full = f", as many as the server's max_credits={most} allows" if held >= most else ""
        reason = (
            f"the server says: {session.waiting}" if session.waiting else "no word of the server"
        )
        raise DeadlineExceeded(
            f"waited timeout={timeout_s:g} s for {what} of feed {session.welcome.feed!r} "
            f"at {self.address}; {reason}; this trainer holds {held} batches{full}"
            f"{self.explain(now)}"
        )


def opened(link: Link) -> Link:
    """The link, once the server has let it in; closed where it does not."""
    try:
        link.open()
    except BaseException:
        link.close()
        raise
    return link
