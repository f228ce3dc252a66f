"""Trainers that bring a snapshot's token, and trainers from before a rewind of the feed.

    Hello(resume=S) ─► is the feed at S, untouched?           join
                       is another trainer alive that resumed
                       from S since it was taken back?        join: it is one group
                       may such a trainer be alive?           Later: asked again, until that one is
                                                              alive, or is given up
                       S is the beginning, others use it?     FeedInUse
                       else                                   the supervisor takes the feed back to
                                                              S: it replaces all workers; Later

The beginning of a feed is like a snapshot: ``connect(restart=True)`` takes the feed back to it, but
never while trainers use the feed that did not ask for it.  A trainer that has worked under a start
unknown to this state proves that an earlier state was restored: its work is undone.

So a group of trainers that all restart with the token of one checkpoint takes the feed back once.
A trainer that dies alone and comes back finds the others at work and joins them.  A trainer of the
same process does not count as another: a notebook that begins again does so on purpose.

An owner judges no token before the supervisor has sent it the reports of the other owners of the
feed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace_proto.errors import FeedRewound, HeadraceError, ServerError, from_code
from headrace_proto.messages import Hello

from ..leasing.words import COUNTER_BITS
from ..net.bounded_map import BoundedMap
from ..process.config import BEGINNING, TOUCHED, USED, FeedConfig, in_use
from .sessions import Session

PUT_BACK = (
    "the state directory is another one, or was put back to an earlier state (a backup, a copy).  "
    "This trainer's later commits are undone, and their rows go out again.  Begin anew from a "
    "model of that state, or connect again to go on with the feed as it is"
)


#: Maximum number of trainers whose first request is remembered while they wait to be let in.
_MAX_WAITING = 10_000
#: A message that comes later than this after another trainer has first asked shows that its sender
#: lives; an earlier one may be late, of a trainer that is dead.
_LATE_S = 2.5


class Later(Exception):
    """The trainer must ask again; the text gives the reason."""


def wanted_by(hello: Hello) -> str:
    """Return the snapshot from which a trainer resumes; "" where it joins the feed as it is."""
    return BEGINNING if hello.restart else hello.resume


class Resuming:
    """The judge of one feed's greetings, for the life of an owner.

    ``snapshot`` is the one that the feed was taken back to last, ``untouched`` whether this life
    began with it.
    """

    def __init__(
        self,
        feed: FeedConfig,
        durable: bool,
        starts: tuple[int, ...],
        alone: bool,
        report: Callable[..., None],
    ) -> None:
        """``starts``: the last starts of the server, this one at the end.

        ``alone``: no other owner has partitions of this feed.  ``report`` tells the supervisor.
        """
        self.generation = feed.generation
        self.snapshot = feed.snapshot or BEGINNING
        self.untouched = feed.untouched or not durable
        self._starts = frozenset(starts if durable else ())
        self._first = starts[0] if starts else 0  # earlier starts may have been forgotten
        #: By nonce: time of its first request.
        self._asked: BoundedMap[bytes, float] = BoundedMap(_MAX_WAITING)
        self._feed = feed.name
        self._alone = self._knows_others = alone
        self._reported: set[str] = set()
        self.is_touched = False  # whether a trainer has committed a batch in this life …
        self._used = False  # … or ever since the beginning, also at another owner, as far as known
        self._durable = durable
        self._asked_for = ""  # the snapshot for which the supervisor was asked
        self._refused: dict[str, HeadraceError] = {}  # by snapshot
        self._send_report = report

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
                self._send_report(mark, generation=self.generation)

    def admit(self, hello: Hello, members: Sequence[Session], over: bool, now: float) -> None:
        """Admit a trainer without a session, or raise the reason against it.

        ``members``: the sessions that are present.  ``over``: whether the feed is.
        """
        if hello.generation not in (-1, self.generation):  # -1: it comes for the first time
            raise self.rewound()
        worked = [hello.term, *(held.token >> COUNTER_BITS for held in hello.batches)]
        start = next((n for n in worked if n >= self._first and n not in self._starts), None)
        if self._starts and start is not None:
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
        if wanted != self.snapshot or not self.untouched:
            self._join(hello, wanted, members, over, now)

    def _join(
        self, hello: Hello, wanted: str, members: Sequence[Session], over: bool, now: float
    ) -> None:
        """Let a trainer join the others of its snapshot, or raise the reason against it."""
        asked = self._asked.first(hello.nonce, now) + _LATE_S
        others = [m for m in members if m.process != hello.process]
        group = [m for m in others if m.resumed == wanted == self.snapshot]
        if any(m.seen > asked for m in group):
            return
        users = [m for m in others if m.uses and not over]
        if wanted == BEGINNING and (group or users):
            if not group and any(m.seen > asked for m in users):
                raise in_use(self._feed, "other trainers use it")
            raise Later(
                "other trainers may use the feed: it starts from its beginning once they are known "
                "to be gone"
            )
        if group:
            raise Later(
                "another trainer of the same snapshot may be at work: this one joins it once it "
                "reconnects, and otherwise the feed is taken back"
            )
        if self._asked_for != wanted:
            self._asked_for = wanted
            self._send_report("take_back", snapshot=wanted)
        if wanted == BEGINNING:
            raise Later("the feed is being started from its beginning")
        raise Later(f"the feed is being taken back to snapshot {wanted}")

    def refuse(self, snapshot: str, code: str, text: str) -> None:
        """Note that the supervisor can not take the feed back."""
        self._asked_for = ""
        self._refused[snapshot] = from_code(code, text)
