"""The messages between a trainer and a server.

    trainer                                owner of some partitions
      Hello ───────────────────────────────►        to the locator: which feed, which version
      ◄─────────────────────────── ServedShare      which share it has, where its workers are
      Hello ───────────────────────────────►        to each worker: what is in hand, what was asked
      ◄─────────────────────────── Welcome          session, schema, from which turns on; or Refused
      Attach ──────────────────────────────►        "I share your host: this is in the file"
                                                    (by the channel, where one can be reached)
      Step (gets) ─────────────────────────►        one batch of a partition, and one of another …
      ◄─────────────────────────── Give             a batch under a lease, for one request
      ◄─────────────────────────── Idle             none before trainers act: the request stands
      ◄─────────────────────────── Over             none of this epoch, or none at all
      Step (commits, returned, released) ──►        done with these, their memory is free
      Step (saves)        + states ────────►        segments: their states after them
      ◄─────────────────────────── Give             committed, or stale: mostly with a batch
      Flush               + states ────────►        lanes: where they stand, for their next trainer
      Snapshot ────────────────────────────►        keep all of the feed's state, as of now
      Retarget, Resize, Drain ─────────────►        other proportions, other sizes; no more input
      Version ─────────────────────────────►        the version of the policy that trains
      Stats ───────────────────────────────►        how much is ready, in flight, committed
      ◄─────────────────────────── Answered         to each of these seven, when done
      Renew ───────────────────────────────►        every heartbeat: what is mapped
      ◄─────────────────────────── Pulse            alive, and what the feed waits for
      ◄─────────────────────────── LetGo            return what waits to be used: the server stops
      ◄─────────────────────────── Ended            all is committed, or why it stopped;
                                                    or that a server will be back
      Bye ─────────────────────────────────►        what is held goes to others

A connection delivers in order or ends. Renew and Pulse count the messages of their connection (all
after its Hello and its Welcome, but for Attach), so a message that was dropped shows: then the
trainer greets again, and the greeting has all that is needed. An owner that does not know a session
answers Unknown; the trainer greets again, too. A Hello without an answer is sent again as it was;
an owner that has answered it to the same peer ignores it. A Welcome names the greeting that it
answers, and a trainer that has greeted again since ignores all that comes before the right one.
After a Welcome the owner sends nothing until it hears of the trainer again (Attach, else Renew or
Step, at once), so nothing is under way by the public address while the trainer turns to its
channel.

Step and Give, which go at each step of training, are in ``step_messages.py``, with their layouts.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from .checks import (
    Blob,
    Columns,
    Count,
    Counts,
    Flag,
    Map,
    Plain,
    Rank,
    RowCount,
    Seconds,
    Signed,
    Text,
    World,
    check_number,
    check_text,
    list_of,
)
from .codec import message, record_check
from .log_messages import Append, Appended, Produce
from .record import record
from .step_messages import FROM_SERVER, FROM_TRAINER, Get, Give, Given, Save, Step

#: Those of ``step_messages.py`` and ``log_messages.py``, for who needs them with the others.
__all__ = [
    "FROM_SERVER",
    "FROM_TRAINER",
    "Append",
    "Appended",
    "Get",
    "Give",
    "Given",
    "Produce",
    "Save",
    "Step",
]


@record
class Handed:
    """A batch in a trainer's hands, or committed and not answered, as its owner described it.

    Frame 1 of the Hello has the places of all of them, one after another, and frame 2 the states
    of those that are committed.
    """

    token: Count
    partition: Count
    number: Count
    epoch: Count  # of its turn …
    index: Count  # … and its number in it
    rows: RowCount
    place_bytes: Count = 0  # of its place, in frame 1
    committed: Flag = False
    state_bytes: Count = 0  # of its states, in frame 2 …
    columns: Columns = ()  # … and where each lies in these


@message(FROM_TRAINER, 1)
class Hello:
    """First message of each connection."""

    version: Count  # of the protocol
    library: Text
    feed: Text  # "": the only feed
    nonce: Blob  # names the session across connections
    connection: Count = 0  # grows with each connection of the session
    rank: Rank = -1  # -1: without ranks
    world_size: World = 0
    run: Count = 0  # names the run of the ranks, as its launcher does; 0: the first owner names it
    birth: Count = 0  # when the process began: the later one of two with one rank counts
    batches: Annotated[tuple[Handed, ...], list_of(record_check(Handed))] = ()
    gets: Counts = ()  # open requests: request, partition and epoch of each
    known: Text = ""  # session_file of the session that this trainer knows
    process: Blob = b""  # names the process, the same in all its sessions
    resume: Text = ""  # the snapshot that the feed is to go on from
    generation: Signed = -1  # the feed's, as another owner or an earlier session announced it
    host: Text = ""  # where the trainer runs, for people
    term: Count = 0  # of the start of the server that last let it in, where states outlive a start
    acknowledged: Counts = ()  # partition and token of the last acknowledged commit in each
    restart: Flag = False  # the feed is to be started from its beginning
    owner: Signed = -1  # number of the greeted owner of the server; -1: any …
    owners: Count = 0  # … out of this number, as the locator has told; 0: it has not
    share: Count = 0  # the share of the feed that the trainer expects at this server …
    shares: Count = 1  # … out of this number; 0: it asks which share the server has


@message(FROM_TRAINER, 2)
class Attach:
    """The content of the session's file: proof that both ends map the same memory."""

    session: Count
    proof: Blob


@message(FROM_TRAINER, 4)
class Renew:
    """Heartbeat: the trainer is alive."""

    session: Count
    said: Count  # messages of this connection before this one
    # batches in shared memory that the trainer still maps, among those given …
    mapped: Counts = ()
    mapped_upto: Count = 0  # … up to this token; 0: no statement about memory
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
    """The trainer leaves; batches that it holds go to others.

    Where its Hello has no answer so far, session is 0.
    """

    session: Count


@message(FROM_TRAINER, 7)
class Retarget:
    """Draw classes in other proportions from now on, or the sources of a mix by other weights."""

    session: Count
    request: Count  # the answer carries it
    probs: Annotated[tuple[float, ...], list_of(check_number)]
    mix: Flag = False  # whether these are weights, in the order of the sources


@message(FROM_TRAINER, 8)
class Flush:
    """States of lanes that stay with the trainer, as they are after a committed batch.

    Frame 1 is a block of the states of some of its rows; it is answered after the last one.
    """

    session: Count
    request: Count  # the answer carries it
    token: Count  # of that batch; 0: there is none
    rows: Counts = ()
    columns: Columns = ()  # one for each state
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
    length: Count = 0  # 1 + the epoch of which all batches are counted, too; 0: none


@message(FROM_TRAINER, 11)
class Resize:
    """Make batches of other sizes from now on: one for all, or one for each bucket."""

    session: Count
    request: Count  # the answer carries it
    sizes: Counts


@message(FROM_TRAINER, 15)
class Version:
    """The policy that trains has this version, which only grows."""

    session: Count
    request: Count  # the answer carries it
    version: Count


@message(FROM_TRAINER, 12)
class Command:
    """An operator's question or order to the whole server, at its public address.

    The locator answers by Answered of session 0, with the result as JSON in frame 1.
    """

    version: Count  # of the protocol
    library: Text
    request: Count  # the answer carries it
    what: Text  # "status", "inspect", "snapshot", "drain", "end", "restart", "logs" or "trim"
    feed: Text = ""  # "": the only feed
    key: Blob = b""  # of the sequence to inspect
    name: Text = ""  # of a snapshot, and …
    whole: Flag = False  # … whether every server has stored its share, as in Snapshot
    cancel: Flag = False  # of an end: drop rows that are in no batch yet
    force: Flag = False  # of a restart: also while trainers use the feed
    log: Text = ""  # to trim: its sequences without news …
    idle_s: Seconds = 0.0  # … for so long end


@message(FROM_SERVER, 1)
class Welcome:
    """A session is open."""

    session: Count
    feed: Text
    schema: Plain  # the schema of a batch, see schema.py
    heartbeat_s: Seconds
    max_credits: Count
    directory: Text = ""  # of the server's shared memory, as the server sees it
    session_file: Text = ""
    resumed: Flag = False
    connection: Count = 0  # that of the Hello which it answers
    properties: Map = field(default_factory=dict)
    channel: Text = ""  # the path of a Unix socket on the server's host, for all further messages
    finished: Flag = False  # all of its partitions were done before this trainer joined
    done: Count = 0  # batches that were committed before, where a new trainer has to know
    owners: Count = 1  # of this server: owner k has the partitions p with p mod owners = k
    partitions: Count = 1  # of the feed, of all owners
    #: By partition, the least turn that this trainer may still get: partition, epoch and index.
    next: Counts = ()
    stale: Counts = ()  # held batches that are void
    others: Count = 0  # number of other trainers of this owner
    state_buffer: Count = 0  # bytes of a state buffer of the session, see state_buffers.py
    run: Count = 0  # of the ranks, for greetings of further owners


@message(FROM_SERVER, 2)
class Refused:
    """No session: an error's code and text."""

    code: Text
    text: Text


@message(FROM_SERVER, 5)
class Pulse:
    """Answer to Renew: describes, in words, what the feed waits for."""

    session: Count
    said: Count = 0  # messages of this connection before this one
    waiting: Text = ""


@message(FROM_SERVER, 6)
class Ended:
    """No more batches come: the feed is done (``code`` empty), or failed, or the server stops."""

    session: Count
    code: Text = ""
    text: Text = ""
    returns: Flag = False  # the server stops, and its next start goes on with the feed


@message(FROM_SERVER, 7)
class Unknown:
    """The server knows no such session; also the answer to Bye."""

    session: Count


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


@message(FROM_SERVER, 13)
class ServedShare:
    """The locator's answer to a Hello: the share that the server has, and where its workers are.

    A worker answers so where the trainer believes in another number of workers: without addresses.
    """

    feed: Text
    share: Count
    shares: Count
    partitions: Count  # of the whole feed
    server: Text  # names the server, which may have several addresses
    declaration: Map  # a digest of each part of its pipeline, by the part's name
    # By the number of the owner: its address, of which the host is that of the server
    # as the trainer has reached it.
    workers: Annotated[tuple[str, ...], list_of(check_text)]
    waiting: Text = ""  # why workers may not answer now


@message(FROM_SERVER, 10)
class Idle:
    """Nothing for these requests before some trainer acts.  They stand."""

    session: Count
    requests: Counts
    live: Counts = ()  # those of them at whose partition this trainer's lanes go on


@message(FROM_SERVER, 11)
class Over:
    """Nothing more of this epoch in this partition, and in others of the owner."""

    session: Count
    request: Count
    partition: Count
    epoch: Signed  # -1: nothing more at all
    also: Counts = ()


@message(FROM_SERVER, 12)
class LetGo:
    """The owner hands out nothing more: return the batches that wait to be used."""

    session: Count
