"""Words that several rooms share: batches, turns, orders, and what a desk calls.  Plain data.

    trainer ── hello, ask, commit … ──► desk ── make, commit, returned, reclaim … ──► partition
            ◄── Port: give, answer … ─── │
    store   ◄── Port: committed … ───────┘

A batch has a *slot*, which says who may have it: anyone, a rank, or the session whose lanes it
fills.  Its *turn* is its place in its partition.  The desk has one rule for all feeds: the least
turn in the heap of (partition, slot) answers the oldest request for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

#: Who may get a batch: ANYONE, a rank (0, 1 …), or a session with lanes (its nonce).
Slot = int | bytes
ANYONE = -1
#: Place in the order of a partition: the epoch, or 0 where batches cross epochs; then the number in
#: the epoch, or of a round its number in this run and epoch.
Turn = tuple[int, int]
#: A lease: the term of the owner's life in the upper bits, then a counter.
Token = int
#: Number of bits of the counter in a token.
COUNTER_BITS = 32
#: Code of a commit that comes before the one of an earlier batch of its lanes.
EARLY = "early"


class Outlook(Enum):
    """Why a partition makes no batch for a slot now."""

    IDLE = "nothing before some trainer commits, returns or leaves"
    FULL = "no memory before a batch is freed"
    WAITS = "the source has no example yet: ask again soon"
    OVER = "nothing more of this epoch"
    ENDED = "nothing more, and all is committed"


@dataclass(eq=False)
class Batch:
    """One batch, described once: by the partition that made it, or by the trainer that holds it."""

    partition: int
    number: int
    slot: Slot
    turn: Turn
    rows: int  # with those of a rank's batch that hold nothing
    #: Names its contents, so that a later life of the partition knows it again: for segments
    #: ``Spans.place``; else the number says it, and this the orders before it (b"": none).
    place: bytes = b""
    epoch: int = 0  # of its first row
    bucket: int = -1  # where the shape has buckets or classes
    # set later:
    empty: int = field(default=0, init=False)  # rows that hold nothing
    nbytes: int = field(default=0, init=False)  # of its bytes
    body: Any = field(default=None, init=False)  # their place; None where only a trainer has them
    # Its lease, as long as a session's ``leases`` have it:
    token: Token = field(default=0, init=False)
    holder: Any = field(default=None, init=False)  # the session
    request: int = field(default=0, init=False)  # 0: unknown
    since: float = field(default=0.0, init=False)

    @property
    def name(self) -> tuple[int, int, bytes]:
        return self.partition, self.number, self.place

    def __str__(self) -> str:
        return f"{self.number} of partition {self.partition}"


#: The kind of an order and its value, before it has its place; see ``Order``.
Proposal = tuple[str, Any]


@dataclass(frozen=True, slots=True)
class Order:
    """An order to a partition, by its ``kind``, with the place at which it takes effect.

    "close" says whether to cancel, "target" has proportions of classes, "weights" a change of
    a mix with its place among the examples, "batch_size" a size for each bucket.
    """

    count: int  # number of orders up to this one
    read: int  # number of rows read from the source before it
    number: int  # of the first batch made after it
    kind: str
    what: Any
    since: int  # the first batch that it changes

    def to_plain(self) -> list[object]:
        return [self.count, self.read, self.number, self.kind, self.what, self.since]


class Machine(Protocol):
    """The machine of one partition, as its desk sees it.  All decisions about rows are its own."""

    @property
    def number(self) -> int: ...

    @property
    def ahead(self) -> bool:
        """Whether it makes batches without a request."""

    @property
    def lanes(self) -> bool:
        """Whether each session has a slot of its own."""

    @property
    def voids(self) -> bool:
        """Whether a batch that comes back voids later ones of its slot: see ``leave``."""

    @property
    def gone(self) -> list[Batch]:
        """Batches that it has made and then left out; the desk takes them from here."""

    @property
    def drops(self) -> Sequence[object]:
        """Whether it has left out rows since ``take_records``, so that others may have an end."""

    @property
    def epoch(self) -> int:
        """The epoch that it makes now; 0 where batches cross epochs."""

    @property
    def finished(self) -> bool:
        """Whether it has made all, of a partition that makes ahead."""

    @property
    def run(self) -> int:
        """The number that names the ranks' run for which its batches are dealt."""

    @property
    def world(self) -> int:
        """The number of ranks of that run; 0: its batches are for anyone."""

    def next_turn(self, slot: Slot) -> Turn:
        """Return the least turn that is not made for a slot."""

    def live(self, slot: Slot) -> bool:
        """Return whether the slot has lanes with examples that go on."""

    def seat(self, slot: Slot) -> None:
        """Give a slot the lanes that it had in an earlier life, before others fill theirs."""

    def returned(self, batch: Batch) -> bool:
        """Return whether a batch that came back goes out as is; else ``make`` writes it again."""

    def leave(self, slot: Slot, since: Turn = (0, -1)) -> None:
        """Void the lanes of a slot, with its batches from a turn on, if the partition ``voids``.

        Their examples go on from the states that are kept here.
        """


class Partition(Protocol):
    """One partition at work: its machine, with what writes batches and stores.

    ``make`` may take long and is called between locks: while it runs, the desk calls nothing else
    of this partition, nor of its machine.
    """

    @property
    def machine(self) -> Machine: ...

    def make(
        self, slot: Slot, epoch: int, beyond: bool = False, most: int = 1
    ) -> list[Batch] | Outlook:
        """Do one step for a slot: return what is new (maybe nothing yet), or why there is none.

        What it returns may be for other slots, too.  A batch of a later epoch than ``epoch`` is
        not begun, except ahead of requests (a partition with ``ahead``).  Up to ``most`` batches
        are made in one step where none of them needs a commit.  ``beyond``: the first batch of the
        slot is written before all others, even if there is no memory for it.
        """

    def commit(self, batch: Batch, token: Token, payload: Any) -> tuple[str, str] | None:
        """Take a commit, with states if the feed has them; return a fault's code and text, or None.

        It counts at once.  EARLY: an earlier batch of its lanes is to be committed first; the desk
        keeps the commit until then.  The caller has it stored (``Desk.log``).
        """

    def reclaim(self, batch: Batch) -> bool:
        """Take out a batch of an earlier life, if that is still possible.

        It is possible if each of its rows is the next of its example, from the same version of its
        state, and no other batch has it; see the table in the design of the kernel.
        """

    def deal(self, run: int, world: int) -> list[Batch]:
        """Deal all that is not committed anew: for ``world`` ranks, or 0: for anyone.

        The desk has taken all its batches back, and forgets them.  Return those that are here
        already and go out under their new slots.  A partition that makes ahead keeps the others,
        which may go out later; of another one they are void.
        """

    def propose(self, what: tuple[str, Any]) -> Order | None:
        """Return an order, with the place at which it takes effect; None: ask again after ``make``.

        It is stored before it is carried out.  ValueError where it can not be.  ``since`` of it is
        the number of the first batch that it changes.
        """

    def apply(self, order: Order) -> None:
        """Carry out an order, which is stored."""

    def take_records(self) -> Sequence[object]:
        """Return what the journal needs to know of since the last call.

        Only the caller of the desk calls this, when ``Desk.log`` names the partition.
        """


@dataclass(slots=True)
class Greeting:
    """A trainer's greeting, as the desk judges it."""

    session: bytes  # the nonce that names it over all its connections
    rank: int = -1
    world: int = 0
    run: int = 0  # names the ranks' run, as its launcher does; 0: the desk names it
    birth: int = 0  # of two processes that are one rank of one run, the later one counts
    held: list[tuple[Token, Batch]] = field(default_factory=list)
    #: Commits without an answer, with what came with them.
    commits: list[tuple[Token, Batch, object]] = field(default_factory=list)
    gets: list[tuple[int, int, int]] = field(default_factory=list)  # request, partition, epoch
    to: Any = None  # the trainer, as the port knows it; without this by its nonce

    def __post_init__(self) -> None:
        self.to = self.to or self.session


class Port(Protocol):
    """The calls by which a desk acts.  No call waits, and none calls the desk, but for ``gone``.

    The first ones send a message to a trainer, as its last greeting has named it, if it is there.
    """

    def welcome(
        self, to: Any, next: dict[int, Turn], stale: list[Token], others: int, run: int
    ) -> None:
        """Open a session.

        ``next``: by partition, the least turn that its slot may still get.  ``stale``: held tokens
        that are void.  ``others``: the number of sessions that were here before.  ``run``: that of
        the ranks.
        """

    def refuse(self, to: Any, code: str, text: str) -> None:
        """End a session, or a greeting, with an error."""

    def give(self, to: Any, batch: Batch, live: bool) -> None:
        """Send a leased batch; ``live``: whether the slot has lanes that go on after it."""

    def idle(self, to: Any, request: int, live: bool) -> None:
        """Say that nothing comes before some trainer acts; the request stands."""

    def over(
        self, to: Any, request: int, partition: int, epoch: int, also: tuple[int, ...]
    ) -> None:
        """Say that nothing more of an epoch (-1: at all) comes here, and in other partitions."""

    def answer(
        self,
        to: Any,
        committed: Sequence[Token] = (),
        stale: Sequence[Token] = (),
        faults: Sequence[tuple[Token, str, str]] = (),
    ) -> None:
        """Answer commits; ``faults``: token, code and text of those that were refused."""

    def make(self, partition: int, slot: Slot, epoch: int, most: int) -> list[Batch] | None:
        """Have a partition make up to so many batches, if that takes a moment.

        None, or no batch: the desk returns it as the next work.
        """

    # To be stored.  ``Desk.stored`` counts these calls by partition, the last two as of SESSIONS.

    def committed(self, partition: int, token: Token, rows: int) -> None:
        """Have a commit stored."""

    def changed(self, partition: int, why: str) -> None:
        """Have other records of a partition stored: of a "deal", an "order", or "made"."""

    def joined(self, session: bytes, run: int, rank: int, birth: int) -> None: ...

    def left(self, session: bytes) -> None: ...

    def gone(self, batch: Batch) -> None:
        """Free the bytes of a batch: nobody needs them.  It may call ``Desk.freed``."""
