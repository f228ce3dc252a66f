"""A copy of partitions' commits outside of this host.

    Store ── each record that its journal has ──► Mirror ──► a socket of this host ──► elsewhere
          ◄─ it is there, or: send everything ───

A store that has a mirror acknowledges a commit once the mirror has it too.  The listener at the
socket decides where the copies are; see ``cluster``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection
from pathlib import Path

import msgpack

from ..core.partition_turns import PartitionName
from .journal import create, record_bytes
from .statedir import partition_path

#: The answer to a record where the mirror lacks the records before it.
WANTED = b"everything"


class Mirror:
    """The mirror of one partition.  One thread uses it."""

    def __init__(
        self, socket: str, name: PartitionName, everything: Callable[[], Iterable[bytes]]
    ) -> None:
        """``everything`` returns all records of the state as it is."""
        self._socket = socket
        self._name = name
        self._everything = everything
        self._connection: Connection | None = None
        self._behind = False  # whether the last message may not have arrived

    def send(self, record: bytes) -> None:
        """Add a record that the state has; return when the mirror has it.

        After an OSError the caller may send it again: then everything is sent.
        """
        if self._behind or self._ask([record], whole=False) == WANTED:
            self.send_everything()

    def send_everything(self) -> None:
        """Replace all that the mirror has of the partition."""
        self._ask([*self._everything()], whole=True)

    def _ask(self, records: list[bytes], whole: bool) -> bytes:
        self._behind = True
        try:
            if self._connection is None:
                self._connection = Client(self._socket, "AF_UNIX")
            self._connection.send_bytes(msgpack.packb([*self._name, whole, records]))
            answer = self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            self.close()
            if isinstance(error, OSError):
                raise
            raise ConnectionResetError("the server that mirrors it has ended") from error
        self._behind = False
        return answer

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@dataclass(frozen=True, slots=True)
class Mirrored:
    """A state directory whose state may have come from a mirror.

    ``begun`` is called with the directory after each new term, before the term is used.
    """

    socket: str
    begun: Callable[[Path], object]
    partitions: Mapping[PartitionName, Sequence[bytes]] = field(default_factory=dict)
    taken_back: Mapping[str, str] = field(default_factory=dict)  # lost feeds, to these snapshots

    def restore(self, state: Path, feed: str) -> None:
        """Write the journals of a feed, which has none yet."""
        for (name, partition), records in self.partitions.items():
            if name == feed:
                size = sum(record_bytes(len(record)) for record in records)
                create(partition_path(state, name, partition), [[one] for one in records], size)
