"""Trainers that bring a snapshot's token, and trainers from before a rewind of the feed.

    Hello ─► admit() ─► the trainer is let in
                      ─► Later(why)           asked again with its next Hello
                      ─► FeedRewound, FeedInUse, ServerError

The supervisor takes a feed back: it replaces all workers.  Reports to it wait in ``reports``.  An
owner judges no token before the supervisor has sent it the reports of the other owners of the feed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace_proto.errors import (
    FeedRewound,
    HeadraceError,
    ServerError,
    from_code,
)
from headrace_proto.messages import Hello

from ..core.rewinding import BEGINNING, TOUCHED, USED, Judgement, PresentTrainer, Rewinding, in_use
from ..process.config import FeedConfig

PUT_BACK = (
    "the state directory is another one, or was put back to an earlier state (a backup, a copy).  "
    "This trainer's later commits are undone, and their rows go out again.  Begin anew from a "
    "model of that state, or connect again to go on with the feed as it is"
)


#: Reports to the supervisor: the kind, and its values beside the feed.
Reports = list[tuple[str, dict[str, Any]]]


class Later(Exception):
    """The trainer must ask again; the text gives the reason."""


def wanted_by(hello: Hello) -> str:
    """Return the snapshot from which a trainer resumes; "" where it joins the feed as it is."""
    return BEGINNING if hello.restart else hello.resume


class Resuming(Rewinding):
    """The judge of one feed's greetings, with the answers to trainers and the supervisor."""

    def __init__(
        self,
        feed: FeedConfig,
        durable: bool,
        starts: tuple[int, ...] = (),
        alone: bool = True,
        reports: Reports | None = None,
    ) -> None:
        """``alone``: no other owner has partitions of this feed; ``reports``: where they gather."""
        untouched = feed.untouched or not durable
        known = starts if durable else ()
        super().__init__(feed.generation, feed.snapshot, untouched, known)
        self._feed = feed.name
        self._alone = self._knows_others = alone
        self._reported: set[str] = set()
        self.is_touched = False  # whether a trainer has committed a batch in this life …
        self._used = False  # … or ever since the beginning, also at another owner, as far as known
        self._durable = durable
        self._asked_for = ""  # the snapshot for which the supervisor was asked
        self._refused: dict[str, HeadraceError] = {}  # by snapshot
        self.reports: Reports = [] if reports is None else reports

    def opened(self, used: bool) -> None:
        """Note that all partitions are open; ``used``: an earlier server saw batches done."""
        if used:
            self._report(USED)
        self._judge_beginning(used)

    def all_opened(self, used: bool, touched: bool) -> None:
        """Note other owners' reports: batches done before (``used``) or since (``touched``)."""
        self._knows_others = True
        if touched:
            self.untouched = False
        self._judge_beginning(used or touched)

    def _judge_beginning(self, used: bool) -> None:
        """Judge whether a feed that began at its beginning is there: no batch was ever done."""
        self._used = self._used or used
        if self._knows_others and self.snapshot == BEGINNING:
            self.untouched = not self._used

    def rewound(self) -> FeedRewound:
        """Return the error for trainers of the earlier state."""
        if self.snapshot == BEGINNING:
            return FeedRewound(
                f"feed {self._feed!r} was started again from its beginning: what this trainer did "
                "is undone.  Connect again to train on it"
            )
        return FeedRewound(
            f"feed {self._feed!r} was taken back to snapshot {self.snapshot}: what this "
            "trainer did since then is undone.  Begin anew from the model of that snapshot"
        )

    def touched(self) -> None:
        """Note that a trainer has committed a batch."""
        self.is_touched = self._used = True
        self.untouched = False
        self._report(TOUCHED)

    def _report(self, mark: str) -> None:
        if mark not in self._reported:
            self._reported.add(mark)
            if not self._alone:
                self.reports.append((mark, {"generation": self.generation}))

    def admit(self, hello: Hello, members: Iterable[PresentTrainer], now: float) -> None:
        """Admit a trainer without a session, or raise the reason against it."""
        if self.of_another_generation(hello.generation):
            raise self.rewound()
        tokens = (*hello.held, *(place.token for place in hello.batches))
        start = self.unknown_start([hello.term, *(token >> 32 for token in tokens)])
        if start is not None:
            raise FeedRewound(
                f"the state of feed {self._feed!r} does not know start {start} of the server, "
                f"under which this trainer has worked: {PUT_BACK}"
            )
        wanted = wanted_by(hello)
        if not wanted or hello.generation >= 0:
            return
        if not self._durable and wanted != BEGINNING:
            raise ServerError(
                f"feed {self._feed!r} has no state directory (state_dir, --state-dir): there is no "
                "snapshot to go on from"
            )
        if not self._knows_others:
            raise Later("the workers are opening the feed's source")
        if wanted in self._refused:
            raise self._refused.pop(wanted)
        self._follow(self.judge(hello.nonce, hello.process, wanted, members, now), wanted)

    def _follow(self, judgement: Judgement, wanted: str) -> None:
        """Raise the error that a judgement means for the trainer; without one the trainer joins."""
        if judgement is Judgement.REFUSE:
            raise in_use(self._feed, "other trainers use it")
        if judgement is Judgement.WAIT and wanted == BEGINNING:
            raise Later(
                "other trainers may use the feed: it starts from its beginning once they are known "
                "to be gone"
            )
        if judgement is Judgement.WAIT:
            raise Later(
                "another trainer of the same snapshot may be at work: this one joins it once it "
                "reconnects, and otherwise the feed is taken back"
            )
        if judgement is Judgement.TAKE_BACK:
            if self._asked_for != wanted:
                self._asked_for = wanted
                self.reports.append(("take_back", {"snapshot": wanted}))
            if wanted == BEGINNING:
                raise Later("the feed is being started from its beginning")
            raise Later(f"the feed is being taken back to snapshot {wanted}")

    def refuse(self, snapshot: str, code: str, text: str) -> None:
        """Note that the supervisor can not take the feed back."""
        self._asked_for = ""
        self._refused[snapshot] = from_code(code, text)
