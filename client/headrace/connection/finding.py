"""Which servers a feed has, where their owners are, and which session is with whom.

    each locator         Hello ─► ServedShare   which share its server has, and where its owners are
                         is the feed complete?

The trainer greets no owner before it knows that the servers together have the whole feed.  A name
that stands for several addresses is looked up again until every share is found.

A thread of its own asks the locators, since looking a name up may take long: of all servers while
the feed is joined, later of those of which an owner is away.  If an owner has another address now,
its session gets another connection.  If a server started again with another number of owners, other
sessions take the places of those with it.

    away, once a second       ─► ray://      the directory ─► its new address
                              ─► the locator ─► the addresses of the owners, or why one is away
                              ─► a DNS name  looked up     ─► its next address

ZeroMQ tries the first address of a name only.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import zmq

from headrace_proto.clock import Deadline
from headrace_proto.credentials import Keys
from headrace_proto.errors import ConnectionLost, LimitExceeded, ProtocolError, from_code
from headrace_proto.handshakes import connecting
from headrace_proto.log_messages import Produce
from headrace_proto.messages import FROM_SERVER, FROM_TRAINER, Hello, Refused

from .connection import check_files, nonsense
from .exchanging import Wire
from .places import Server, arranged, looked_up, missing_shares, shares_there
from .session import Member, Session
from .waiting import Waits

if TYPE_CHECKING:
    from ..ray import RayDirectory

logger = logging.getLogger("headrace")

#: The first answers, in the error of a wait for them.
OPENS = "a server to answer"
#: Time between two looks at what a name stands for, while a share is missing.
_LOOK_UP_S = 1.0
_ASK_S = 1.0  # between two lookups of the address of a server that is away


class Lookup:
    """A socket at which the locator of a server is asked where its owners are."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], keys: Keys | None, server: Server
    ) -> None:
        self.place, self._server = server.place, server
        self.socket, self.handshakes = connecting(context, keys, server.address, self.place)
        self.asked = False
        self.dead = False  # ZeroMQ has given the socket up

    def ask(self, question: Hello | Produce) -> None:
        """Ask, once more where the server was reached."""
        if not (self.asked and self.handshakes.unreached):
            self.asked = True
            try:
                self.socket.send(FROM_TRAINER.encode(question), zmq.NOBLOCK)
            except zmq.Again:
                self.dead = True

    def answer(self, now: float) -> Any:
        """Return an answer that has come, or None.  HeadraceError where waiting is in vain."""
        known = self._server.served is not None
        try:
            if self.socket.poll(0):
                return FROM_SERVER.decode(self.socket.recv_multipart()[0])
        except ProtocolError as error:
            if not known:  # else another program has the address for a while
                raise nonsense(self._server.address, error) from None
        # A busy server may break handshakes off.
        if (fault := self.handshakes.fault(now, known)) is not None:
            raise fault
        self._server.broken = self.handshakes.broken
        return None


class Finding:
    """The servers of one feed, and a session with each of their owners."""

    def __init__(
        self,
        servers: list[Server],
        member: Member,
        wire: Wire,
        keys: Keys | None,
        directory: RayDirectory | None,
    ) -> None:
        """``servers``: by share, once all are found; until then ``wire`` has a session for each."""
        self.servers = servers
        self.owner_of = [0]  # by partition
        self._member, self._wire, self._keys, self._directory = member, wire, keys, directory
        self._searches = False  # whether a thread asks locators

    def find(self, address: str, waits: Waits, timeout_s: float, started: float) -> None:
        """Wait until servers of all shares of the feed are found."""
        wire = self._wire
        waits.wait(
            lambda: all(one.server.served for one in wire.sessions),
            timeout_s,
            OPENS,
            lambda: next(one for one in wire.sessions if not one.server.served),
            started=started,
        )
        named = address.split(",")
        while missing := missing_shares(self.servers):
            arranged(self.servers)  # ValueError where two of them contradict each other
            there = shares_there(self.servers)
            found = looked_up(named[0]) if len(named) == 1 else []
            if not found:
                raise ValueError(
                    f"address={address!r}: {there}.  Give the addresses of all servers, in a "
                    "list or with commas between them"
                )
            left_s = started + timeout_s - wire.clock()
            if left_s <= 0:
                raise ConnectionLost(
                    f"waited timeout={timeout_s:g} s for all servers at {named[0]}, which "
                    f"stands for {', '.join(found)}: {there}"
                )
            known = {server.place for server in self.servers}
            if len(known) == 1:
                logger.warning("%s: %s; waiting for it", named[0], there)
            with wire.lock:
                self.servers = [*self.servers, *(Server(one) for one in found if one not in known)]
            again_s = wire.clock() + min(_LOOK_UP_S, left_s)
            waits.wait(
                lambda at=again_s, before=missing: (  # type: ignore[misc]
                    wire.clock() >= at or missing_shares(self.servers) != before
                ),
                timeout_s,
                OPENS,
                started=started,
            )

    def number(self) -> None:
        """Number a session with each owner of the servers found.  The caller holds the lock."""
        by_share = arranged(self.servers)
        self.servers = [by_share[share] for share in sorted(by_share)]
        self._arrange()

    def _arrange(self) -> None:
        """Number a session with each owner.  Those with a server of as many owners stay."""
        sessions: list[Session] = []
        for server in self.servers:
            known, owners = self._with(server), len(server.owners)
            if len(known) != owners:
                welcome = known[0].welcome if known else None
                known = [
                    Session(self._member, server, owner, owners, welcome=welcome)
                    for owner in range(owners)
                ]
            sessions += known
        self._wire.sessions = sessions
        served = self.servers[0].served
        assert served is not None
        self.owner_of = [0] * served.partitions
        for number, one in enumerate(sessions):
            one.number = number
            for p in one.partitions:
                self.owner_of[p] = number

    def _with(self, server: Server) -> list[Session]:
        return [session for session in self._wire.sessions if session.server is server]

    # Servers that are away

    def _away_servers(self) -> list[Server]:
        """Return the servers of which an owner is away, or that were never found."""
        with self._wire.lock:
            now = self._wire.clock()
            away = [one.session.server for one in self._wire.connections if one.away(now)]
            return [one for one in self.servers if one.served is None or one in away]

    def look(self) -> None:
        """Have a thread look for servers that are away."""
        if self._searches or self._wire.connected or self._wire.failure is not None:
            return
        if self._away_servers():
            self._searches = True
            threading.Thread(target=self._search, name="headrace-search", daemon=True).start()

    def _search(self) -> None:
        """Ask the locators of servers that are away, once a second, until none is."""
        lookups: dict[Server, Lookup] = {}
        try:
            while (away := self._away_servers()) and not self._wire.closing:
                deadline, new = Deadline(_ASK_S), [one for one in away if one.served is None]
                if self._directory is not None:
                    moved = self._directory.moved()
                    for server in self.servers:
                        if server.address in moved:
                            server.address = server.place = moved[server.address]
                try:
                    unanswered = self._ask(away, lookups, deadline)
                except LimitExceeded:  # libzmq needs files to ask
                    if new:
                        raise
                    unanswered = []
                for server in unanswered:
                    if server.served is not None or lookups[server].handshakes.unreached:
                        server.try_next()
                if unanswered or len(new) < len(away):
                    self._wire.closed.wait(deadline.left_s)
        except Exception as error:
            if not self._wire.closing:  # else this trainer leaves, and ZeroMQ's context has ended
                self._wire.fail(error)
        finally:
            for lookup in lookups.values():
                lookup.handshakes.close()
            self._searches = False

    def _ask(
        self, servers: list[Server], lookups: dict[Server, Lookup], deadline: Deadline
    ) -> list[Server]:
        """Ask the locators of these servers, and take their answers; return those without one."""
        assert self._wire.context is not None
        for server in servers:
            known = lookups.get(server)
            dead = known is not None and known.dead and server.served is not None
            if known is None or known.place != server.place or dead:
                check_files()
                lookups[server] = Lookup(self._wire.context, self._keys, server)
                if known is not None:
                    known.handshakes.close()
            lookups[server].ask(replace(self._member.hello, shares=0))
        while servers and (left_s := deadline.left_s):
            asked = [lookups[server] for server in servers]
            readable = [*(one.socket for one in asked), *(one.handshakes.monitor for one in asked)]
            zmq.select(readable, [], [], left_s)
            for server in [*servers]:
                if (answer := lookups[server].answer(self._wire.clock())) is not None:
                    self._take_answer(server, answer)
                    servers = [one for one in servers if one is not server]
        return servers

    def _take_answer(self, server: Server, answer: Any) -> None:
        """Take what a server's locator tells, and reach its owners where they are now."""
        with self._wire.lock:
            server.take(answer)
            if isinstance(answer, Refused):
                if not all(session.connected for session in self._with(server)):
                    self._member.fail(from_code(answer.code, answer.text))
            elif self._wire.connections:
                greeted = [one.session for one in self._wire.connections]
                if len(self._with(server)) != len(server.owners):
                    self._arrange()
                    self._member.trainer.regroup(self.owner_of, len(self._wire.sessions))
                    for session in self._wire.sessions:
                        session.greet()
                    greeted = self._wire.sessions
                self._wire.connect(greeted)
            self._wire.notify()
