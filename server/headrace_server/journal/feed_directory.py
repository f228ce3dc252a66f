"""The directory of a feed's state: journals, and the declaration that they are of.

feeds/NAME/feed.json          the declaration of the feed, its files, its partitions
feeds/NAME/K.journal          partition K
"""

from __future__ import annotations

import dataclasses
import fcntl
import itertools
import json
import logging
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from headrace_proto.errors import ServerError
from headrace_proto.placement import WHOLE

from ..files.durable_file import opened_within, read_json, write_durably, writing
from ..files.manifest import DataFile
from ..pipeline.declaration import Plain, jsonable
from ..process.config import FeedConfig

logger = logging.getLogger("headrace.worker")

#: Suffix of a partition's file.
SUFFIX = ".journal"
_FORMAT = 5
_FIELDS = frozenset({"format", "partitions", "pipeline", "files"})
#: A field that is there where the feed has several servers.
SHARE = "share"


class ConfigChanged(ServerError, ValueError):
    """The state is of another pipeline, other data or another number of partitions."""


def beginning_anew(file: Path) -> str:
    """Return the command that lets the next start begin anew, for an error of a feed's file."""
    return moved_aside(file.parents[2])


def moved_aside(directory: Path, name: str = "") -> str:
    """Return the command that moves a directory, to its own or another name with a number."""
    names = (directory.with_name(f"{name or directory.name}.{n}") for n in itertools.count(1))
    aside = next(path for path in names if not os.path.lexists(path))
    return f"to begin anew: mv {shlex.quote(str(directory))} {shlex.quote(str(aside))}"


def _next(file: Path) -> str:
    return f"Resume from a snapshot; or, {beginning_anew(file)}"


def partition_path(directory: str | Path, feed: str, partition: int) -> Path:
    """Return the path of one partition's state."""
    return Path(directory) / "feeds" / feed / f"{partition}{SUFFIX}"


def own_partition(path: Path) -> int:
    """Lock a store, after any other process has released it.

    A worker that was suspended while its server was killed may still write when it wakes, after
    another server has begun.  Children do not inherit a lock of this kind, so user code may fork.
    """
    with writing(path.with_suffix(".lock")):
        lock = opened_within(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        logger.warning("%s: waits for the end of a worker of an earlier server", path)
        fcntl.lockf(lock, fcntl.LOCK_EX)
    return lock


def has_states(directory: Path) -> bool:
    """Return whether the state of a partition lies in a feed's directory."""
    return any(directory.glob(f"*{SUFFIX}"))


def check_feed(
    state: Path, feed: FeedConfig, directory: Path | None = None, rewritten: bool = False
) -> None:
    """Compare a feed with the one of its state, or note it where there is no state.

    ``directory``: the directory of the state, if not in its place.  Files of the same names and
    sizes may lie elsewhere, and with ``rewritten`` have other times at their places.  ConfigChanged
    lists the differences.
    """
    file = (directory or state / "feeds" / feed.name) / "feed.json"
    now, known = described(feed), _known(file)
    if known == now:
        return
    if known is not None and (changes := _changes(state, feed, file, known, now, rewritten)):
        more = f"; and {len(changes) - 5} more" if len(changes) > 5 else ""
        raise ConfigChanged(
            f"feed {feed.name!r} is not what the state in {state} is of: "
            f"{'; '.join(changes[:5])}{more}.  Undo that, or use another state_dir"
        )
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_durably(file, json.dumps(now, indent=1, sort_keys=True))


def with_partitions(state: Path, feed: FeedConfig, directory: Path | None = None) -> FeedConfig:
    """Return the feed with as many partitions as its state has, where there is one.

    ``directory``: the directory of the state, if not in its place.
    """
    known = _known((directory or state / "feeds" / feed.name) / "feed.json")
    if known is None:
        return feed
    return dataclasses.replace(feed, partitions=int(known["partitions"]))


def _changes(
    state: Path,
    feed: FeedConfig,
    file: Path,
    known: dict[str, Any],
    now: dict[str, Any],
    rewritten: bool,
) -> list[str]:
    """Return the changes of a feed, for people; ConfigChanged for another share."""
    try:
        _check_share(state, feed, known.get(SHARE, WHOLE))
        if _same_files(known["files"], now["files"], rewritten):
            logger.warning(
                "feed %r: files of the same names and sizes as before are taken for the same, "
                "though they lie elsewhere or were written at another time",
                feed.name,
            )
            _follow(known["pipeline"]["source"], now["pipeline"]["source"])
            known["files"] = now["files"]
        return [
            *_differences(known["partitions"], now["partitions"], "partitions"),
            *_differences(known["pipeline"], now["pipeline"], "pipeline"),
            *_files_unlike(known["files"], now["files"]),
        ]
    except ConfigChanged:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ServerError(f"{file} is damaged: {error!r:.200}. {_next(file)}") from None


def _check_share(state: Path, feed: FeedConfig, known: Sequence[int]) -> None:
    """Raise ConfigChanged where a state is that of another share."""
    (index, servers), (was, of) = feed.share, known
    if (index, servers) == (was, of):
        return
    text = (
        f"feed {feed.name!r} can not go on from the state in {state}: that is of share {was}/{of}, "
        f"and this server has share {index}/{servers}"
    )
    if servers == of:
        raise ConfigChanged(f"{text}: each share needs a state directory of its own")
    raise ConfigChanged(
        f"{text}: positions and states belong to the partitions of that share.  Start it as share "
        f"{was}/{of}, or resume from a snapshot that all {of} servers have put at a URL (snapshots)"
    )


def described(feed: FeedConfig) -> dict[str, Any]:
    """Return the parts of a feed that its state depends on, as JSON data.

    The policy for bad examples is left out: these are never part of a state.
    """
    pipeline = feed.declaration.to_plain()
    del pipeline["policy"]
    whole = {
        "format": _FORMAT,
        "partitions": feed.partitions,
        "pipeline": pipeline,
        "files": [file.to_plain() for file in feed.files],
    }
    if feed.share != WHOLE:
        whole[SHARE] = feed.share
    described: dict[str, Any] = json.loads(json.dumps(whole, default=jsonable))
    return described


def _known(file: Path) -> dict[str, Any] | None:
    """Read the feed that a state was noted for; None where there is none."""
    known: object = read_json(file, lambda plain: plain, _next(file))
    if known is None:
        if has_states(file.parent):
            raise ServerError(f"{file} is gone, and states lie beside it. {_next(file)}")
        return None
    if not isinstance(known, dict) or known.keys() - {SHARE} != _FIELDS:
        raise ServerError(f"{file} is damaged: it lacks fields. {_next(file)}")
    if not isinstance(known["partitions"], int) or known["partitions"] < 1:
        raise ServerError(
            f"{file} is damaged: {known['partitions']!r:.80} partitions. {_next(file)}"
        )
    if known["format"] != _FORMAT:
        raise ServerError(
            f"{file} was written by another release of headrace (format {known['format']!r}, this "
            f"one reads {_FORMAT}): go on with that release; or, {beginning_anew(file)}"
        )
    return known


def _same_files(old: list[list[Any]], new: list[list[Any]], rewritten: bool) -> bool:
    """Return whether files are the same ones at other places, or with ``rewritten`` at any."""
    before, now = ([(str(path).rsplit("/", 1)[-1], n) for path, n, _ in one] for one in (old, new))
    stamps = {path: stamp for path, _, stamp in old}
    kept = all(stamps.get(path, stamp) == stamp for path, _, stamp in new)
    return old != new and before == now and (kept or rewritten)


def _follow(source: dict[str, Any], now: dict[str, Any]) -> None:
    """Have a source, and those that it is made of, read from the places of now."""
    source["paths"] = now["paths"]
    parts = (of["options"].get("sources", ()) for of in (source, now))
    for part, there in zip(*parts, strict=False):
        _follow(part, there)


def _files_unlike(old: list[list[Any]], new: list[list[Any]]) -> Iterator[str]:
    """Yield the differences of two lists of path, size and stamp, for people."""
    before, now = ({path: rest for path, *rest in files} for files in (old, new))
    for path, (size, stamp) in before.items():
        if path not in now:
            yield f"file {path} is not of the feed any more"
        elif now[path][0] != size:
            yield f"file {path} had {size} bytes and has {now[path][0]}"
        elif now[path][1] != stamp:
            then, here = (DataFile(path, size, one).version for one in (stamp, now[path][1]))
            yield f"file {path} was written anew (then {then}, now {here})"
    yield from (f"file {path} is new" for path in now if path not in before)
    if before.keys() == now.keys() and list(before) != list(now):
        yield "the files come in another order"


def _differences(old: Plain, new: Plain, *at: str | int) -> Iterator[str]:
    """Yield the differences of two trees of JSON data, for people."""
    if isinstance(old, dict) and isinstance(new, dict):
        if (kind := old.get("kind")) != new.get("kind"):  # all options differ with it
            old, new = {"kind": kind}, {"kind": new.get("kind")}
        for key in sorted(old.keys() | new.keys()):
            yield from _differences(old.get(key), new.get(key), *at, key)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from _differences(a, b, *at, i)
    elif old != new or type(old) is not type(new):
        where = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in at)
        yield f"{where[1:]} was {_short(old)} and is {_short(new)}"


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
