"""The messages between a trainer and a server.

    trainer                                server
      Hello ───────────────────────────────►        to the locator: which feed, which version
      ◄─────────────────────────── ServedShare      which share it has, where its workers are
      Hello ───────────────────────────────►        to each worker
      ◄─────────────────────────── Welcome          session, schema, times   (or Refused)
      Attach ──────────────────────────────►        "I share your host: this is in the file"
                                                    (by the channel, where one can be reached)
      Step (window) ───────────────────────►        how far batches may be sent
      ◄─────────────────────────── Deliver ×n       batches under leases
      ◄─────────────────────────── Idle             none before trainers act: ask another owner
      ◄─────────────────────────── Following        before which place this owner has none
      ◄─────────────────────────── EpochBegun       all of the epochs before are committed
      Step (commits, released, window) ────►        done with these, their memory is free
      Step (saves)        + states ────────►        segments: their states after them
      ◄─────────────────────────── Outcome          committed, or stale
      Flush               + states ────────►        lanes: where they stand, for their next trainer
      Snapshot ────────────────────────────►        keep all of the feed's state, as of now
      Retarget, Resize, Drain ─────────────►        other proportions, other sizes; no more input
      Stats ───────────────────────────────►        how much is ready, in flight, committed
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
    "Following",
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
    "Unknown",
    "Welcome",
]


@record
class Handed:
    """A batch delivered before the server restarted, by which the new server recognises it."""

    token: Count
    partition: Count
    number: Count
    rows: Count
    segments: Blob = b""  # for segments: insertion indices (int64), then segment numbers (int32)


@message(FROM_TRAINER, 1)
class Hello:
    """First message of a session, and of each reconnection."""

    version: Count  # of the protocol
    library: Text
    feed: Text  # "": the only feed
    nonce: Blob  # names the session across reconnections
    rank: Signed = -1  # -1: shared mode
    world_size: Count = 0
    last_seq: Count = 0
    held: Counts = ()  # tokens of leases in hand
    known: Text = ""  # session_file of the session to which last_seq belongs
    # held, or committed and not answered
    batches: Annotated[tuple[Handed, ...], list_of(record_check(Handed))] = ()
    process: Blob = b""  # names the process, the same in all its sessions
    resume: Text = ""  # the snapshot that the feed is to go on from
    generation: Signed = -1  # the feed's, as another owner or an earlier session announced it
    host: Text = ""  # where the trainer runs, for people
    term: Count = 0  # of the start of the server that last let it in, where states outlive a start
    committed: Counts = ()  # partition and token of the last acknowledged commit in each partition
    restart: Flag = False  # the feed is to be started from its beginning
    owner: Signed = -1  # number of the greeted owner of the server; -1: any
    run: Count = 0  # for a trainer with a rank: as announced by the first owner that it greeted
    share: Count = 0  # the share of the feed that the trainer expects at this server …
    shares: Count = 1  # … out of this number; 0: it asks which share the server has


@message(FROM_TRAINER, 2)
class Attach:
    """The content of the session's file: proof that both ends map the same memory."""

    session: Count
    proof: Blob
    last_seq: Count = 0  # number of the last delivery that came; the server resends later ones


@message(FROM_TRAINER, 4)
class Renew:
    """Heartbeat: the trainer is alive and holds these leases."""

    session: Count
    window: Count
    last_seq: Count
    held: Counts = ()
    # batches in shared memory that the trainer still maps, among the deliveries …
    mapped: Counts = ()
    mapped_upto: Count = 0  # … up to this number; 0: no statement about memory
    blocked_s: Seconds = 0.0  # time that the trainer waited for batches since it connected …
    busy_s: Seconds = 0.0  # … and time that it was busy with them
    ended: Flag = False  # the trainer knows that the feed has ended, or failed
    awaited_s: Seconds = 0.0  # part of blocked_s in which it waited for a batch of this owner


@message(FROM_TRAINER, 5)
class Drain:
    """Close the feed's input; with ``cancel`` at once."""

    session: Count
    request: Count  # the answer carries it
    cancel: Flag = False


@message(FROM_TRAINER, 6)
class Bye:
    """The trainer leaves; batches that it holds go to others."""

    session: Count


@message(FROM_TRAINER, 7)
class Retarget:
    """Draw classes in other proportions from now on."""

    session: Count
    request: Count  # the answer carries it
    probs: Annotated[tuple[float, ...], list_of(check_number)]


@message(FROM_TRAINER, 8)
class Flush:
    """States of lanes that stay with the trainer, as they are after a committed batch.

    Frame 1 is a block of the states of some of its rows; it is answered after the last one.
    """

    session: Count
    request: Count  # the answer carries it
    token: Count  # of that batch; 0: there is none
    rows: Counts = ()
    columns: Plain = ()  # per state: [offset, nbytes, shape]
    more: Flag = False  # another Flush of this request follows


@message(FROM_TRAINER, 9)
class Snapshot:
    """Store all of the feed's state, including every commit that was answered.

    Each server of a shared feed stores its share, and then learns that all have done so.
    """

    session: Count
    request: Count  # the answer carries it
    name: Text = ""  # of the snapshot, where servers share the feed; else the server chooses one
    whole: Flag = False  # every server has stored its share of the snapshot of this name


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


@message(FROM_SERVER, 1)
class Welcome:
    """A session is open."""

    protocol: Count
    library: Text
    session: Count
    feed: Text
    schema: Plain  # the schema of a batch, see schema.py
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
    owner: Count = 0  # number of the answering owner: each leases its own partitions
    owners: Count = 1  # how many there are: owner k has the partitions p with p mod owners = k
    partitions: Count = 1  # of the feed, of all owners
    run: Count = 0  # number of the common run of all ranks, see Hello
    state_buffer: Count = 0  # bytes of a state buffer of the session, see state_buffers.py


@message(FROM_SERVER, 2)
class Refused:
    """No session: an error's code and text."""

    code: Text
    text: Text


@message(FROM_SERVER, 5)
class Pulse:
    """Answer to Renew: describes, in words, what the feed waits for."""

    session: Count
    waiting: Text = ""
    exhausted: Flag = False  # every batch was handed out: trainers hold all uncommitted ones


@message(FROM_SERVER, 6)
class Ended:
    """No more batches come: the feed is done (``code`` empty), or failed, or the server stops."""

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
    """These segments are empty for good and can be unmapped."""

    session: Count
    segments: Annotated[tuple[str, ...], list_of(check_text)]


@message(FROM_SERVER, 9)
class Answered:
    """The answer to a request: its result, or an error's code and text.

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
    """Takes the place of a delivery where it is the turn of a partition that makes no more batches.

    For a trainer of lanes ``seq`` lies beyond every window that it can have sent before, so no
    delivery comes until it asks again.
    """

    session: Count
    seq: Count
    partition: Count


@message(FROM_SERVER, 11)
class Idle:
    """This owner has no batch after ``seq`` for the trainer until trainers have acted.

    All batches that its partitions can make are in trainers' hands, or wait for states.  A later
    Deliver ends this condition.

    With ``drains`` it hands out nothing more: return the batches that wait to be used.  Another
    owner's batch may come before them, which it does not hand out either.
    """

    session: Count
    seq: Count
    drains: Flag = False


@message(FROM_SERVER, 12)
class Following:
    """The next new batch of this owner has this place or a later one.

    A trainer hears it where the owner's slab is full, so that it makes the batch once trainers have
    committed others.
    """

    session: Count
    number: Count
    partition: Count


@message(FROM_SERVER, 13)
class ServedShare:
    """The locator's answer to a Hello: the share that the server has, and where its workers are."""

    feed: Text
    share: Count
    shares: Count
    partitions: Count  # of the whole feed
    server: Text  # names the server, which may have several addresses
    declaration: Plain  # a digest of each part of its pipeline, by the part's name
    # By the number of the owner: its address, of which the host is that of the server
    # as the trainer has reached it.
    workers: Annotated[tuple[str, ...], list_of(check_text)]
    waiting: Text = ""  # why workers may not answer now


@message(FROM_SERVER, 14)
class EpochBegun:
    """This owner has no batch of an earlier epoch left: all of them are committed."""

    session: Count
    epoch: Count
