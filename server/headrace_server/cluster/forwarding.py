"""Hands the records of a server's stores on to the directory, many at a time.

Mirror of each partition ══ Unix socket ══► Forwarder ── one call for all that wait ──► directory
                         ◄─ it is there ───       ◄─────────────────────────────
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait

import msgpack

from ..state.mirror import WANTED

Message = tuple[tuple[str, int], bool, list[bytes]]


class Forwarder:
    """One thread, which asks the directory by ``keep``; ``failed`` is called where that raises."""

    def __init__(
        self,
        path: str,
        keep: Callable[[Sequence[Message]], Sequence[bool]],
        failed: Callable[[BaseException], object],
    ) -> None:
        self.path = path
        self._keep = keep
        self._failed = failed
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(128)
        self._ends, self._end = os.pipe()
        self._thread = threading.Thread(target=self._run, name="headrace-forwarder", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        stores: list[Connection] = []
        try:
            while self._ends not in (ready := wait([self._ends, self._listener, *stores])):
                if self._listener in ready:
                    stores.append(Connection(self._listener.accept()[0].detach()))
                asked: list[tuple[Connection, Message]] = []
                for store in stores[:]:
                    if store in ready:
                        try:
                            feed, partition, whole, records = msgpack.unpackb(store.recv_bytes())
                            asked.append((store, ((feed, partition), whole, records)))
                        except (EOFError, OSError):  # a worker has ended
                            stores.remove(store)
                            store.close()
                self._answer(asked)
        except BaseException as error:
            self._failed(error)
        finally:
            for store in stores:
                store.close()
            self._listener.close()

    def _answer(self, asked: Sequence[tuple[Connection, Message]]) -> None:
        kept = self._keep([message for _, message in asked]) if asked else ()
        for (store, _), there in zip(asked, kept, strict=True):
            with contextlib.suppress(OSError):
                store.send_bytes(b"" if there else WANTED)

    def close(self) -> None:
        """End the thread, after the stores."""
        os.write(self._end, b".")
        self._thread.join()
        os.close(self._end)
        os.close(self._ends)
