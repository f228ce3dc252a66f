"""Commands that ask running servers: those of ``--http``.

--http HOST:PORT, or a URL; the servers that share a feed with commas between
"""

from __future__ import annotations

import json
import os
import time
from argparse import Namespace
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import quote, urlsplit

from headrace_proto.clock import Deadline
from headrace_proto.errors import (
    ConnectionLost,
    DeadlineExceeded,
    HeadraceError,
    ServerError,
    rewording,
)

from ..process.option import Option
from ..watch.http import read_token
from ..watch.http_client import RESTART_S, TIMEOUT_S, HttpClient, snapshot_of_all
from ..watch.statuses import ServerStatus, described_batches
from ..watch.verdict import store_faults
from . import exits
from .frame import with_options
from .options import JSON
from .status_lines import lines

T = TypeVar("T")

_DEFAULT = "127.0.0.1:8080"
SERVERS = Option(
    "http",
    "text",
    "where the server serves HTTP: HOST:PORT or a URL; the servers that share a feed with commas "
    "between, by share",
    absent=_DEFAULT,
    metavar="HOST:PORT",
)
TOKEN = Option(
    "http_token_file", "path", "the file with the token, where the server has one", metavar="FILE"
)


def askers(options: Namespace) -> list[HttpClient]:
    """Return once each server that the options name, with commas between."""
    given = _DEFAULT if options.http is None else options.http
    path = getattr(options, TOKEN.name, None)
    token = None if path is None else read_token(path)
    urls = [_url(address.strip()).rstrip("/") for address in given.split(",")]
    return [HttpClient(url, token) for url in dict.fromkeys(urls)]


def askers_of_all(options: Namespace) -> list[HttpClient]:
    """Return the servers that the options name; ValueError where others share their feeds.

    A feed that only some of its servers end or restart would be in two states at once.
    """
    servers = askers(options)
    shares = [server.status()["share"] for server in servers]
    known = len({index for index, _ in shares})
    for server, (index, count) in zip(servers, shares, strict=True):
        if count > known:
            raise ValueError(
                f"--http {options.http or _DEFAULT!r} names {known} of the {count} servers "
                f"of the feed ({server.url} has share {index}/{count}), and the others would go "
                "on: give the addresses of all, with commas between them"
            )
    return servers


def _answers(
    servers: list[HttpClient], ask: Callable[[HttpClient], T]
) -> tuple[dict[HttpClient, T], str]:
    """Return the answers of the servers that give one, and the errors of the others."""
    found, faults = {}, []
    for one in servers:
        try:
            found[one] = ask(one)
        except (HeadraceError, ValueError) as error:
            faults.append(str(error))
    return found, "\n".join(faults)


def _url(given: str) -> str:
    """Return the URL of a server; ValueError unless it names a host, a port, and no more.

    A URL may leave the port out, as behind a proxy.
    """
    url = given if "://" in given else f"http://{given}"
    try:
        parts = urlsplit(url)
        named = parts.hostname and (url == given if parts.port is None else parts.port)
        more = parts.query or parts.fragment or parts.username is not None
        asks = parts.scheme in ("http", "https") and named and not more
    except ValueError:
        asks = False
    if not asks or not url.isprintable() or " " in url:
        raise ValueError(f"--http {given!r:.200} is neither HOST:PORT nor a URL with http://")
    # A server listens at these addresses; a request goes to this machine.
    for everywhere, here in (("0.0.0.0", "127.0.0.1"), ("[::]", "[::1]")):
        url = url.replace(f"//{everywhere}:", f"//{here}:")
    return url


_LOOK_S = 0.3
#: Interval of the lines on what a drain waits for.
_SAY_S = 2.0
_FEED = Option("feed", "text", "the feed", metavar="FEED", positional=True)
_WAIT = Option("wait", "seconds", "how long that may take", default=RESTART_S, least=1)


@with_options(SERVERS, TOKEN, Option("wait", "seconds", default=60.0))
def drain(options: Namespace) -> int:
    """Make a server hand out nothing more, and wait until trainers have committed their batches.
    Then headrace serve ends.  The exit code is 1 if some are uncommitted after the wait, or when
    the server ends.

    wait: how long to wait for commits
    """
    asked, faults = _answers(askers(options), lambda asker: asker.post("/drain"))
    code = _drained([*asked], options.wait) if asked else exits.FAILED
    if faults:
        raise ServerError(faults)
    return code


def _drained(servers: list[HttpClient], wait_s: float) -> int:
    """Wait until servers that drain have nothing out; print what came of it, return the code."""
    deadline = Deadline(wait_s, gap_s=TIMEOUT_S + _LOOK_S)
    say_at = time.monotonic() + _SAY_S
    seen: dict[str, str] = {}  # what was out, by server
    while True:
        out = [_out(asker) for asker in servers]
        seen |= {one.url: text for one, text in zip(servers, out, strict=True) if text is not None}
        left = "; ".join(filter(None, out))
        lost = "; ".join(filter(None, seen.values()))
        if not left and lost:
            print(f"the server has ended before all batches were committed: {lost}")
            return exits.FAILED
        if not left:
            ended = "the server has ended" if len(out) == 1 else "the servers have ended"
            print(f"drained: {'nothing is out' if out.count(None) < len(out) else ended}")
            return exits.WELL
        if not deadline.left_s or time.monotonic() >= say_at:
            say_at = time.monotonic() + _SAY_S
            print(f"draining: {left}", flush=True)
        if not deadline.left_s:
            return exits.FAILED
        time.sleep(_LOOK_S)


def _out(asker: HttpClient) -> str | None:
    """Return which batches are in hand, or being stored; None: the server has ended."""
    try:
        return described_batches(asker.status()["feeds"])
    except ConnectionLost:
        return None


@with_options(_FEED, SERVERS, TOKEN, Option("cancel", "flag", default=False))
def end(options: Namespace) -> None:
    """Close the input of a feed for good: rows that were read are still handed out, and then
    the loops of all trainers end normally.  A restart of the server does not open it again,
    headrace restart does.

    cancel: drop rows that were read and are in no batch yet
    """
    for asker in askers_of_all(options):
        asker.end(options.feed, options.cancel)
    print(f"feed {options.feed!r} reads no more: loops end when what was read is committed")


@with_options(_FEED, SERVERS, TOKEN, Option("force", "flag", default=False), _WAIT)
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
        asker.restart(options.feed, options.force, max(deadline.left_s, 1.0))
    for asker in servers:
        _await_open(asker, options.feed, deadline, options.wait)
    print(f"feed {options.feed!r} starts from its beginning")


def _await_open(asker: HttpClient, feed: str, deadline: Deadline, wait_s: float) -> None:
    """Wait until a feed that is restarted is open; ServerError where it fails."""
    while True:
        with rewording(ServerError, f"feed {feed!r} is restarted, but not open: ", ConnectionLost):
            status = asker.status()
        seen = status["feeds"].get(feed)  # none while the workers have not begun to answer
        if seen is not None and seen["failure"]:
            raise ServerError(f"feed {feed!r} at {asker.url} has failed: {seen['failure'][1]}")
        if seen is not None and seen["state"] != "opening":
            return
        if not deadline.left_s:
            why = status["why"] or "it is opening"
            raise DeadlineExceeded(
                f"feed {feed!r} is restarted, but not open after {wait_s:g} s: {why} at {asker.url}"
            )
        time.sleep(_LOOK_S)


@with_options(SERVERS, TOKEN, Option("feed", "text", metavar="NAME"), _WAIT)
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
    Option("feed", "text", absent="the only feed of segments", metavar="NAME"),
)
def inspect(options: Namespace) -> int:
    """Show where the sequence of a key is, as JSON: its partition, epoch and segment, and which
    trainer has it since when.  The exit code is 1 where it is not in flight.

    sequence: the key of a sequence
    feed: its feed
    """
    path = f"/inspect?key={quote(os.fsencode(options.sequence))}"
    if options.feed is not None:
        path += f"&feed={quote(os.fsencode(options.feed))}"
    servers = askers(options)
    for asker in servers:
        asker.status()  # which refuses the answers of strangers
    answers = [asker.get(path) for asker in servers]
    found = [one for answer in answers for one in answer["found"]]
    print(json.dumps({**answers[0], "found": found}, indent=2))
    return exits.WELL if found else exits.FAILED


@with_options(SERVERS, JSON)
def status(options: Namespace) -> int:
    """Show the state of a server and its bottleneck, of several one after the other.  The exit
    code is 1 where a server does not answer, it or one of its feeds has failed, or nothing can be
    committed.
    """
    servers = askers(options)
    seen = {one.url: one.seen() for one in servers}
    faults = [one for one in seen.values() if isinstance(one, str)]
    if len(faults) == len(seen):
        raise ServerError("\n".join(faults))
    if options.json:
        print(json.dumps(seen if len(seen) > 1 else seen[servers[0].url]))
    else:
        parts = {url: [one] if isinstance(one, str) else lines(one) for url, one in seen.items()}
        texts = ["\n".join([url, *of] if len(seen) > 1 else of) for url, of in parts.items()]
        print("\n\n".join(texts))
    return exits.FAILED if any(map(_has_failed, seen.values())) else exits.WELL


def _has_failed(status: ServerStatus | str) -> bool:
    """Return whether a server, or one of its feeds, has failed, or why it gave no status."""
    if isinstance(status, str) or store_faults(status):
        return True
    states = {feed["state"] for feed in status["feeds"].values()}
    return status["state"] == "failed" or "failed" in states
