"""Trainers of one feed that bring the token of a snapshot, and those of before it was taken back.

    Hello ─► admit() ─► the trainer is let in
                      ─► Later(why)           asked again with its next Hello
                      ─► FeedRewound, ServerError

Having a feed taken back is the supervisor's: its processes are ended, and a next life begins.  What
is to be said to it waits in ``asks``.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace_proto.errors import FeedRewound, HeadraceError, ServerError, from_code
from headrace_proto.messages import Hello

from ..core.rewinding import Judgement, Member, Rewinding
from .config import FeedConfig

__all__ = ["Later", "Rejoining"]


class Later(Exception):
    """Not now; the text says what is waited for."""


class Rejoining:
    """One feed's."""

    def __init__(self, feed: FeedConfig, durable: bool) -> None:
        self._feed = feed.name
        self._durable = durable
        self._machine = Rewinding(feed.generation, feed.snapshot, feed.untouched)
        self._asked = ""  # the snapshot that the supervisor was asked for
        self._refused: dict[str, HeadraceError] = {}  # by snapshot
        self.asks: list[str] = []

    @property
    def generation(self) -> int:
        return self._machine.generation

    def touched(self) -> None:
        """Something was committed."""
        self._machine.untouched = False

    def admit(self, hello: Hello, members: Iterable[Member], now: float) -> None:
        """Whether a trainer that has no session here is let in."""
        if self._machine.of_another_generation(hello.generation):
            raise FeedRewound(
                f"feed {self._feed!r} was taken back to snapshot {self._machine.snapshot}: what "
                "this trainer did since then is undone.  Begin anew from the model of that snapshot"
            )
        if not hello.resume or hello.generation >= 0:
            return
        if not self._durable:
            raise ServerError(
                f"feed {self._feed!r} has no state directory (state_dir, --state-dir): there is no "
                "snapshot to go on from"
            )
        if hello.resume in self._refused:
            raise self._refused.pop(hello.resume)
        judgement = self._machine.judge(hello.nonce, hello.process, hello.resume, members, now)
        if judgement is Judgement.WAIT:
            raise Later(
                "another trainer that goes on from the same snapshot may be at work: it is joined "
                "once it is heard of, and otherwise the feed is taken back"
            )
        if judgement is Judgement.TAKE_BACK:
            if self._asked != hello.resume:
                self._asked = hello.resume
                self.asks.append(hello.resume)
            raise Later(f"the feed is being taken back to snapshot {hello.resume}")

    def refuse(self, snapshot: str, code: str, text: str) -> None:
        """The supervisor can not take the feed back."""
        self._asked = ""
        self._refused[snapshot] = from_code(code, text)
