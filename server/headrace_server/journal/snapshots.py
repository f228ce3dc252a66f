"""Snapshots of feeds: copies of a feed's whole state, each as of one moment.

    state directory: snapshots/FEED/ID/     snapshot.json   feed, number, term, checksums
                                            feed.json       the declaration of the feed
                                            K.journal       partition K
    anywhere else:   URL/FEED/ID/           the same, where copies are wanted
                     URL/FEED/ID/I-of-N/    … of share I, where N servers share the feed

A snapshot that is being made lies in ``ID.part``; the final name means that it is whole.  At a URL
a snapshot is whole once its ``snapshot.json`` is there, which is written last.

Snapshots of a feed are numbered as they are made, and the number is their order: the time in a name
is for people, since clocks are set back.

Only the newest stay, so that they do not fill the disk, and the one that the feed went on from: a
checkpoint that names another can not be resumed any more.  A snapshot stays until its token is
returned.

Servers that share a feed each keep their share of a snapshot, all under one name.  Once a trainer
knows that every one has its share, older ones may be forgotten.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from headrace_proto.errors import ServerError
from headrace_proto.placement import WHOLE, Share
from headrace_proto.token import SNAPSHOT, Token, new_snapshot

from ..files.durable_file import read_json, sync_directory, usable, whole, write_durably, writing
from ..files.extras import filesystem
from ..pipeline.declaration import Plain
from ..process.settings import KEEP_SNAPSHOTS
from .feed_directory import SHARE, SUFFIX

logger = logging.getLogger("headrace.server")

_FORMAT = 4
#: In the state of a feed: how often it was taken back, and to which snapshot.
GENERATION = "generation.json"
LEAF = "snapshot.json"
PART = ".part"
#: The file that says that every server of the feed has its share of a snapshot.
SETTLED = "SETTLED"
#: The directory of one share at a URL.
_SHARE_OF = re.compile(r"([0-9]{1,4})-of-([0-9]{1,4})")
_REMEDY = "make room there, or keep fewer snapshots (keep_snapshots)"


class SnapshotDamaged(ServerError):
    """A snapshot differs from the one that was stored."""


class Shelf:
    """The snapshots of one state directory, and their copies at a URL.

    ``keep`` is how many of each feed stay; the oldest go first.  0: all.  ``share`` is that of the
    server, and ``origin`` names the servers whose snapshots ``newest`` returns.
    """

    def __init__(
        self,
        state: Path,
        url: str | None = None,
        keep: int = KEEP_SNAPSHOTS,
        share: Share = WHOLE,
        origin: str = "",
    ) -> None:
        self._state = state
        self._share = share
        self._root = state / "snapshots"
        self._keep = keep
        self._origin = origin
        self._lock = threading.Lock()  # several snapshots are made at the same time
        self._numbers: dict[str, int] = {}  # by feed: the number of its last snapshot
        self._making: set[tuple[str, str]] = set()  # feed and name: its token is not returned yet
        self._forgotten: set[str] = set()  # feeds of which one was removed
        self._far = None if url is None else _Far(url)

    @property
    def far(self) -> bool:
        """Whether there are copies at a URL."""
        return self._far is not None

    def check(self) -> None:
        """Raise OSError where copies can not be written to the URL, if that is a directory."""
        if self._far is not None:
            self._far.check()

    def sweep(self) -> None:
        """Remove snapshots that an earlier server did not finish."""
        for part in self._root.glob(f"*/*{PART}"):
            shutil.rmtree(part, ignore_errors=True)

    # Making one

    def begin(self, feed: str, name: str = "") -> tuple[str, Path]:
        """Begin a snapshot: return its name, and the directory for the copies of its stores.

        ``name``: that under which the other servers of the feed make it, too.
        """
        name = name or new_snapshot()
        part = self._root / feed / f"{name}{PART}"
        if not SNAPSHOT.fullmatch(name):
            raise ServerError(f"{name!r:.80} is not the name of a snapshot")
        if part.exists():
            raise ServerError(f"snapshot {name} is being made: ask again later")
        with writing(part, remedy=_REMEDY):
            part.mkdir(parents=True)
        return name, part

    def finish(self, feed: str, name: str, term: int) -> Token:
        """Complete a snapshot whose stores are copied; it is whole also after a power cut.

        ``term`` is the server's: the stores have no tokens of a later one.
        """
        part = self._root / feed / f"{name}{PART}"
        source = self._state / "feeds" / feed / "feed.json"
        with writing(part / source.name, source.stat().st_size, _REMEDY):
            shutil.copyfile(source, part / source.name)
        with self._lock:
            number = self._last_number(feed) + 1
            self._numbers[feed] = number
        self._making.add((feed, name))
        try:
            files = _write_leaf(part, feed, name, term, number, self._origin)
            whole = part.with_suffix("")
            os.rename(part, whole)
            sync_directory(whole.parent)
            sync_directory(self._root)
            sync_directory(self._state)
            if self._far is not None:
                self._far.put(feed, name, whole, self._share, [*files, LEAF])
            if self._share == WHOLE:
                self._forget_old(feed)
        finally:
            self._making.discard((feed, name))
        return self.token(feed, name)

    def has(self, feed: str, name: str) -> bool:
        """Return whether a snapshot of this name lies in the state directory."""
        return bool(SNAPSHOT.fullmatch(name)) and (self._root / feed / name / LEAF).exists()

    def token(self, feed: str, name: str) -> Token:
        """Return the token of a snapshot."""
        return Token(feed, name, "" if self._far is None else self._far.url)

    def settle(self, feed: str, name: str) -> None:
        """Note that every server of the feed has its share of a snapshot; forget old ones."""
        if not self.has(feed, name):
            raise ServerError(self._missing(feed, name))
        write_durably(self._root / feed / name / SETTLED, "")
        self._forget_old(feed)

    def abandon(self, feed: str, name: str) -> None:
        """Remove a snapshot that can not be made."""
        shutil.rmtree(self._root / feed / f"{name}{PART}", ignore_errors=True)

    def _forget_old(self, feed: str) -> None:
        """Remove all but the newest, and but the one that the feed was last taken back to."""
        if not self._keep:
            return
        names = settled = self.stored(feed)
        if self._share != WHOLE:
            settled = [name for name in names if (self._root / feed / name / SETTLED).exists()]
        if len(settled) < self._keep:
            return
        generation = read_json(self._state / "feeds" / feed / GENERATION, dict) or {}
        for name in names[: names.index(settled[-self._keep])]:
            if (feed, name) in self._making or name == generation.get("snapshot"):
                continue
            logger.log(
                logging.INFO if feed in self._forgotten else logging.WARNING,
                "feed %r: snapshot %s is removed, since the newest %d are kept "
                "(keep_snapshots=%d, 0 keeps all): no checkpoint that names it can be resumed",
                *(feed, name, self._keep, self._keep),
            )
            self._forgotten.add(feed)
            shutil.rmtree(self._root / feed / name, ignore_errors=True)
            if self._far is not None:
                self._far.remove(feed, name, self._share)

    # Finding one

    def stored(self, feed: str) -> list[str]:
        """Return the feed's snapshots in the state directory, the oldest first."""
        names = (path.name for path in (self._root / feed).glob("*"))
        numbers = {name: self._number(feed, name) for name in names if self.has(feed, name)}
        return sorted(numbers, key=lambda name: (numbers[name], name))

    def _number(self, feed: str, name: str) -> int:
        """Return the number of a snapshot; 0 where it can not be read: ``fetch`` tells why."""
        with contextlib.suppress(OSError, ServerError):
            return read_json(self._root / feed / name / LEAF, _number_of) or 0
        return 0

    def _last_number(self, feed: str) -> int:
        """Return the largest number of a feed's snapshot."""
        if feed not in self._numbers:
            stored = self.stored(feed)
            self._numbers[feed] = self._number(feed, stored[-1]) if stored else 0
        return self._numbers[feed]

    def newest(self, feed: str) -> str:
        """Return the last snapshot of ``origin`` that all servers have at the URL; "" if none."""
        if self._far is None:
            return ""
        return self._far.newest(feed, self._origin, self._share)

    def fetch(self, feed: str, name: str) -> tuple[Path, int]:
        """Return the directory of a snapshot, after a check, and the term that it was made in.

        Where the state directory lacks it, it is fetched from the URL.
        """
        if not SNAPSHOT.fullmatch(name):
            raise ServerError(f"{name!r:.80} is not the name of a snapshot")
        whole = self._root / feed / name
        if not (whole / LEAF).exists():
            part = self._root / feed / f"{name}{PART}"
            shutil.rmtree(part, ignore_errors=True)
            try:
                with writing(part, remedy=_REMEDY):
                    part.mkdir(parents=True)
                if self._far is None:
                    raise ServerError(self._missing(feed, name))
                if not self._far.get(feed, name, part, self._share):
                    self._redivide(self._far, feed, name, part)
                term = _check(part, feed, name)
                shutil.rmtree(whole, ignore_errors=True)
                with self._lock:
                    last = self._last_number(feed)
                    os.rename(part, whole)
                    self._numbers[feed] = max(last, self._number(feed, name))
            finally:
                shutil.rmtree(part, ignore_errors=True)
            return whole, term
        return whole, _check(whole, feed, name)

    def _redivide(self, far: _Far, feed: str, name: str, part: Path) -> None:
        """Make a snapshot for this share of those of another number of servers."""
        shares, terms, numbers, fetched = far.shares(feed, name), [], [], list[Path]()
        if not shares:
            raise ServerError(self._missing(feed, name))
        servers = shares[0][1]
        if [index for index, of in shares if of == servers] != list(range(servers)):
            there = ", ".join(f"{index}/{of}" for index, of in shares)
            raise ServerError(
                f"snapshot {name} of feed {feed!r} at {far.url} has not the shares of all "
                f"servers; there are {there}"
            )
        for share in shares:
            directory = part / far.leaf_of(share)
            directory.mkdir()
            far.get(feed, name, directory, share)
            terms.append(_check(directory, feed, name))
            numbers.append(read_json(directory / LEAF, _number_of) or 0)
            fetched.append(directory)
        redivide(fetched, self._share, part)
        for directory in fetched:
            shutil.rmtree(directory)
        _write_leaf(part, feed, name, max(terms), max(numbers), "")

    def _missing(self, feed: str, name: str) -> str:
        stored = self.stored(feed)
        listed = ", ".join(stored[-3:]) or "none"
        places = str(self._root / feed)
        if self._far is not None:
            places += f" and {self._far.url}"
        text = f"there is no snapshot {name} of feed {feed!r} in {places}; the last ones: {listed}"
        if self._keep and len(stored) >= self._keep:
            text += (
                f".  The newest {self._keep} of each feed are kept (keep_snapshots={self._keep}, 0 "
                "keeps all): if it was made before these, resume from a checkpoint that names a "
                "later one"
            )
        return text


def _number_of(leaf: Mapping[str, Any]) -> int:
    return whole(leaf["number"])


def _write_leaf(
    directory: Path, feed: str, name: str, term: int, number: int, origin: str
) -> list[str]:
    """Write the checksums of a snapshot's files beside them; return the names of these."""
    files = {}
    for path in sorted(directory.iterdir()):
        sync_file(path)
        files[path.name] = _sum(path)
    leaf: dict[str, Plain] = {
        "format": _FORMAT,
        "feed": feed,
        "snapshot": name,
        "number": number,
        "origin": origin,
        "term": term,
        "files": files,
    }
    leaf["sum"] = _sum_of(leaf)
    write_durably(directory / LEAF, json.dumps(leaf, indent=1))
    return list(files)


def _check(directory: Path, feed: str, name: str) -> int:
    """Check a snapshot against its checksums; return its term."""
    leaf = read_json(directory / LEAF, dict) or {}
    if leaf.get("format", _FORMAT) != _FORMAT:
        raise ServerError(
            f"{directory} was written by another release of headrace (format "
            f"{leaf['format']!r:.40}, this one reads {_FORMAT}): go on with that release, or begin "
            "without a snapshot (without resume)"
        )
    if leaf.pop("sum", None) != _sum_of(leaf):  # from here on it is what was stored
        raise SnapshotDamaged(f"{directory / LEAF} is damaged: it is not what was stored")
    if (named := (leaf["feed"], leaf["snapshot"])) != (feed, name):
        raise SnapshotDamaged(f"{directory} says that it is {named}, not {(feed, name)}")
    for file, expected in leaf["files"].items():
        path = directory / file
        if Path(file).name != file or not path.exists():
            raise SnapshotDamaged(f"{path} is gone: the snapshot can not be used")
        if _sum(path) != expected:
            raise SnapshotDamaged(f"{path} is damaged: it is not what was stored")
    return int(leaf["term"])


def _sum_of(leaf: dict[str, Plain]) -> str:
    return hashlib.sha256(json.dumps(leaf, sort_keys=True).encode()).hexdigest()


def _sum(path: Path) -> list[int | str]:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return [path.stat().st_size, digest.hexdigest()]


def sync_file(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


class _Far:
    """Copies at a URL, by fsspec."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._system, self._path = filesystem(self.url, f"snapshots={url!r}")

    def check(self) -> None:
        """Make a local directory; an error here names it, and that of a snapshot comes late.

        Another store may be away now, and back for the first snapshot.
        """
        if "file" in self._system.protocol:
            with usable("snapshots", self.url), writing(self._path):
                os.makedirs(self._path, exist_ok=True)
                tempfile.TemporaryFile(dir=self._path).close()

    @contextlib.contextmanager
    def _named(self, what: str) -> Iterator[None]:
        try:
            yield
        except ServerError:
            raise
        except Exception as error:  # each file system raises its own errors
            raise ServerError(f"{what} {self.url}: {type(error).__name__}: {error}") from None

    @staticmethod
    def leaf_of(share: Share) -> str:
        """Return the name of the directory of a share, in that of its snapshot."""
        return f"{share[0]}-of-{share[1]}"

    def _place(self, feed: str, name: str, share: Share) -> str:
        whole = f"{self._path}/{feed}/{name}"
        return whole if share == WHOLE else f"{whole}/{self.leaf_of(share)}"

    def shares(self, feed: str, name: str) -> list[Share]:
        """Return the shares of a snapshot that lie here, of whichever number of servers."""
        whole = f"{self._path}/{feed}/{name}"
        with self._named("a snapshot could not be looked for at"):
            if not self._system.exists(whole):
                return []
            if self._system.exists(f"{whole}/{LEAF}"):
                return [WHOLE]
            names = [path.rsplit("/", 1)[-1] for path in self._system.ls(whole, detail=False)]
            found = [match for one in names if (match := _SHARE_OF.fullmatch(one))]
            return sorted((int(match[1]), int(match[2])) for match in found)

    def newest(self, feed: str, origin: str, share: Share) -> str:
        """Return the last snapshot of ``origin`` with the shares of all servers; "" if none."""
        of_feed, found = f"{self._path}/{feed}", {}
        with self._named("a snapshot could not be looked for at"):
            paths = self._system.ls(of_feed, detail=False) if self._system.exists(of_feed) else []
            for name in (str(path).rsplit("/", 1)[-1] for path in paths):
                leaves = [
                    f"{self._place(feed, name, (index, share[1]))}/{LEAF}"
                    for index in range(share[1])
                ]
                if SNAPSHOT.fullmatch(name) and all(map(self._system.exists, leaves)):
                    leaf = json.loads(self._system.cat_file(leaves[share[0]]))
                    if leaf.get("origin") == origin:
                        found[name] = _number_of(leaf)
        return max(found, key=lambda name: (found[name], name), default="")

    def put(self, feed: str, name: str, directory: Path, share: Share, files: list[str]) -> None:
        place = self._place(feed, name, share)
        with self._named("the snapshot is in the state directory and could not be copied to"):
            self._system.makedirs(place, exist_ok=True)
            for file in files:
                self._system.put_file(str(directory / file), f"{place}/{file}")

    def get(self, feed: str, name: str, directory: Path, share: Share) -> bool:
        """Fetch a share of a snapshot.  False where there is none."""
        place = self._place(feed, name, share)
        with self._named("a snapshot could not be brought from"):
            if not self._system.exists(f"{place}/{LEAF}"):
                return False
            for path in self._system.ls(place, detail=False):
                file = path.rsplit("/", 1)[-1]
                with writing(directory / file, remedy=_REMEDY):
                    self._system.get_file(path, str(directory / file))
        return True

    def remove(self, feed: str, name: str, share: Share) -> None:
        place = self._place(feed, name, share)
        with self._named("an old snapshot could not be removed from"):
            if self._system.exists(place):
                self._system.rm(place, recursive=True)


def redivide(parts: Iterable[Path], share: Share, into: Path) -> None:
    """Move a share's partitions from the snapshots of all shares of another number of servers.

        0-of-4/  1-of-4/  2-of-4/  3-of-4/ ─► the stores of the partitions of share 1/2
                                           ─► feed.json with that share

    The store of a partition is the same whichever server owns it, so nothing in it changes.
    """
    for part in parts:
        for path in sorted(part.iterdir()):
            if path.suffix == SUFFIX:
                if int(path.stem) % share[1] == share[0]:
                    os.rename(path, into / path.name)
            elif path.name in ("feed.json", "functions.json"):
                os.replace(path, into / path.name)
    file = into / "feed.json"
    noted = read_json(file, lambda plain: {n: plain[n] for n in plain.keys() - {SHARE}})
    if noted is None:
        raise ServerError(f"the snapshot lacks {file}")
    if share != WHOLE:
        noted[SHARE] = share
    file.write_text(json.dumps(noted, indent=1, sort_keys=True))
