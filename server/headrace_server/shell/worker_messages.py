"""The messages between the router and its workers, on a channel of their own.

worker                                  router
  Up ──────────────────────────────────►        I live; my life is number n
  ◄─────────────────────────── Assign ×k        these partitions are yours, from these cursors
  Opened ──────────────────────────────►        schema of a partition's examples
  Made ────────────────────────────────►        batches lie at …           + frame: cursor
  Removed ─────────────────────────────►        these segments can be unmapped
  ◄─────────────────────────── Close            read no more
  ◄─────────────────────────── Seek             where is this example?
  Sought ──────────────────────────────►        here, or not with me
  ◄─────────────────────────── Settled          blocks that are free, how many were taken
  ◄─────────────────────────── Turn             segments: states, who left, what is wanted  + states
  Kept ────────────────────────────────►        segments: states that are kept, or why not
  Starved, Dry ────────────────────────►        segments: what is wanted can not be made (now)
  ◄─────────────────────────── Flush            states of lanes                  + states
  Flushed ─────────────────────────────►        they are kept
  Finished / Failed ───────────────────►        a partition has ended / can not go on
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from headrace_proto.checks import (
    Blob,
    Count,
    Counts,
    Flag,
    Plain,
    Signed,
    Text,
    check_number,
    check_text,
    list_of,
)
from headrace_proto.codec import Registry, record_check
from headrace_proto.errors import ProtocolError
from headrace_proto.record import record

__all__ = [
    "FROM_ROUTER",
    "FROM_WORKER",
    "Assign",
    "Claimed",
    "Close",
    "Copied",
    "Copy",
    "Dry",
    "Failed",
    "Finished",
    "Flush",
    "Flushed",
    "Further",
    "Kept",
    "Made",
    "Opened",
    "Removed",
    "Retarget",
    "Retargeted",
    "Seek",
    "Settled",
    "Sought",
    "Starved",
    "Turn",
    "Up",
    "Waiting",
]

FROM_WORKER = Registry("worker")
FROM_ROUTER = Registry("router")


@FROM_WORKER.message(1)
@record
class Up:
    """A worker is there and waits for its partitions."""

    worker: Count
    life: Count


@FROM_WORKER.message(2)
@record
class Opened:
    """A partition's source is open: the schema of its batches."""

    feed: Text
    partition: Count
    schema: Plain
    properties: Plain = field(default_factory=dict)  # what trainers are told beside it
    next: Count = 0  # the first batch that an earlier server did not see done
    used: Plain = None  # batches that earlier servers saw done, since when and until when
    rounds: Plain = None  # of one partition: what an owner before this one has dealt to ranks
    done: Plain = field(default_factory=list)  # batches from ``next`` on that were done before


@record
class Further:
    """One more batch of the same partition."""

    number: Count
    rows: Count
    segment: Text
    offset: Count
    nbytes: Count
    columns: Plain
    meta: Plain


@FROM_WORKER.message(3)
@record
class Made:
    """A batch lies in the worker's slab, and perhaps ``more`` that were made after it.

    What is said of the partition is as of the last of them.  Frame 1 is its cursor after that one,
    so what a worker had made and not announced is made again by the next.
    """

    feed: Text
    partition: Count
    number: Count
    rows: Count
    segment: Text
    offset: Count
    nbytes: Count
    columns: Plain
    meta: Plain
    dropped: Plain  # rows of this partition so far, by reason
    crowded: Flag = False  # the slab is short of room: trainers should copy out
    stats: Plain = None  # rows of this partition so far by class, where there are classes
    kept: Plain = ()  # as in Kept, of what came before
    more: Annotated[tuple[Further, ...], list_of(record_check(Further))] = ()

    @property
    def batches(self) -> tuple[Made | Further, ...]:
        """All of them, in order."""
        return (self, *self.more)


@FROM_WORKER.message(4)
@record
class Finished:
    """All batches of a partition were made."""

    feed: Text
    partition: Count
    dropped: Plain
    stats: Plain = None


@FROM_WORKER.message(5)
@record
class Failed:
    """A feed can not go on: an error's code and text."""

    feed: Text
    partition: Count
    code: Text
    text: Text


@FROM_WORKER.message(6)
@record
class Removed:
    """Segments that the slab needs no more."""

    segments: Annotated[tuple[str, ...], list_of(check_text)]


@FROM_WORKER.message(7)
@record
class Retargeted:
    """A partition draws classes in other proportions from batch ``since`` on, or why it can not."""

    feed: Text
    partition: Count
    request: Count
    since: Count
    fault: Text = ""
    stats: Plain = None  # as in Made: the change is among them, though no batch shows it yet


@FROM_WORKER.message(8)
@record
class Waiting:
    """A partition reads on and on and can make no batch: what it lacks."""

    feed: Text
    partition: Count
    text: Text
    batch: Signed = -1  # whose states it waits for


@FROM_WORKER.message(9)
@record
class Kept:
    """States after batches are kept, or an error's code and text."""

    feed: Text
    partition: Count
    batches: Plain  # [number, code, text]


@FROM_WORKER.message(13)
@record
class Claimed:
    """What a claim comes to: "done" under an earlier server, "yes" as batch ``number``, or "no"."""

    feed: Text
    partition: Count
    token: Count
    verdict: Text
    number: Count = 0


@FROM_WORKER.message(10)
@record
class Starved:
    """A partition has to wait for states before it can make what is wanted."""

    feed: Text
    partition: Count


@FROM_WORKER.message(11)
@record
class Dry:
    """A stripe of lanes has no work left."""

    feed: Text
    stripe: Count


@FROM_WORKER.message(12)
@record
class Flushed:
    """The states of a flush are kept."""

    feed: Text
    session: Count
    request: Count


@FROM_WORKER.message(14)
@record
class Copied:
    """A partition's store was copied, or why it was not."""

    feed: Text
    partition: Count
    request: Count
    fault: Text = ""


@FROM_WORKER.message(15)
@record
class Sought:
    """What a worker has of a key: [partition, epoch, segment, of how many, where, batch] each."""

    feed: Text
    request: Count
    worker: Count
    found: Plain


def _triple(value: object) -> tuple[str, int, int]:
    if not isinstance(value, list) or len(value) != 3:
        raise ProtocolError(f"{value!r:.40} is not (feed, partition, number)")
    return value[0], value[1], value[2]


def _pair(value: object) -> tuple[str, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise ProtocolError(f"{value!r:.40} is not (feed, count)")
    return value[0], value[1]


_Names = Annotated[tuple[tuple[str, int, int], ...], list_of(_triple)]
_Counts = Annotated[tuple[tuple[str, int], ...], list_of(_pair)]


@FROM_ROUTER.message(1)
@record
class Assign:
    """Run this partition.  Frame 1 is the cursor to go on from, or empty for the start."""

    feed: Text
    partition: Count
    made: Count = 0  # batches that were made in earlier lives of its worker


@FROM_ROUTER.message(2)
@record
class Settled:
    """Batches that are committed and that nobody reads any more, as (feed, partition, number)."""

    freed: _Names = ()
    taken: _Counts = ()  # by feed: batches of this life that went to trainers so far


@FROM_ROUTER.message(3)
@record
class Close:
    """Read no more for a feed: give out what was read, or with ``cancel`` drop it.

    With ``abandon`` the feed has failed, and nothing more is made.
    """

    feed: Text
    cancel: Flag = False
    abandon: Flag = False


@FROM_ROUTER.message(4)
@record
class Retarget:
    """Draw classes in other proportions from now on.

    Of partitions that have answered before, ``since`` says from which batch on.
    """

    feed: Text
    request: Count
    probs: Annotated[tuple[float, ...], list_of(check_number)]
    since: Plain = ()  # [partition, number]


@FROM_ROUTER.message(5)
@record
class Turn:
    """For one partition of segments, in this order: states, wishes, trainers that left."""

    feed: Text
    partition: Count
    saves: Plain = ()  # [number, frame (0: none), columns, token]
    wants: Plain = ()  # [upto, stripe]
    leaves: Counts = ()  # stripes
    claims: Plain = ()  # [token, number, segments]: batches of an earlier server
    releases: Counts = ()  # numbers of batches that were claimed


@FROM_ROUTER.message(6)
@record
class Flush:
    """States of some rows of a batch, frame 1; it is answered after the last one."""

    feed: Text
    partition: Count
    number: Count
    session: Count
    request: Count
    rows: Counts
    columns: Plain
    more: Flag = False


@FROM_ROUTER.message(7)
@record
class Copy:
    """Copy a partition's store into a directory, with all that was kept so far."""

    feed: Text
    partition: Count
    request: Count
    directory: Text


@FROM_ROUTER.message(8)
@record
class Seek:
    """Say where the examples of a key are."""

    feed: Text
    request: Count
    key: Blob
