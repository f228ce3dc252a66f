"""Which trainer greets which owner of which server: the part of a session that a Hello carries.

    elsewhere(address)   asks another server which share of the feed it has
    take_for(share)      greets that server as the one with this share

All sessions of a trainer bear one nonce, so servers and owners know it as one trainer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from headrace_proto import __version__, limits
from headrace_proto.messages import Hello, ServedShare

from .leases import Leases
from .meter import Meter


@dataclass(slots=True)
class HelloFacts(Leases):
    """The facts of a trainer, and of the owner that it greets."""

    feed: str
    nonce: bytes
    prefetch: int
    rank: int = -1
    world_size: int = 0
    process: bytes = b""  # names this process
    resume: str = ""  # the snapshot that the feed is to go on from
    host: str = ""  # where this trainer runs, for people who look at the server
    explicit: bool = False  # batches are committed by name, not by asking for the next
    order: str = "feed"  # of its batches: as ``any_order.py`` says
    restart: bool = False  # the feed is to be started from its beginning
    owner: int = -1  # which of its server's owners it is with; -1 leaves it to the server
    owners: int = 0  # how many there are; 0 where that is not known yet
    address: str = ""  # of its server
    share: int = 0  # of the feed, which that server has …
    shares: int = 1  # … out of this number; 0: the server is only asked for its share

    generation: int = -1  # of the feed, as another owner of it has announced
    # number of the ranks' common run: owner 0 assigns it, other owners learn it from trainers
    run: int = 0
    served: ServedShare | None = None  # the server's answer that it has another share
    meter: Meter = field(default_factory=Meter)

    awaited_s: float = 0.0  # how long this trainer waited for a batch of this owner

    _said_at: float = -1e9

    @property
    def where(self) -> str:
        """The address of its server, with its share where several servers have the feed."""
        share = f" (share {self.share}/{self.shares})" if self.shares > 1 else ""
        return self.address + share

    def alike(self, address: str, owner: int) -> Self:
        """Return a session of the same trainer with another owner or server."""
        shared = self.rank, self.world_size, self.process, self.resume, self.host, self.explicit
        alike = type(self)(self.feed, self.nonce, self.prefetch, *shared)
        alike.refused, alike.meter = self.refused, self.meter
        alike.address, alike.owner, alike.order = address, owner, self.order
        return alike

    def elsewhere(self, address: str) -> Self:
        """Return a session of the same trainer with another server, which it asks for its share."""
        elsewhere = self.alike(address, self.owner)
        elsewhere.shares, elsewhere.restart = 0, self.restart
        return elsewhere

    def take_for(self, share: int, shares: int) -> None:
        """Greet the server as the one that has this share of the feed."""
        self.share, self.shares, self.served = share, shares, None
        self._said_at = -1e9

    def _hello(self, known: str, generation: int, term: int) -> Hello:
        """Return the greeting; ``known`` is the session file of the session that goes on."""
        return Hello(
            version=limits.PROTOCOL,
            library=__version__,
            feed=self.feed,
            nonce=self.nonce,
            rank=self.rank,
            world_size=self.world_size,
            last_seq=self.last_seq,
            held=tuple(sorted(self._held)),
            known=known,
            batches=self._places_to_report(),
            process=self.process,
            resume=self.resume,
            generation=generation,
            host=self.host,
            term=term,
            committed=self._commits_to_report(),
            restart=self.restart,
            owner=self.owner,
            run=self.run,
            share=self.share,
            shares=self.shares,
        )
