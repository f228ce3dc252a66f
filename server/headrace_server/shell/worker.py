"""A worker process: its partitions make batches, and the router or the process itself leases them.

routed    channel to the router ─► orders ─► partitions ─► announcements
owner     the process leases its batches itself, see owner.py
"""

from __future__ import annotations

import logging
import resource
import select
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace_proto.channel import Channel
from headrace_proto.errors import ServerError

from ..pipeline.by_source import source_directory
from ..pipeline.forks import OwnProcess, let_go_in_children
from .child import ParentPipe
from .config import RunConfig
from .diary import Diary
from .owner import Owner
from .partitions import Life, Partitions
from .sheet import Sheet
from .worker_messages import FROM_ROUTER, FROM_WORKER, Up

__all__ = ["RoutedWorker", "main"]

_IDLE_MS = 1000
#: What a worker that the router listens to no more waits for its end.
_ALONE_S = 5.0
#: A router that starts at the same time is waited for; the supervisor's patience ends before.
_ROUTER_S = 600.0
#: Where memory runs out the kernel is to take a worker, which can be replaced, and not the router.
_OOM_SCORE = b"500"


class RoutedWorker:
    """A worker whose trainers are the router's."""

    def __init__(self, life: Life) -> None:
        who = b"%d-%d" % (life.worker, life.number)
        path = Path(life.config.directory) / "workers"
        self._channel = Channel.connect(path, [who], _ROUTER_S)
        self._partitions = Partitions(life, self._send)
        self._poller = select.poll()
        self._poller.register(self._channel, select.POLLIN)
        if self._partitions.stores.fileno() >= 0:
            self._poller.register(self._partitions.stores, select.POLLIN)
        self._send(Up(life.worker, life.number))

    def filenos(self) -> list[int]:
        """Numbers of files that a child of this process must not have."""
        return [self._channel.fileno()]

    def close(self) -> None:
        """Nothing is left to be done when the process ends."""

    def run(self) -> None:
        """Work until the process is ended."""
        partitions, poll = self._partitions, self._poller.poll
        while True:
            name = partitions.turn()
            if name is None:  # no batch comes with which answers could go along
                partitions.tell_kept(rests=False)
            heard = dict(partitions.rest(poll, _IDLE_MS) if name is None else poll(0))
            if partitions.stores.fileno() in heard:
                partitions.tell_committed()
            if self._channel.fileno() in heard:
                self._hear()
                continue
            if name is not None:
                partitions.work(name)
            partitions.tell_kept(rests=name is None)

    def _hear(self) -> None:
        for header, *payload in self._channel.receive():
            self._partitions.obey(FROM_ROUTER.decode(header), payload)
        if self._channel.ended:
            time.sleep(_ALONE_S)  # a router that died ends us too
            raise ServerError("the router has closed this worker's channel")

    def _send(self, message: object, *payload: bytes) -> None:
        self._channel.send([FROM_WORKER.encode(message), *payload])


def _bound_memory(most: int) -> None:
    """What this process may take for itself: slabs and mapped files do not count.  0: any."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "wb", 0) as score:
        score.write(_OOM_SCORE)
    if most:
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def main() -> None:
    """Entry of the process."""
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    pipe = ParentPipe()
    plain = pipe.read_config()
    config = RunConfig.from_plain(plain["run"])
    pipe.watch(takes_orders=config.has_owner)
    sys.path[:0] = [path for path in config.python_path if path not in sys.path]
    sys.path.append(str(source_directory(config.directory)))
    limit = plain["memory_bytes"]
    _bound_memory(limit)

    def passed(feed: str, rows: list[int]) -> None:
        pipe.tell("passed", feed=feed, rows=rows)

    def functions(feed: str, found: Any) -> None:
        pipe.tell("functions", feed=feed, functions=found)

    try:
        life = Life(
            config=config,
            worker=plain["worker"],
            number=plain["life"],
            diary=Diary(plain["diary"]),
            sheet=Sheet(plain["sheet"]),
            marks=plain["marks"],
            passed=passed,
            functions=functions,
        )
        worker = Owner(life, pipe, plain["begun"]) if config.has_owner else RoutedWorker(life)
        let_go_in_children(lambda: (*pipe.filenos, *worker.filenos()))
        pipe.tell("ready")
        with OwnProcess():
            worker.run()
        worker.close()
    except BaseException as error:
        if isinstance(error, BrokenPipeError):
            time.sleep(_ALONE_S)  # a router that died ends us too, and says why
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, MemoryError):
            text = f"it ran out of memory (worker_memory_bytes={limit or 'unbounded'}): {text}"
        pipe.tell("dying", text=text)
        traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    main()
