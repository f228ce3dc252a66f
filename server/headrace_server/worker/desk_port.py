"""The port of one feed's desk in a worker: what it calls becomes messages, records and free blocks.

    desk ── give, answer, idle, over ──► outbox ─► trainers
         ── welcome, refuse ───────────► reception
         ── make ──────────────────────► partitions
         ── committed, changed ────────► stores of partitions ── stored ─► desk
         ── joined, left ──────────────► a note in the store of the first partition
         ── gone ──────────────────────► blocks

See ``Port`` for the meaning of each call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_proto.codec import pack
from headrace_proto.messages import Idle, Over

from ..leasing.desk import SESSIONS
from ..leasing.words import Batch, Slot, Token, Turn

if TYPE_CHECKING:
    from .served_feed import ServedFeed
    from .sessions import Session
    from .switchboard import Switchboard

#: The note of an owner's first partition that lists the trainers which have a session.
KNOWN = "trainers"


class DeskPort:
    """Implements ``Port``."""

    def __init__(self, board: Switchboard, feed: ServedFeed) -> None:
        self._board, self._feed = board, feed
        self._outbox, self._partitions = board.outbox, feed.partitions
        self._work, self._stores = board.partitions, board.partitions.stores
        self._first = next(iter(feed.partitions.values()))
        self.give, self.answer = board.outbox.give, board.outbox.answer
        self.gone = board.partitions.blocks.gone

    # To trainers

    def welcome(
        self, to: Session, next: dict[int, Turn], stale: list[Token], others: int, run: int
    ) -> None:
        if to.present:
            self._board.reception.welcome(to, next, stale, others, run)
            if self._board.paused:
                self._outbox.let_go(to)

    def refuse(self, to: Session, code: str, text: str) -> None:
        if to.present:
            self._board.reception.refuse(to, code, text)

    def idle(self, to: Session, request: int, live: bool) -> None:
        self._outbox.send_to(to, Idle(to.number, (request,), (request,) if live else ()))

    def over(
        self, to: Session, request: int, partition: int, epoch: int, also: tuple[int, ...]
    ) -> None:
        self._outbox.send_to(to, Over(to.number, request, partition, epoch, also))

    # To partitions

    def make(self, partition: int, slot: Slot, epoch: int, most: int) -> list[Batch] | None:
        if not self._outbox.gathers():
            return None
        return self._work.make_at_once(self._partitions[partition], slot, epoch, most)

    # To stores

    def committed(self, partition: int, token: Token, rows: int) -> None:
        self._stores.commit(self._partitions[partition], token, rows)

    def changed(self, partition: int, why: str) -> None:
        # Batches go out under the order or deal, so it is stored at once.
        self._stores.submit(self._partitions[partition], at_once=why != "made")

    def joined(self, session: bytes, run: int, rank: int, birth: int) -> None:
        self._feed.known[session] = run, rank, birth
        self._note()

    def left(self, session: bytes) -> None:
        self._feed.known.pop(session, None)
        self._note()

    def _note(self) -> None:
        self._stores.note(self._first, KNOWN, self._packed)
        self._stores.then(self._first, self._feed.stored(SESSIONS))

    def _packed(self) -> bytes:
        feed, desk = self._feed, self._feed.desk
        sessions = [[nonce, *of] for nonce, of in feed.known.items()]
        births = [[desk.run, rank, birth] for rank, birth in desk.births.items()]
        return pack([feed.owners, sessions, births, desk.runs])
