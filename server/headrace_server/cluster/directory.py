"""The directory of the servers of one feed: where each is, and the state that outlives its node.

    server that starts     begin(share, term) ─► its number, and what to go on from
    server, now and then   here(share, …)     ─► feeds to take back, and to which snapshot
    store that commits     keep(share, …)     ─► it is here, or: send everything
    trainer                addresses()        ─► those of all servers, or why not

A server that starts with a state directory of the last term that its share reported goes on from
there.  Any other has *lost* its state.  Feeds without states go on from the records here, which are
all that was acknowledged.  Feeds with states go back to the last snapshot that all servers have:
every server takes them back, and trainers are given no addresses before all have done so.

A share has one server: the last that began.  An earlier one, on a node that was cut off, gets
``Superseded`` wherever it asks, so it acknowledges nothing any more.

``on_ray.py`` makes an actor of this object.  It may be lost, too: servers report again what they
know.  Each report has the last loss after which the server took a feed back, so a new directory
finds those that have not; until all have reported it replaces no state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace_proto.errors import ServerError

from ..core.partition_turns import PartitionName
from ..core.rewinding import BEGINNING

#: The note that tells two state directories of a share apart: the file of its terms.
TERM = "terms.json"

#: Maximum bytes of a partition's records, and as a multiple of those of its whole state, …
_LEAST_BYTES, _TIMES = 1 << 18, 4

#: By feed: the number of a loss, and the snapshot that all servers go back to after it.
Losses = Mapping[str, tuple[int, str]]


class Superseded(ServerError):
    """Another server has the share by now."""


@dataclass(frozen=True, slots=True)
class Begun:
    """The answer to a server that starts."""

    number: int  # of this start
    again: bool  # the share has begun before
    lost: bool  # the state of the share is not in its directory
    notes: Mapping[str, str]  # small files of that directory
    partitions: Mapping[PartitionName, Sequence[bytes]]  # records of feeds without states
    owed: Losses  # feeds to take back


@dataclass(slots=True)
class _Records:
    """The records of one partition."""

    records: list[bytes]
    most_bytes: int
    nbytes: int = 0


@dataclass(slots=True)
class _Share:
    """The server of a share, by its last report."""

    number: int = 0
    address: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)
    partitions: dict[PartitionName, _Records] = field(default_factory=dict)
    snapshots: Mapping[str, str] = field(default_factory=dict)
    taken_back: dict[str, int] = field(default_factory=dict)  # by feed: after which loss
    lost: bool = False  # until a server has replaced the state


class Directory:
    """The reports of a feed's servers.

    ``with_states`` are the feeds that have states, ``keys`` those of trainers.  ``restarted``: an
    earlier directory is lost, with all that it knew.
    """

    def __init__(
        self,
        servers: int,
        with_states: Sequence[str],
        keys: Mapping[str, str] | None = None,
        restarted: bool = False,
    ) -> None:
        self._shares = [_Share() for _ in range(servers)]
        self._keys = dict(keys or {})
        self._restarted = restarted
        self._losses = dict.fromkeys(with_states, (0, BEGINNING))  # the last ones
        self._snapshots = dict.fromkeys(with_states, BEGINNING)  # that feeds would go back to

    # Servers

    def begin(self, share: int, term: str, number: int) -> Begun | None:
        """Let a server have a share from now on; None where it has to ask again later.

        ``term`` is the text of the file of terms in its state directory, ``number`` one that grows
        with time.
        """
        known = self._shares[share]
        again = TERM in known.notes
        lost = again and (known.lost or known.notes[TERM] != term)
        if self._restarted and not again and not term:
            raise ServerError(
                f"the state of share {share} was lost together with the directory that mirrored "
                "it: begin anew from a snapshot (resume=)"
            )
        known.number, known.address, known.lost = max(known.number + 1, number), "", lost
        if lost and self._losses and not all(one.notes for one in self._shares):
            return None  # one that has not reported may know of later losses and snapshots
        if lost:
            for feed, (loss, _) in self._losses.items():
                self._losses[feed] = loss + 1, self._snapshots[feed]
        return Begun(
            number=known.number,
            again=again,
            lost=lost,
            notes=known.notes,
            partitions={name: list(one.records) for name, one in known.partitions.items()},
            owed=self._owed(known),
        )

    def _owed(self, known: _Share) -> dict[str, tuple[int, str]]:
        done = known.taken_back
        return {feed: last for feed, last in self._losses.items() if done.get(feed, 0) < last[0]}

    def here(
        self,
        share: int,
        number: int,
        address: str,
        notes: Mapping[str, str],
        snapshots: Mapping[str, str],
        taken_back: Losses,
    ) -> dict[str, tuple[int, str]]:
        """Note a server's place and knowledge; return the feeds that it has to take back.

        ``snapshots``: by feed the last one that it knows all servers to have, or went back to.
        ``taken_back``: the last losses after which it has taken feeds back.
        """
        known = self._of(share, number)
        for feed, last in taken_back.items():
            if feed in self._losses:
                self._losses[feed] = max(self._losses[feed], last)
                known.taken_back[feed] = max(known.taken_back.get(feed, 0), last[0])
        owed = self._owed(known)
        for feed, snapshot in snapshots.items():
            if known.snapshots.get(feed) != snapshot and feed not in owed:
                self._snapshots[feed] = snapshot
        known.lost = known.lost and notes == known.notes
        known.address, known.notes, known.snapshots = address, notes, snapshots
        return owed

    def keep(
        self, share: int, number: int, messages: Sequence[tuple[PartitionName, bool, list[bytes]]]
    ) -> list[bool]:
        """Keep records of partitions: the whole state, or the next of it.

        False for one that was not kept: then everything has to be sent.
        """
        known = self._of(share, number)
        return [self._kept(known.partitions, *message) for message in messages]

    @staticmethod
    def _kept(
        partitions: dict[PartitionName, _Records],
        name: PartitionName,
        whole: bool,
        records: list[bytes],
    ) -> bool:
        nbytes = sum(map(len, records))
        if whole:
            partitions[name] = _Records(records, max(_LEAST_BYTES, _TIMES * nbytes), nbytes)
            return True
        known = partitions.get(name)
        if known is None or known.nbytes + nbytes > known.most_bytes:
            return False
        known.records += records
        known.nbytes += nbytes
        return True

    def _of(self, share: int, number: int) -> _Share:
        """Return the share of a server that has it."""
        known = self._shares[share]
        if number < known.number:
            raise Superseded(f"share {share} was given to another server")
        known.number = number
        return known

    # Trainers

    def addresses(self) -> tuple[dict[int, str], str]:
        """Return the addresses of all servers by share; none, and why, while one is missing."""
        away = [i for i, one in enumerate(self._shares) if not one.address]
        if away:
            return {}, f"share {', '.join(map(str, away))} of {len(self._shares)} has no server"
        for share, one in enumerate(self._shares):
            for feed, (_, to) in self._owed(one).items():
                return {}, f"share {share} of feed {feed!r} is being taken back to {to}"
        return {i: one.address for i, one in enumerate(self._shares)}, ""

    def trainer_keys(self) -> dict[str, str]:
        """Return the texts of a trainer's ``secret`` and of the ``server``'s public key, if any."""
        return self._keys
