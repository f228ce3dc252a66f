"""A way to a server that can be cut, made deaf in one direction, or slow.

    trainer ◄──► [ up: to the server ]      cut()    all connections end; new ones are let through
                 [ down: to the trainer ]   drop()   what goes one way is lost, until heal() cuts it
                                            slow()   each part waits before it goes on

Bytes that were lost leave a connection that means nothing any more, so healing ends it: what a
network does that was down for longer than TCP repeats itself.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time

__all__ = ["Proxy"]

_DELAY_S = 0.02


class Proxy:
    """One listener in front of one server."""

    def __init__(self, port: int) -> None:
        self._to = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._dropped = ""
        self._delay_s = 0.0
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True, name="chaos-proxy").start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self._closed:
                here, _ = self._listener.accept()
                try:
                    there = socket.create_connection(self._to, 1.0)
                except OSError:
                    here.close()
                    continue
                there.settimeout(None)
                with self._lock:
                    self._ends |= {here, there}
                pair = threading.Barrier(2)
                for way, ends in (("up", (here, there)), ("down", (there, here))):
                    arguments = (way, *ends, pair)
                    threading.Thread(target=self._carry, args=arguments, daemon=True).start()

    def _carry(
        self, way: str, source: socket.socket, sink: socket.socket, pair: threading.Barrier
    ) -> None:
        with contextlib.suppress(OSError):
            while part := source.recv(65536):
                if self._delay_s:
                    time.sleep(self._delay_s)
                if self._dropped != way:
                    sink.sendall(part)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(threading.BrokenBarrierError):
            pair.wait(5)
        with self._lock:
            self._ends.discard(source)
        source.close()

    def cut(self) -> None:
        with self._lock:
            for end in self._ends:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def drop(self, way: str) -> None:
        self._dropped = way

    def slow(self) -> None:
        self._delay_s = _DELAY_S

    def heal(self) -> None:
        """End the fault; connections that lost bytes end."""
        lost, self._dropped, self._delay_s = self._dropped, "", 0.0
        if lost:
            self.cut()

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
