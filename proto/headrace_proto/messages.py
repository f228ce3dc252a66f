"""The messages between a trainer and a server.

    trainer                                server
      Hello ───────────────────────────────►        which feed, which versions
      ◄─────────────────────────── Welcome          session, schema, times   (or Refused)
      Attach ──────────────────────────────►        "I share your host: this is in the file"
                                                    (by the channel, where one can be reached)
      Step (window) ───────────────────────►        how far batches may be sent
      ◄─────────────────────────── Deliver ×n       batches under leases
      ◄─────────────────────────── Idle             none before trainers act: ask another owner
      ◄─────────────────────────── Full             which one comes next, once trainers act
      ◄─────────────────────────── EpochBegun       all of the epochs before are committed
      Step (commits, released, window) ────►        done with these, their memory is free
      Step (saves)        + states ────────►        segments: their states after them
      ◄─────────────────────────── Outcome          committed, or stale
      Flush               + states ────────►        lanes: where they stand, for their next trainer
      Snapshot ────────────────────────────►        keep all of the feed's state, as of now
      Retarget, Resize, Drain ─────────────►        other proportions, other sizes; no more input
      Stats ───────────────────────────────►        how much is ready, in flight, committed
      Take ────────────────────────────────►        segments: one batch of so many rows
      ◄─────────────────────────── Answered         to each of these six, when it is done
      Renew ───────────────────────────────►        every heartbeat: what is held
      ◄─────────────────────────── Pulse            alive, and what the feed waits for
      ◄─────────────────────────── Ended            all is committed, or why it stopped;
                                                    or that a server will be back
      Bye ─────────────────────────────────►        what is held goes to others

A window is absolute: deliveries are numbered per session, and the server may send up to number
``window``.  So a repeated or lost message does no harm.  A server that does not know a session
answers Unknown; the trainer says Hello again with its nonce and what it holds.

Step, Deliver and Outcome, which go at each step of training, are in ``step_messages.py``, with
their layouts.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from .checks import (
    Blob,
    Count,
    Counts,
    Flag,
    Plain,
    Seconds,
    Signed,
    Text,
    check_number,
    check_text,
    list_of,
)
from .codec import message, record_check
from .record import record
from .step_messages import FROM_SERVER, FROM_TRAINER, Deliver, Delivery, Outcome, Save, Step

__all__ = [
    "FROM_SERVER",
    "FROM_TRAINER",
    "Answered",
    "Attach",
    "Bye",
    "Deliver",
    "Delivery",
    "Drain",
    "Ended",
    "EpochBegun",
    "Flush",
    "Full",
    "Handed",
    "Hello",
    "Idle",
    "Outcome",
    "Passed",
    "Pulse",
    "Refused",
    "Renew",
    "Resize",
    "Retarget",
    "Retired",
    "Save",
    "ServedShare",
    "Snapshot",
    "Stats",
    "Step",
    "Take",
    "Unknown",
    "Welcome",
]


@record
class Handed:
    """A batch as a server knows it that was started anew since it was delivered."""

    token: Count
    partition: Count
    number: Count
    rows: Count
    segments: Blob = b""  # of segments: insertion indices (int64), then sequence (int32)


@message(FROM_TRAINER, 1)
class Hello:
    """First message of a session, and of each reconnection."""

    oldest: Count  # versions of the protocol
    newest: Count
    library: Text
    feed: Text  # "" = the only one
    nonce: Blob  # names the session across reconnections
    rank: Signed = -1  # -1: shared mode
    world_size: Count = 0
    last_seq: Count = 0
    held: Counts = ()  # tokens of leases in hand
    known: Text = ""  # session_file of the session that last_seq counts in
    batches: Annotated[tuple[Handed, ...], list_of(record_check(Handed))] = ()  # held, not answered
    process: Blob = b""  # names the process, whatever sessions it has
    resume: Text = ""  # the snapshot that the feed is to go on from
    generation: Signed = -1  # the feed's, as it was told before
    host: Text = ""  # where the trainer runs, for people
    term: Count = 0  # number of the server's start that let it in last, where states outlive that
    committed: Counts = ()  # partition and token of the last acknowledged commit in each partition
    restart: Flag = False  # the feed is to be started from its beginning
    owner: Signed = -1  # which of the server's owners is greeted; -1: any
    run: Count = 0  # of a trainer with a rank: as the first owner that it greeted has told it
    share: Count = 0  # of the feed, for which it takes the server …
    shares: Count = 1  # … of so many; 0: it asks which share the server has
    group: Text = ""  # of trainers that all get the same batches …
    members: Count = 0  # … and how many they are


@message(FROM_TRAINER, 2)
class Attach:
    """The content of the session's file: proof that both ends see the same memory."""

    session: Count
    proof: Blob
    last_seq: Count = 0  # of the deliveries that came; what follows is sent, in case, again


@message(FROM_TRAINER, 4)
class Renew:
    """Heartbeat: alive, and these leases are held."""

    session: Count
    window: Count
    last_seq: Count
    held: Counts = ()
    mapped: Counts = ()  # batches in shared memory that are read, or will be, of the deliveries …
    mapped_upto: Count = 0  # … up to this number; 0 says nothing about memory
    blocked_s: Seconds = 0.0  # that the trainer waited for batches, since it connected …
    busy_s: Seconds = 0.0  # … and was busy with them
    ended: Flag = False  # the trainer has heard that the feed has ended, or failed
    yields: Flag = False  # serve all others first: it prefers its own host's server
    awaited_s: Seconds = 0.0  # of blocked_s, that it waited for a batch of this very owner


@message(FROM_TRAINER, 5)
class Drain:
    """Close the feed's input; with ``cancel`` at once."""

    session: Count
    request: Count  # the answer carries it
    cancel: Flag = False


@message(FROM_TRAINER, 6)
class Bye:
    """The trainer leaves; what it holds goes to others."""

    session: Count


@message(FROM_TRAINER, 7)
class Retarget:
    """Draw classes in other proportions from now on."""

    session: Count
    request: Count  # the answer carries it
    probs: Annotated[tuple[float, ...], list_of(check_number)]


@message(FROM_TRAINER, 8)
class Flush:
    """States of lanes that stay with the trainer, as they are after a batch that it is done with.

    Frame 1 is a block of the states of some of its rows; it is answered after the last one.
    """

    session: Count
    request: Count  # the answer carries it
    token: Count  # of the batch; 0: there is none
    rows: Counts = ()
    columns: Plain = ()  # per state: [offset, nbytes, shape]
    more: Flag = False  # another Flush of this request follows


@message(FROM_TRAINER, 9)
class Snapshot:
    """Keep all of the feed's state, with everything that was answered to be committed.

    Servers that share a feed each keep their share, and then learn that all of them have.
    """

    session: Count
    request: Count  # the answer carries it
    name: Text = ""  # of the snapshot, where servers share the feed; else the server names it
    whole: Flag = False  # every server has its share of the snapshot of this name


@message(FROM_TRAINER, 10)
class Stats:
    """Count what is ready, incomplete, in flight and committed in this owner's partitions."""

    session: Count
    request: Count  # the answer carries it


@message(FROM_TRAINER, 11)
class Resize:
    """Make batches of other sizes from now on: one for all, or one for each bucket."""

    session: Count
    request: Count  # the answer carries it
    sizes: Counts


@message(FROM_TRAINER, 12)
class Take:
    """Ask for one batch of segments with so many rows; 0 withdraws the request.

    Its Delivery has the number of the request in ``meta``, as "take".  Deliveries after
    ``last_seq`` are not used: their rows go out again.
    """

    session: Count
    request: Count
    rows: Count
    last_seq: Count


@message(FROM_SERVER, 1)
class Welcome:
    """A session is open."""

    protocol: Count
    library: Text
    session: Count
    feed: Text
    schema: Plain  # of a batch, see schema.py
    heartbeat_s: Seconds
    lease_ttl_s: Seconds
    max_credits: Count
    directory: Text = ""  # of the server's shared memory, as the server sees it
    session_file: Text = ""
    resumed: Flag = False
    properties: Plain = field(default_factory=dict)
    channel: Text = ""  # the path of a Unix socket on the server's host, for all further messages
    #: A feed that others have used: finished, batches, since and until (Unix time).
    used: Plain = None
    owner: Count = 0  # which of the server's owners answers: each leases its own partitions
    owners: Count = 1  # how many there are: owner k has the partitions p with p mod owners = k
    partitions: Count = 1  # of the feed, of all owners
    run: Count = 0  # the trainers with ranks that train together, see Hello


@message(FROM_SERVER, 2)
class Refused:
    """No session: an error's code and text."""

    code: Text
    text: Text


@message(FROM_SERVER, 5)
class Pulse:
    """Answer to Renew: what the feed waits for, in words."""

    session: Count
    waiting: Text = ""
    exhausted: Flag = False  # every batch was handed out: those not committed are in hands


@message(FROM_SERVER, 6)
class Ended:
    """Nothing more will come: the feed is done (``code`` empty), or failed, or the server stops."""

    session: Count
    code: Text = ""
    text: Text = ""
    returns: Flag = False  # the server stops, and its next start goes on with the feed


@message(FROM_SERVER, 7)
class Unknown:
    """The server knows no such session."""

    session: Count


@message(FROM_SERVER, 8)
class Retired:
    """These segments hold nothing any more and can be unmapped."""

    session: Count
    segments: Annotated[tuple[str, ...], list_of(check_text)]


@message(FROM_SERVER, 9)
class Answered:
    """The answer to a request: what it brings, or an error's code and text.

    A Snapshot is answered by its token, a Retarget or Resize by ``[partition, first batch]`` for
    each partition, and Stats by the counts by name.
    """

    session: Count
    request: Count
    value: Plain = None
    code: Text = ""
    text: Text = ""


@message(FROM_SERVER, 10)
class Passed:
    """In place of a delivery: it was the turn of a partition that makes no more batches.

    For a trainer of lanes ``seq`` lies beyond every window that it can have sent before, so nothing
    comes in place of these until it asks again.
    """

    session: Count
    seq: Count
    partition: Count


@message(FROM_SERVER, 11)
class Idle:
    """The trainer gets no batch after ``seq`` from this owner before it or others have acted.

    All that its partitions can make is in trainers' hands, or waits for states.  A later Deliver
    ends it.
    """

    session: Count
    seq: Count


@message(FROM_SERVER, 12)
class Full:
    """The slab of this owner is full: no new batch of it stands before this place.

    It makes that one when trainers have committed others, perhaps for another trainer.
    """

    session: Count
    number: Count
    partition: Count


@message(FROM_SERVER, 13)
class ServedShare:
    """The answer to a Hello for another share of the feed than the server's; opens no session."""

    feed: Text
    share: Count
    shares: Count
    partitions: Count  # of the whole feed
    server: Text  # names the server, which may have several addresses
    sessions: Count  # that trainers have with it
    declaration: Plain  # a digest of each part of what it serves, by the part's name


@message(FROM_SERVER, 14)
class EpochBegun:
    """No batch of an epoch before this one comes of this owner: all of them are committed."""

    session: Count
    epoch: Count
