"""A whole worker in a thread, and trainers that speak to it message by message."""

from __future__ import annotations

import os
import threading
from collections import deque
from pathlib import Path
from typing import Any

import zmq

from headrace_proto import limits
from headrace_proto.messages import FROM_SERVER, FROM_TRAINER, Get, Hello, Pulse, Renew, Step
from headrace_server.process.config import FeedConfig, RunConfig
from headrace_server.process.worker_diary import DiaryFile
from headrace_server.worker.owner import Owner
from headrace_server.worker.partitions import Life

from ...patience import PATIENCE_S, eventually

FEED = "feed"


class _Pipe:
    """The end of a worker's pipe to its supervisor, in this process."""

    def __init__(self) -> None:
        self.orders: deque[dict[str, Any]] = deque()
        self.reports: list[tuple[str, dict[str, Any]]] = []
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)

    def fileno(self) -> int:
        return self._wake

    def order(self, what: str, **values: Any) -> None:
        self.orders.append({"order": what, **values})
        os.eventfd_write(self._wake, 1)

    def read_orders(self) -> list[dict[str, Any]]:
        os.eventfd_read(self._wake)
        return [self.orders.popleft() for _ in range(len(self.orders))]

    def report(self, kind: str, **values: Any) -> None:
        self.reports.append((kind, values))


class _Owner(Owner):
    """An owner in a process that is not its own."""

    abandoned = False  # whether it would have ended the process amid a step

    def abandon_step(self) -> None:
        self.abandoned = True


class Worker:
    """One life of the only worker of a server with one feed.  ``with`` ends it."""

    def __init__(
        self, directory: Path, pipeline: Any, partitions: int = 1, life: int = 0, **options: Any
    ) -> None:
        self.directory = directory
        feed = FeedConfig(FEED, pipeline.declaration(), (), partitions)
        options = {"lease_ttl_s": 30.0, "max_credits": 64, **options}
        self._address = f"ipc://{directory}/worker-{life}"
        binds = (self._address,)
        config = RunConfig((feed,), str(directory), binds, workers=1, term=life + 1, **options)
        diary = directory / "diary"
        if not life:
            self._diary = DiaryFile(diary)
        self.pipe = _Pipe()
        begun = {"paused": False, "failed": {}, "all_opened": None, "before": {}}
        begin = Life(config, 0, life, str(diary), binds, {FEED: {}}, begun)
        self.owner = _Owner(begin, self.pipe)  # type: ignore[arg-type]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._context = zmq.Context()
        self._peers: dict[bytes, zmq.Socket[bytes]] = {}  # by the name of a connection
        self.fault: BaseException | None = None

    def _run(self) -> None:
        try:
            self.owner.run()
        except BaseException as error:
            self.fault = error
            raise

    def __enter__(self) -> Worker:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End it, with nothing said to anybody; what it has not stored is lost."""
        self.owner._switchboard.stopping = True
        self.join()
        stores = self.owner._partitions.stores
        stores._gathered.clear()
        stores._record = None
        for part in stores._parts:
            part.journal.close()
        for number in (*stores._locks, stores.fileno()):
            os.close(number)
        self.owner._channels.close()
        self.owner._socket.close()
        self._context.destroy(linger=0)

    def join(self) -> None:
        """Wait until its loop has ended."""
        self._thread.join(PATIENCE_S)

    def send(self, connection: bytes, message: Any, *frames: bytes) -> None:
        peer = self._peers.get(connection)
        if peer is None:
            peer = self._peers[connection] = self._context.socket(zmq.DEALER)
            peer.connect(self._address)
        peer.send_multipart([FROM_TRAINER.encode(message), *frames])

    def receive(self, connection: bytes) -> tuple[Any, bytes]:
        """Return the next message for a connection, and the bytes of its batch."""
        peer = self._peers[connection]
        eventually(lambda: peer.poll(10) or self.fault)
        assert self.fault is None
        header, *frames = peer.recv_multipart()
        return FROM_SERVER.decode(header), b"".join(frames)


class Trainer:
    """A trainer on another host: its batches come with their bytes."""

    def __init__(self, worker: Worker, nonce: bytes, **more: Any):
        self.worker, self.nonce, self.more = worker, nonce, more
        self.connections = self.said = self.request = 0
        self.session = 0
        self.committed: set[int] = set()  # tokens, as far as they are answered

    @property
    def connection(self) -> bytes:
        return b"%s-%d" % (self.nonce, self.connections)

    def hello(self, batches: Any = (), gets: Any = ()) -> Hello:
        """Return the greeting of a new connection."""
        self.connections += 1
        self.said = 0
        return Hello(
            limits.PROTOCOL,
            "test",
            FEED,
            self.nonce,
            connection=self.connections,
            batches=tuple(batches),
            gets=tuple(gets),
            **self.more,
        )

    def greet(self, batches: Any = (), gets: Any = (), frames: Any = ()) -> Any:
        """Greet by a new connection; return the Welcome, or the refusal."""
        hello = self.hello(batches, gets)
        while True:
            self.worker.send(self.connection, hello, *frames)
            answer = self.hear()
            if not isinstance(answer, Pulse):
                self.session = getattr(answer, "session", 0)
                return answer

    def say(self, message: Any, *frames: bytes) -> None:
        self.said += 1
        self.worker.send(self.connection, message, *frames)

    def step(self, gets: Any = (), **more: Any) -> None:
        """Ask for a batch of each of these partitions, in their epochs, and say what is done."""
        wanted = []
        for partition, epoch in gets:
            self.request += 1
            wanted.append(Get(self.request, partition, epoch))
        self.say(Step(self.session, gets=tuple(wanted), **more))

    def beat(self) -> None:
        """Send a heartbeat, after which answers come at once."""
        self.say(Renew(self.session, self.said))

    def hear(self) -> Any:
        return self.worker.receive(self.connection)[0]

    def hear_all(self, kind: type, *others: type) -> Any:
        """Return the next message of a kind; those before it are of these other kinds."""
        while not isinstance(message := self.hear(), kind):
            assert isinstance(message, (Pulse, *others)), message
        return message
