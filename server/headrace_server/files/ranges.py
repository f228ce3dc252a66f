"""Files as they are read: local ones are opened, ranges of remote ones are fetched when wanted.

    ranges ─► blocks ─┬─ kept ───────────────────────────────────────────────► bytes
                      ├─ coming ──────────────────────────────┐
                      └─ others ─► local copy, or requests, ──┴─► kept, then ──┘
                                   32 at once

A file has blocks of 64 KiB.  A request brings at most 1 MiB, of which about half is wanted at
least, and one that fails is made again.  Callers say early which ranges they will read, so a read
mostly finds its blocks.  All sources of a process share the blocks that were used (or came) last,
``remote_cache_bytes`` in all, and what ``shuffle(blocks=)`` mixes; the requests under way and the
rows at hand are beside that.
"""

from __future__ import annotations

import io
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from itertools import count
from operator import add, itemgetter
from typing import Any, BinaryIO, Final, NamedTuple, cast

import numpy as np

from headrace_proto.errors import FilesMissing

from .durable_file import opening
from .extras import require
from .local_copy import LocalCopy
from .manifest import DataFile, check_local, check_remote, gone, is_remote, reached, system_of
from .s3 import s3_range

#: Bytes of a block.  To fetch so many takes no longer than the round trip of a request.
BLOCK: Final = 1 << 16
#: Maximum number of blocks of a request.
_MOST_BLOCKS: Final = 16
#: Maximum bytes of a request.
REQUEST_BYTES: Final = _MOST_BLOCKS * BLOCK
#: Number of requests at once: of scattered records some hundred come in a second.
_AT_ONCE = 32
#: Bytes that a reader requests ahead: 16 requests of 1 MiB, or 256 scattered blocks.
AHEAD_BYTES: Final = 1 << 24
#: Seconds after which a request without an answer has failed.
_PATIENCE_S = 30.0
#: Seconds for which a file counts as unchanged.
_TRUSTED_S = 60.0

Range = tuple[DataFile, int, int]
_Block = tuple[DataFile, int]
_Blocks = Mapping[_Block, bytes]


# ── One request.


_checked: dict[DataFile, float] = {}
_one_link = threading.Lock()


def _check(file: DataFile) -> None:
    """Raise FilesMissing where a file has changed; it counts as unchanged for a minute."""
    now = time.monotonic()
    if _checked.get(file, now - _TRUSTED_S) <= now - _TRUSTED_S:
        if is_remote(file.path):
            check_remote(file)
        else:
            open_stream(file).close()
        _checked[file] = now


def _tagged(file: DataFile) -> Callable[..., Any] | None:
    """Return the request whose answer names the version of the file; None where none does."""
    if "::" in file.path or not file.stamp.endswith('"'):
        return None
    system, _ = system_of(file.path)
    protocol = system.protocol if isinstance(system.protocol, str) else system.protocol[0]
    return _TAGGED.get(protocol) if system.async_impl else None


def _read(file: DataFile, start: int, stop: int) -> bytes | memoryview:
    (system, path), tag = system_of(file.path), file.stamp
    data: bytes | memoryview
    given = {"timeout": _PATIENCE_S} if system.async_impl else {"cache_type": "none"}
    if tagged := _tagged(file):
        ours = tagged is _s3_range
        found = s3_range(system, path, start, stop, _PATIENCE_S) if ours else None
        if found is None:
            sync = require("fsspec.asyn", "server", file.path).sync
            asked = f"bytes={start}-{stop - 1}"
            found = sync(system.loop, tagged, system, path, asked, **given)
        data, tag = found
    else:
        # A link of a chain has one handle of the next, and may fetch a whole file first.
        with _one_link if "::" in file.path else nullcontext():
            data = system.cat_file(path, start=start, end=stop, **given)
    if not tag:
        _check(file)
    if tag not in ("", file.stamp) or len(data) != stop - start:
        _checked.pop(file, None)
        _check(file)
        raise OSError(f"{len(data)} bytes of version {tag} came in place of {stop - start}")
    return data


async def _http_range(system: Any, url: str, asked: str) -> tuple[bytes, str]:
    """Return bytes of an HTTP server, and the ETag of its answer."""
    session, given = await system.set_session(), dict(system.kwargs)
    headers = {"Accept-Encoding": "identity", **given.pop("headers", {}), "Range": asked}
    async with session.get(system.encode_url(url), headers=headers, **given) as answer:
        system._raise_not_found_for_status(answer, url)
        return await answer.read(), answer.headers.get("ETag", "")


async def _s3_range(system: Any, path: str, asked: str) -> tuple[bytes, str]:
    """Return bytes of an object, and the ETag of its answer."""
    bucket, key, version = system.split_path(path)
    given = {"VersionId": version} if version else {}
    answer = await system._call_s3("get_object", Bucket=bucket, Key=key, Range=asked, **given)
    async with answer["Body"] as body:
        return await body.read(), answer.get("ETag", "")


#: Requests of stores whose answers name the version of the file: none of another one is taken.
_TAGGED: Final = {"http": _http_range, "https": _http_range, "s3": _s3_range}


# ── The blocks of a process.


class _Needs(NamedTuple):
    """The needs of a reader, or those of all together."""

    kept: int = 0  # bytes of blocks beside those of others: blocks that came first go first
    at_random: int = 0  # 1 where it reads single rows
    ranged: int = 0  # bytes of its files


class _Cache:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[_Block, bytes] = OrderedDict()
        self._coming: dict[_Block, Future[_Blocks]] = {}
        self._bytes, self.most_bytes = 0, 1 << 28
        self.needs = _Needs()
        self._pool: ThreadPoolExecutor | None = None  # while requests are under way
        self.copy: LocalCopy | None = None
        #: Bytes of blocks by where they came from.
        self.came = {"store": 0, "disk": 0}

    def serve(self, reader: object, needs: _Needs) -> None:
        """Add the needs of a reader, as long as it is there."""
        self._change(needs)
        weakref.finalize(reader, self._change, _Needs(*(-need for need in needs)))

    def _change(self, by: _Needs) -> None:
        self.needs = _Needs(*map(add, self.needs, by))

    def begin(
        self, ranges: Iterable[Range], later: bool = False
    ) -> tuple[dict[_Block, bytes], set[Future[_Blocks]], bool]:
        """Request blocks, in the order of the ranges; return those that are here, the requests for
        the others, and whether all of these were under way.

        ``later``: those that are here stay as long as if they came now.
        """
        here: dict[_Block, bytes] = {}
        order = count()
        coming: set[Future[_Blocks]] = set()
        missing: dict[DataFile, dict[int, int]] = {}  # numbers of blocks, and which is the first
        in_turn = self.needs.kept
        with self._lock:
            for file, start, stop in ranges:
                for number in _numbers(start, stop):
                    block = file, number
                    if (data := self._kept.get(block)) is not None:
                        if later or not in_turn:
                            self._kept.move_to_end(block)
                        here[block] = data
                    elif (request := self._coming.get(block)) is not None:
                        coming.add(request)
                    else:
                        missing.setdefault(file, {}).setdefault(number, next(order))
            if missing and self._pool is None:
                self._pool = ThreadPoolExecutor(_AT_ONCE, "headrace-ranges")
            runs = [
                (min(map(numbers.__getitem__, run)), file, run)
                for file, numbers in missing.items()
                for run in _runs(sorted(numbers))
            ]
            for _, file, run in sorted(runs, key=itemgetter(0)):
                assert self._pool is not None
                request = self._pool.submit(self._fetch, file, run)
                self._coming.update(((file, number), request) for number in run)
                coming.add(request)
        return here, coming, not missing

    def _fetch(self, file: DataFile, run: Sequence[int]) -> _Blocks:
        blocks: dict[_Block, bytes] = {}
        copied, requested = 0, 0
        try:
            if self.copy is not None:
                there = self.copy.read(file, run)
                blocks.update(((file, number), data) for number, data in there.items())
                copied = sum(map(len, there.values()))
            missing = [number for number in run if (file, number) not in blocks]
            for some in _runs(missing) if missing else ():
                data = _requested(file, some)
                requested += len(data)
                if self.copy is not None:
                    self.copy.write(file, some[0], data)
                for i, at in enumerate(range(0, len(data), BLOCK)):
                    blocks[file, some[0] + i] = bytes(data[at : at + BLOCK])
            return blocks
        finally:
            with self._lock:
                self.came["disk"] += copied
                self.came["store"] += requested
                for number in run:
                    del self._coming[file, number]
                for block in blocks.keys() - self._kept.keys():
                    self._kept[block] = blocks[block]
                    self._bytes += len(blocks[block])
                most = self.most_bytes + self.needs.kept
                while self._bytes > most:
                    self._bytes -= len(self._kept.popitem(last=False)[1])
                if not self._coming and self._pool is not None:  # its threads end
                    self._pool.shutdown(wait=False)
                    self._pool = None


_cache = _Cache()


def _requested(file: DataFile, run: Sequence[int]) -> bytes | memoryview:
    """Return the blocks of a request."""
    if _tagged(file) is None:
        _check(file)
    start, stop = run[0] * BLOCK, min((run[-1] + 1) * BLOCK, file.size)
    what = f"read (bytes {start} … {stop - 1})"
    data = reached(file.path, what, partial(_read, file, start, stop))
    if data is None:
        raise gone(file)
    return data


def keep_at_most(size: int) -> None:
    """Set the bound of the bytes that this process keeps."""
    _cache.most_bytes = size


def copy_to(directory: str, most_bytes: int, sharers: int) -> None:
    """Keep a copy on a disk, too, which so many processes share."""
    _cache.copy = LocalCopy(directory, most_bytes, sharers, BLOCK)


def came() -> dict[str, int]:
    """Return the bytes that have come from the stores, and from the disk."""
    return {**_cache.came}


def keep_more(reader: object, size: int) -> None:
    """Keep so many more bytes, while a reader is there that uses them in turn."""
    _cache.serve(reader, _Needs(kept=size))


def read_at_random(reader: object) -> None:
    """Let ranges be expected far ahead, so that more of them are near, while a reader is there."""
    _cache.serve(reader, _Needs(at_random=1))


def _numbers(start: int, stop: int) -> range:
    """Return the numbers of the blocks of a range."""
    return range(start // BLOCK, -(-stop // BLOCK) if stop > start else 0)


def _runs(numbers: Sequence[int]) -> Iterator[list[int]]:
    """Yield the blocks of each request."""
    run = [numbers[0]]
    for number in numbers[1:]:
        wide = max(len(run) + 2, 2 * len(run) - 2)
        if number - run[0] >= min(wide, _MOST_BLOCKS):
            yield run
            run = []
        run.append(number)
    yield run


def expect(ranges: Iterable[Range], once: bool = False) -> None:
    """Begin to fetch ranges that will be read; ``once``: each of them only once."""
    _cache.begin(ranges, later=once)


def with_ends(files: Sequence[DataFile], size: int) -> Iterator[DataFile]:
    """Yield files; the first and last bytes of remote ones are requested before their turn."""
    for i, file in enumerate(files):
        if i % _AT_ONCE == 0:
            near = [one for one in files[i : i + 2 * _AT_ONCE] if is_remote(one.path)]
            expect((one, 0, min(size, one.size)) for one in near)
            expect((one, max(0, one.size - size), one.size) for one in near)
        yield file


def load(ranges: Iterable[Range]) -> _Blocks:
    """Return the blocks of ranges."""
    blocks, coming, _ = _cache.begin(ranges)
    for request in coming:
        blocks.update(request.result())
    return blocks


def _pieces(blocks: _Blocks, file: DataFile, start: int, stop: int) -> Iterator[memoryview]:
    for number in _numbers(start, stop):
        at = number * BLOCK
        yield memoryview(blocks[file, number])[max(start - at, 0) : stop - at]


# ── Files of a source, as one range of addresses.


class RangedFiles:
    """File i has its bytes from address ``bases[i]`` on, as in ``MappedFiles``."""

    def __init__(self, files: Sequence[DataFile]) -> None:
        self.files = tuple(files)
        sizes = np.array([file.size for file in files], np.int64)
        _cache.serve(self, _Needs(ranged=int(sizes.sum())))
        rooms = (sizes // BLOCK + 1) * BLOCK  # more than the size: no range joins two files
        self.bases = np.cumsum(rooms) - rooms

    def bytes_at(self, starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return a buffer that has these ranges, and where each begins in it."""
        if not starts.size:
            return np.empty(0, np.uint8), starts
        order = np.argsort(starts, kind="stable")
        ordered, reach = starts[order], np.maximum.accumulate(stops[order])
        apart = np.concatenate([[True], ordered[1:] > reach[:-1]])
        first = np.flatnonzero(apart)
        begins, ends = ordered[first], reach[np.append(first[1:], starts.size) - 1]
        ranges = self._ranges(begins, ends)
        blocks = load(ranges)
        data = b"".join(piece for one in ranges for piece in _pieces(blocks, *one))
        shift = np.cumsum(ends - begins) - ends  # from the address to the place in the buffer
        at = np.empty_like(starts)
        at[order] = ordered + shift[np.cumsum(apart) - 1]
        return np.frombuffer(data, np.uint8), at

    def expect(self, starts: np.ndarray, stops: np.ndarray) -> int:
        """Begin to fetch ranges, AHEAD_BYTES at most, or more where readers read far ahead, or one;
        return the number of these ranges."""
        first, last = starts // BLOCK, (stops - 1) // BLOCK
        blocks = last - first
        blocks[np.unique(first, return_index=True)[1]] += 1
        most, (kept, at_random, ranged) = AHEAD_BYTES, _cache.needs
        if at_random:
            most = kept + _cache.most_bytes
            if ranged > most:  # what comes is used before as much again has displaced it
                most = max(_AT_ONCE * BLOCK, most // (3 * at_random))
        some = max(1, int(np.cumsum(blocks).searchsorted(most // BLOCK, "right")))
        expect(self._ranges(starts[:some], stops[:some]))
        return some

    def _ranges(self, starts: np.ndarray, stops: np.ndarray) -> list[Range]:
        numbers = np.searchsorted(self.bases, starts, "right") - 1
        bases = self.bases[numbers]
        bounds = zip(
            numbers.tolist(), (starts - bases).tolist(), (stops - bases).tolist(), strict=True
        )
        return [(self.files[i], start, stop) for i, start, stop in bounds]


# ── One file, as a stream.


class RemoteFile(io.RawIOBase):
    """A remote file; while it is read forward, its next bytes are requested ahead.

    They are four times what is read at once, and after each read twice as many as before.
    ``in_order``: whether it may be read forward at all.
    """

    in_order = True

    def __init__(self, file: DataFile) -> None:
        if not file.size or _tagged(file) is None:
            _check(file)
        self._file = file
        self._at, self._end = 0, -1  # the place, and the end of the last read
        self._ahead, self._until = 0, 0  # bytes to request ahead, and the end of those requested

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, to: int, whence: int = io.SEEK_SET) -> int:
        self._at = to + (0, self._at, self._file.size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, or its beginning at the end of the file."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, fewer at the end of the file; all of them without a size."""
        start, stop = self._at, self._file.size
        stop = stop if size < 0 else min(start + size, stop)
        if start >= stop:
            return b""
        wanted = self._file, start, stop
        forward = self.in_order and 0 <= self._end <= start <= self._end + BLOCK
        more = max(2 * self._ahead, 4 * (stop - start))
        self._ahead = min(more, AHEAD_BYTES) if forward else 0
        known = _cache.begin([wanted])[2]  # before those ahead
        # Where other reads took the memory of blocks ahead, they are requested once more.
        self._until = max(self._until, stop) if forward and known else stop
        if self._until - stop < self._ahead // 2:
            begin, self._until = self._until, min(stop + self._ahead, self._file.size)
            expect([(self._file, begin, self._until)])
        self._at = self._end = stop
        return b"".join(_pieces(load([wanted]), *wanted))


def open_stream(file: DataFile) -> BinaryIO:
    """Return the file as a seekable binary stream."""
    try:
        if is_remote(file.path):
            return cast(BinaryIO, io.BufferedReader(RemoteFile(file), BLOCK))
        with opening(file.path):
            stream = open(file.path, "rb")  # noqa: SIM115
    except FilesMissing:  # is a FileNotFoundError itself
        raise
    except FileNotFoundError:
        raise gone(file) from None
    except OSError as error:  # the server's user may not read it, say
        raise FilesMissing(f"{file.path} can not be opened: {error.strerror or error}") from None
    try:
        check_local(file, os.fstat(stream.fileno()))
    except BaseException:
        stream.close()
        raise
    return stream
