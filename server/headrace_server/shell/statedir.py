"""The state directory: what a server finds again when it is started anew.

LOCK                     flock while a server lives: a second one is refused
epoch                    how often a server was started here; fences off tokens of earlier lives
index/                   indexes of record files
feeds/NAME/feed.json     what the feed was declared as, its files, its partitions
feeds/NAME/K.db          partition K, see store.py
snapshots/ID/            copies of feeds/, see snapshots
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace_proto.errors import ServerError

from ..pipeline.declaration import jsonable
from .config import FeedConfig

__all__ = ["ConfigChanged", "StateDirectory", "described", "partition_path"]

_FORMAT = 1


class ConfigChanged(ServerError, ValueError):
    """The state is of another pipeline, other data or another number of partitions."""


def partition_path(directory: str | Path, feed: str, partition: int) -> Path:
    """The file of one partition's state."""
    return Path(directory) / "feeds" / feed / f"{partition}.db"


class StateDirectory:
    """A state directory that this process holds."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """ServerError when another server holds it."""
        self.path = Path(path).absolute()
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise ServerError(
                f"state_dir={str(self.path)!r} is in use by another server: one server owns a "
                "state directory"
            ) from None

    def raise_epoch(self) -> int:
        """The number of this life; on the disk before it is returned."""
        file = self.path / "epoch"
        try:
            before = int(file.read_text())
        except FileNotFoundError:
            before = 0
        except ValueError:
            raise ServerError(
                f"{file} holds no number: it is damaged.  Write a number larger than any before "
                "into it, or resume from a snapshot"
            ) from None
        write_durably(file, f"{before + 1}\n")
        return before + 1

    def check_feed(self, feed: FeedConfig, allow_change: bool = False) -> None:
        """Compare a feed with what its state is of, or note it where there is none.

        ConfigChanged says what is different.
        """
        file = self.path / "feeds" / feed.name / "feed.json"
        now = described(feed)
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            known = json.loads(file.read_text())
        except FileNotFoundError:
            known = None
        except ValueError as error:
            raise ServerError(f"{file} is damaged: {error}") from None
        if known is not None and known != now:
            changes = list(_differences(known, now))
            if not allow_change:
                raise ConfigChanged(
                    f"feed {feed.name!r} is not what the state in {self.path} is of: "
                    f"{'; '.join(changes[:5])}.  Undo that, use another state_dir, or give "
                    "allow_config_change=True to go on with the states that there are"
                )
            if known.get("partitions") != now["partitions"]:
                raise ConfigChanged(
                    f"feed {feed.name!r}: partitions={now['partitions']} can not go on from the "
                    f"state of {known.get('partitions')} partitions: positions and states belong "
                    "to partitions"
                )
        if known != now:
            write_durably(file, json.dumps(now, indent=1, sort_keys=True))

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def described(feed: FeedConfig) -> dict[str, Any]:
    """What the state of a feed depends on, as JSON data."""
    plain = {
        "format": _FORMAT,
        "partitions": feed.partitions,
        "pipeline": feed.declaration.to_plain(),
        "files": [file.to_plain() for file in feed.files],
    }
    described: dict[str, Any] = json.loads(json.dumps(plain, default=jsonable))
    return described


def _differences(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """In words, what differs between two trees of JSON data."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            if old.get(key) != new.get(key):
                yield from _differences(old.get(key), new.get(key), f"{where}.{key}".strip("."))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (a, b) in enumerate(zip(old, new, strict=True)):
            if a != b:
                yield from _differences(a, b, f"{where}[{i}]")
    else:
        yield f"{where} was {_short(old)} and is {_short(new)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def write_durably(file: Path, text: str) -> None:
    """Replace a small file so that after a power cut either the old or the new one is there."""
    part = file.with_name(file.name + ".part")
    with open(part, "w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    os.replace(part, file)
    directory = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
