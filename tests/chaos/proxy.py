"""A way to a server that can be cut, made deaf in one direction, or slow.

It is at another loopback address than the server, at the same ports: those of the locator and of
the workers, which a trainer reaches at the host at which it has reached the locator.

    trainer ◄──► [ up: to the server ]      cut()    all connections end; new ones are let through
                 [ down: to the trainer ]   drop()   what goes one way is lost, until heal() cuts it
                                            slow()   each part waits before it goes on

Bytes that were lost leave a connection that means nothing any more, so healing ends it: what a
network does that was down for longer than TCP repeats itself.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
import threading
import time
from typing import Self

from tests.located import workers_at

__all__ = ["Proxy", "proxy_of"]

_DELAY_S = 0.02
_HOSTS = itertools.count(random.SystemRandom().randrange(1, 1 << 15))


def proxy_of(address: str, feed: str = "") -> Proxy:
    """Return a proxy before a server that runs, with its workers."""
    ways = address, *workers_at(address, feed=feed)
    return Proxy(*(int(way.rpartition(":")[2]) for way in ways))


class Proxy:
    """The listeners of one server."""

    def __init__(self, port: int, *workers: int) -> None:
        """``workers``: their ports."""
        number = next(_HOSTS)  # an address that nothing else of this process uses
        host = f"127.{64 + os.getpid() % 128}.{number >> 8 & 255}.{number & 255}"
        self._listeners = {p: socket.create_server((host, p)) for p in (port, *workers)}
        self._ends: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._dropped = ""
        self._delay_s = 0.0
        self.address = f"tcp://{host}:{port}"
        for to, listener in self._listeners.items():
            accepting = threading.Thread(target=self._accept, args=(to, listener), daemon=True)
            accepting.name = "chaos-proxy"
            accepting.start()

    def _accept(self, port: int, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while not self._closed:
                here, _ = listener.accept()
                if (there := self._reached(port)) is None:
                    here.close()
                    return
                with self._lock:
                    self._ends |= {here, there}
                pair = threading.Barrier(2)
                for way, ends in (("up", (here, there)), ("down", (there, here))):
                    arguments = (way, *ends, pair)
                    threading.Thread(target=self._carry, args=arguments, daemon=True).start()

    def _reached(self, port: int) -> socket.socket | None:
        """Connect to the server, once it listens; return None if the proxy is closed before.

        A trainer gives up at what breaks off every connection for 5 s, and a server that starts on
        a busy machine takes longer.
        """
        while not self._closed:
            with contextlib.suppress(OSError):
                there = socket.create_connection(("127.0.0.1", port), 1.0)
                there.settimeout(None)
                return there
            time.sleep(0.02)
        return None

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
        for listener in self._listeners.values():
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
