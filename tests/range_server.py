"""An HTTP server of a directory: it answers by ranges, counts what it sends, and fails at times.

To clients of S3 it is a store, whose buckets are the directories there.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType

_MEETS_S = 20.0


class RangeServer:
    """``url`` is that of the directory.  Of the answers a share ``faults`` is a 503, no answer, or
    half an answer; each takes ``delay_s``, as those of a store far away.  With ``meets`` answers
    for files wait until those for so many of them were under way at once.

    ``due`` has the faults of the next answers: a status, with "429 7" one that asks to wait 7 s;
    "reset" (no answer), "cut" (the rest is missing), "short" (less is sent, and said to be all) or
    "stall" (nothing more comes before the server ends).  With a ``token`` all others are refused.
    """

    def __init__(
        self, directory: Path, faults: float = 0.0, seed: int = 0, delay_s: float = 0.0
    ) -> None:
        self.directory, self.faults, self.delay_s = directory, faults, delay_s
        self.sent: Counter[str] = Counter()  # bytes of content by name of a file
        self.requests = 0
        self.clients: list[str] = []  # of the requests for content: their names, and who signed
        self.under_way: list[tuple[str, str]] = []
        self.most_files: Counter[str] = Counter()  # by method, with answers under way at once
        self.failed: Counter[str] = Counter()
        self.due: list[str] = []
        self.token, self.tags, self.meets = "", True, 0
        self.ended = threading.Event()
        self._draw, self._lock = random.Random(seed), threading.Condition()
        self._server = _Threads(("127.0.0.1", 0), type("Handler", (_Handler,), {"store": self}))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )

    def fault(self) -> str:
        """Return the kind of the fault of an answer, or ""."""
        with self._lock:
            self.requests += 1
            kind = self.due.pop(0) if self.due else ""
            if self._draw.random() < self.faults:
                kind = self._draw.choice(("503", "reset", "cut"))
            self.failed[kind] += kind != ""
            return kind

    @contextmanager
    def counted(self, method: str, path: str) -> Iterator[None]:
        """Count an answer as under way."""
        with self._lock:
            self.under_way.append((method, path))
            files = {file for kind, file in self.under_way if kind == method}
            self.most_files[method] = max(self.most_files[method], len(files))
            self._lock.notify_all()
            if self.meets and "." in path:
                self._lock.wait_for(lambda: self.most_files[method] >= self.meets, _MEETS_S)
        try:
            yield
        finally:
            with self._lock:
                self.under_way.remove((method, path))

    def count(self, name: str, size: int) -> None:
        with self._lock:
            self.sent[name] += size

    def __enter__(self) -> RangeServer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Threads(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: RangeServer

    def do_HEAD(self) -> None:
        with self.store.counted(self.command, self.path):
            self._answer(with_content=False)

    def do_GET(self) -> None:
        with self.store.counted(self.command, self.path):
            self._answer(with_content=True)

    def _answer(self, with_content: bool) -> None:
        path = self.store.directory / self.path.strip("/")
        fault = self.store.fault()
        time.sleep(self.store.delay_s)
        if fault == "reset":
            self.close_connection = True
            return
        if self.store.token not in self.headers.get("Authorization", ""):
            fault = "403"
        code, _, wait = fault.partition(" ")
        if code.isdecimal() or not path.exists():
            self._head(int(code or 404), 0, wait=wait)
            return
        if path.is_dir():
            listed = "".join(f'<a href="{one.name}">x</a>' for one in sorted(path.iterdir()))
            self._head(200, len(listed))
            self.wfile.write(listed.encode() if with_content else b"")
            return
        status = path.stat()
        start, stop, code = 0, status.st_size, 200
        if found := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
            start, stop, code = int(found[1]), min(int(found[2]) + 1, stop), 206
        if fault == "short" and with_content:
            stop = (start + stop) // 2
        of = f"bytes {start}-{stop - 1}/{status.st_size}" if code == 206 else ""
        self._head(code, stop - start, f'"{status.st_mtime_ns}-{status.st_size}"', of=of)
        if not with_content:
            return
        sent = self.headers
        client = f"{sent.get('User-Agent', '')} {sent.get('Authorization', 'unsigned')}"
        self.store.clients.append(client)
        with path.open("rb") as file:
            file.seek(start)
            data = file.read(stop - start)
        if fault in ("cut", "stall"):
            data = data[: len(data) // 2]
            self.close_connection = True
        self.store.count(path.name, len(data))
        self.wfile.write(data)
        if fault == "stall":
            self.wfile.flush()
            self.store.ended.wait()

    def _head(self, code: int, size: int, tag: str = "", wait: str = "", of: str = "") -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(size))
        if wait:
            self.send_header("Retry-After", wait)
        if tag:
            if self.store.tags or self.command == "HEAD":
                self.send_header("ETag", tag)
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Last-Modified", "Thu, 01 Jan 1970 00:00:00 GMT")
        if of:
            self.send_header("Content-Range", of)
        self.end_headers()

    def handle(self) -> None:
        with suppress(ConnectionError):  # a client that was killed
            super().handle()

    def log_message(self, *_: object) -> None:
        """Nothing."""
