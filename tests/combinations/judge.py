"""Serve, train and judge a group of feeds; a failure is a program of ten lines.

python -m tests.combinations FILE      runs such a program
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import headrace_server as hs
from headrace_server.process.rundir import sweep
from tests.combinations.declarations import Feed
from tests.combinations.laws import Case, resumed
from tests.combinations.runs import Draw, Place, Run
from tests.combinations.training import WAIT_S, Watch
from tests.integration.processes import Process, serve
from tests.located import unseen
from tests.patience import eventually
from tests.ports import free_port

__all__ = ["Draw", "Feed", "Place", "Run", "check", "failures"]


def check(place: Place, draws: list[Draw]) -> None:
    """AssertionError with a program for each feed that breaks a law."""
    found = failures(place, draws)
    assert not found, f"{len(found)} of {len(draws)} fail:\n\n" + "\n\n".join(found[:5])


def failures(place: Place, draws: list[Draw], again: bool = False) -> list[str]:
    """Train all of these feeds at once; return the texts of those that fail, with programs.

    A trainer that is back more than some seconds after the death of a worker may lose its batch.
    So where the machine may have been too busy, the feed is trained again, alone.
    """
    feeds = {f"feed-{i}": draw for i, draw in enumerate(draws)}
    cases = {name: Case(draw, place.partitions) for name, draw in feeds.items()}
    faults: dict[str, list[str]] = {name: [] for name in feeds}
    with (
        tempfile.TemporaryDirectory(
            prefix="combinations-", ignore_cleanup_errors=True
        ) as directory,
        _seen(place.remote),
    ):
        with _servers(place, feeds, Path(directory)) as servers:
            watches = _trained(feeds, servers.addresses, servers.ticks(place, len(feeds)))
            parted = {n: d for n, d in feeds.items() if d.run.parts and not watches[n].faults}
            rests = _trained(parted, servers.addresses, lambda: None, rest=True)
            servers.settle()
        tokens = {name: w.token for name, w in watches.items() if w.token and not w.faults}
        resumed_feeds = {name: feeds[name] for name in tokens}
        other = replace(place, workers=1 + place.workers % min(2, place.partitions))
        if resumed_feeds:
            with _servers(other, resumed_feeds, Path(directory), [*tokens.values()]) as servers:
                rests |= _trained(resumed_feeds, servers.addresses, lambda: None, rest=True)
    for name, watch in watches.items():
        case, own, draw = cases[name], faults[name], feeds[name]
        rest = rests.get(name)
        own += watch.faults
        case.since = watch.since
        if not own and not watch.run.parts:
            own += case.broken(place, watch.run, watch.taken)
        if own or rest is None:
            continue
        own += rest.faults
        if own:
            continue
        begun = [one for one in watch.taken if not one.later]
        for one in rest.taken:
            one.later, one.connection = True, one.connection + 1000
        if draw.run.after >= 0:
            own += case.broken(place, rest.run, rest.taken, begun)
        else:
            own += case.broken(place, rest.run, begun + rest.taken)
            own += resumed(draw, [one for one in watch.taken if one.later], rest.taken)
    found = []
    for name, texts in faults.items():
        draw = feeds[name]
        late = place.events and not again and any("StaleLease" in text for text in texts)
        if texts and not (late and not failures(place, [draw], again=True)):
            found.append(f"{draw.name}: {'; '.join(texts[:3])}\n\n{draw.program(place)}")
    return found


def _trained(
    feeds: dict[str, Draw],
    addresses: list[str],
    ticked: Callable[[], None],
    rest: bool = False,
) -> dict[str, Watch]:
    watches = {}
    for name, draw in feeds.items():
        run = draw.run
        if rest:
            run = replace(run, snapshot=0, parts=0, leaves=0, steers=None)
            if run.after >= 0:
                hold = min(run.hold, 0)
                run = replace(run, world=run.after, trainers=1, any_order=False, hold=hold)
        watches[name] = Watch(draw, addresses, name, run, ticked)
    threads = [thread for watch in watches.values() for thread in watch.threads()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return watches


@contextmanager
def _seen(remote: bool) -> Iterator[None]:
    """Hide the servers' memory from trainers of this process, as on another host."""
    with ExitStack() as stack:
        if remote:
            stack.enter_context(mock.patch("headrace.connection.connection.Attachment", unseen))
        yield


class Servers:
    """The servers of a group, in this process or as a process of their own."""

    def __init__(self, place: Place, feeds: dict[str, Draw], directory: Path) -> None:
        self._place, self._directory = place, directory
        self.pipelines = {name: draw.feed.pipeline() for name, draw in feeds.items()}
        self.running: list[hs.Server] = []
        self.process: Process | None = None
        self._feeds, self._threads = feeds, list[threading.Thread]()
        self._lives: dict[int, int] = {}
        self.faults: list[str] = []
        self._port = free_port() if place.outlives else 0

    @property
    def addresses(self) -> list[str]:
        if self._port:
            return [f"tcp://127.0.0.1:{self._port}"]
        return [server.address for server in self.running]

    def start(self, workers: int) -> None:
        """Start a server as a process, at the same address and with the same state."""
        text = "".join(f"    {n!r}: (\n        {d.feed}\n    ),\n" for n, d in self._feeds.items())
        (self._directory / "feeds.py").write_text(
            "import numpy as np\nfrom tests.combinations.declarations import Feed\n"
            f"feeds = {{\n{text}}}\n"
            "feeds = {name: feed.pipeline() for name, feed in feeds.items()}\n"
        )
        options = ["--partitions", str(self._place.partitions), "--workers", str(workers)]
        options += [
            "--drain-timeout",
            "2",
            "--state-dir",
            "state",
            "--bind",
            f"tcp://127.0.0.1:{self._port}",
        ]
        if self._place.copies:
            options += ["--cache-dir", "copy"]
        self.process, _ = serve(self._directory, "feeds.py:feeds", *options)

    def ticks(self, place: Place, feeds: int) -> Callable[[], None]:
        """Return what trainers call after each batch; it brings the events about."""
        lock, numbers = threading.Lock(), count(1)
        events = {after * feeds: what for after, what in place.events}

        def ticked() -> None:
            with lock:
                what = events.pop(next(numbers), None)
            if what == "worker":
                self._kill_worker()
            elif what is not None:
                thread = threading.Thread(target=self._again, args=(what,), name="event")
                self._threads.append(thread)
                thread.start()

        return ticked

    def _kill_worker(self) -> None:
        worker = len(self._lives) % self._place.workers
        life = self._lives.get(worker, 0)
        self._lives[worker] = life + 1
        name = f"worker-{worker}-{life}"
        os.kill(eventually(lambda: self.running[0].pids.get(name, 0)), signal.SIGKILL)

    def _again(self, what: str) -> None:
        assert self.process is not None
        if what == "restart":
            self.process.signal(signal.SIGTERM)
            self.process.finish(WAIT_S)
        else:
            self.process.kill()
        self.close()
        self.start(self._place.workers_after or self._place.workers)

    def settle(self) -> None:
        """Wait until all that was begun is over."""
        for thread in self._threads:
            thread.join()

    def close(self) -> None:
        if self.process is not None:
            self.process.__exit__(None, None, None)
            sweep(Path("/dev/shm"))


@contextmanager
def _servers(
    place: Place, feeds: dict[str, Draw], directory: Path, tokens: list[Any] | None = None
) -> Iterator[Servers]:
    servers = Servers(place, feeds, directory)
    options: dict[str, Any] = {"partitions": place.partitions, "workers": place.workers}
    if place.copies:
        options["cache_dir"] = directory / "copy"
    if tokens:
        options["resume"] = tokens
    if any(draw.run.snapshot for draw in feeds.values()):
        options["state_dir"] = directory / "state"
    with ExitStack() as stack:
        if place.outlives:
            stack.callback(servers.close)
            servers.start(place.workers)
        else:
            for index in range(place.servers):
                share = {"share": (index, place.servers)} if place.servers > 1 else {}
                server = hs.run(servers.pipelines, **options, **share)
                servers.running.append(stack.enter_context(server))
        yield servers
