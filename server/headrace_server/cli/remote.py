"""Commands that ask running servers: those of ``--address``.

--address tcp://HOST:PORT, as for trainers; the servers that share a feed with commas between
"""

from __future__ import annotations

import json
import os
import time
from argparse import Namespace

from headrace_proto.address import check_addresses
from headrace_proto.clock import Deadline
from headrace_proto.credentials import load_keys
from headrace_proto.errors import (
    ConnectionLost,
    DeadlineExceeded,
    HeadraceError,
    ServerError,
    rewording,
)

from ..process.option import Option
from ..watch.statuses import ServerStatus, described_batches
from ..watch.verdict import store_faults
from . import exits
from .asking import RESTART_S, TIMEOUT_S, ServerAt, snapshot_of_all
from .frame import with_options
from .options import JSON
from .status_lines import lines

SERVERS = Option(
    "address",
    "text",
    "where trainers connect to the server; the servers that share a feed with commas between, by "
    "share",
    default="tcp://127.0.0.1:5557",
    metavar="ADDRESS",
)
KEYS = Option("keys", "path", "keys of a trainer, where the server has keys")


def askers(options: Namespace) -> list[ServerAt]:
    """Return once each server that the options name, with commas between."""
    keys = load_keys(options.keys)
    return [ServerAt(one, keys) for one in check_addresses("--address", options.address)]


def askers_of_all(options: Namespace) -> list[ServerAt]:
    """Return the servers that the options name; ValueError where others share their feeds.

    A feed that only some of its servers end or restart would be in two states at once.
    """
    servers = askers(options)
    shares = [server.status()["share"] for server in servers]
    known = len({index for index, _ in shares})
    for server, (index, count) in zip(servers, shares, strict=True):
        if count > known:
            raise ValueError(
                f"--address {options.address!r} names {known} of the {count} servers of the feed "
                f"({server.address} has share {index}/{count}), and the others would go on: give "
                "the addresses of all, with commas between them"
            )
    return servers


_LOOK_S = 0.3
#: Interval of the lines on what a drain waits for.
_SAY_S = 2.0
_FEED = Option("feed", "text", "the feed", metavar="FEED", positional=True)
_WAIT = Option("wait", "seconds", "how long that may take", default=RESTART_S, least=1)


@with_options(SERVERS, KEYS, Option("wait", "seconds", default=60.0))
def drain(options: Namespace) -> int:
    """Make a server hand out nothing more, and wait until trainers have committed their batches.
    Then headrace serve ends.  The exit code is 1 if some are uncommitted after the wait, or when
    the server ends.

    wait: how long to wait for commits
    """
    asked, faults = list[ServerAt](), list[str]()
    for one in askers(options):
        try:
            one.ask("drain")
            asked.append(one)
        except (HeadraceError, ValueError) as error:
            faults.append(str(error))
    code = _drained(asked, options.wait) if asked else exits.FAILED
    if faults:
        raise ServerError("\n".join(faults))
    return code


def _drained(servers: list[ServerAt], wait_s: float) -> int:
    """Wait until servers that drain have nothing out; print what came of it, return the code."""
    deadline = Deadline(wait_s, gap_s=TIMEOUT_S + _LOOK_S)
    say_at = time.monotonic() + _SAY_S
    seen: dict[str, str] = {}  # what was out, by server
    while True:
        out = {one.address: _out(one) for one in servers}
        seen |= {address: text for address, text in out.items() if text is not None}
        left = "; ".join(filter(None, out.values()))
        lost = "; ".join(filter(None, seen.values()))
        if not left and lost:
            print(f"the server has ended before all batches were committed: {lost}")
            return exits.FAILED
        if not left:
            ended = "the server has ended" if len(out) == 1 else "the servers have ended"
            print(f"drained: {ended if set(out.values()) == {None} else 'nothing is out'}")
            return exits.WELL
        if not deadline.left_s or time.monotonic() >= say_at:
            say_at = time.monotonic() + _SAY_S
            print(f"draining: {left}", flush=True)
        if not deadline.left_s:
            return exits.FAILED
        time.sleep(_LOOK_S)


def _out(asker: ServerAt) -> str | None:
    """Return which batches are in hand, or being stored; None: the server has ended."""
    try:
        return described_batches(asker.status()["feeds"])
    except ConnectionLost:
        return None


@with_options(_FEED, SERVERS, KEYS, Option("cancel", "flag", default=False))
def end(options: Namespace) -> None:
    """Close the input of a feed for good: rows that were read are still handed out, and then
    the loops of all trainers end normally.  A restart of the server does not open it again,
    headrace restart does.

    cancel: drop rows that were read and are in no batch yet
    """
    for asker in askers_of_all(options):
        asker.ask("end", feed=options.feed, cancel=options.cancel)
    print(f"feed {options.feed!r} reads no more: loops end when what was read is committed")


@with_options(_FEED, SERVERS, KEYS, Option("force", "flag", default=False), _WAIT)
def restart(options: Namespace) -> None:
    """Start a feed from its beginning, as if nothing was committed, and wait until it is open;
    with a state directory its state is replaced.  The exit code is 1, and nothing is done,
    while trainers use the feed, unless --force is given: they get FeedRewound then.  It is 1,
    too, where the feed fails as it opens, or is not open after the wait.

    force: also while trainers use it: their work is undone
    """
    deadline = Deadline(options.wait, gap_s=options.wait)
    servers = askers_of_all(options)
    for asker in servers:
        left_s = max(deadline.left_s, 1.0)
        asker.ask("restart", left_s, feed=options.feed, force=options.force)
    for asker in servers:
        _await_open(asker, options.feed, deadline, options.wait)
    print(f"feed {options.feed!r} starts from its beginning")


def _await_open(asker: ServerAt, feed: str, deadline: Deadline, wait_s: float) -> None:
    """Wait until a feed that is restarted is open; ServerError where it fails."""
    while True:
        with rewording(ServerError, f"feed {feed!r} is restarted, but not open: ", ConnectionLost):
            status = asker.status()
        seen = status["feeds"].get(feed)  # none while the workers have not begun to answer
        if seen is not None and seen["failure"]:
            raise ServerError(f"feed {feed!r} at {asker.address} has failed: {seen['failure'][1]}")
        if seen is not None and seen["state"] != "opening":
            return
        if not deadline.left_s:
            why = f"{status['why'] or 'it is opening'} at {asker.address}"
            raise DeadlineExceeded(
                f"feed {feed!r} is restarted, but not open after {wait_s:g} s: {why}"
            )
        time.sleep(_LOOK_S)


@with_options(SERVERS, KEYS, Option("feed", "text", metavar="NAME"), _WAIT)
def snapshot(options: Namespace) -> None:
    """Make a server store all of a feed's state as it is now, with every commit that was
    acknowledged.  The token that is printed, one line of JSON, is for connect(resume=…) and for
    headrace serve --resume.

    feed: optional where one feed is served
    """
    servers = [asker.snapshot for asker in askers_of_all(options)]
    print(json.dumps(snapshot_of_all(servers, options.feed, options.wait)))


@with_options(
    Option("sequence", "text", metavar="KEY", positional=True),
    SERVERS,
    KEYS,
    Option("feed", "text", absent="the only feed of segments", metavar="NAME"),
)
def inspect(options: Namespace) -> int:
    """Show where the sequence of a key is, as JSON: its partition, epoch and segment, and which
    trainer has it since when.  The exit code is 1 where it is not in flight.

    sequence: the key of a sequence
    feed: its feed
    """
    key, feed = os.fsencode(options.sequence), options.feed or ""
    answers = [asker.ask("inspect", key=key, feed=feed) for asker in askers(options)]
    found = [one for answer in answers for one in answer["found"]]
    print(json.dumps({**answers[0], "found": found}, indent=2))
    return exits.WELL if found else exits.FAILED


@with_options(SERVERS, KEYS, JSON)
def status(options: Namespace) -> int:
    """Show the state of a server and its bottleneck, of several one after the other.  The exit
    code is 1 where a server does not answer, it or one of its feeds has failed, or nothing can be
    committed.
    """
    servers = askers(options)
    seen = {one.address: one.seen() for one in servers}
    faults = [one for one in seen.values() if isinstance(one, str)]
    if len(faults) == len(seen):
        raise ServerError("\n".join(faults))
    if options.json:
        print(json.dumps(seen if len(seen) > 1 else seen[servers[0].address]))
    else:
        parts = {at: [one] if isinstance(one, str) else lines(one) for at, one in seen.items()}
        texts = ["\n".join([at, *of] if len(seen) > 1 else of) for at, of in parts.items()]
        print("\n\n".join(texts))
    return exits.FAILED if any(map(_has_failed, seen.values())) else exits.WELL


def _has_failed(status: ServerStatus | str) -> bool:
    """Return whether a server, or one of its feeds, has failed, or why it gave no status."""
    if isinstance(status, str) or store_faults(status):
        return True
    states = {feed["state"] for feed in status["feeds"].values()}
    return status["state"] == "failed" or "failed" in states
