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

from headrace_proto.errors import ServerError
from headrace_proto.placement import WHOLE

from ..files.durable_file import opened_within, read_json, write_durably, writing
from ..files.manifest import DataFile
from ..pipeline.declaration import Plain, jsonable
from ..process.config import FeedConfig

logger = logging.getLogger("headrace.worker")

#: Suffix of a partition's file.
SUFFIX = ".journal"
_FORMAT = 4
_FIELDS = frozenset({"format", "partitions", "pipeline", "files"})
#: A place in a tree of JSON data.
Place = tuple[str | int, ...]
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
    state: Path, feed: FeedConfig, allow_change: bool = False, directory: Path | None = None
) -> None:
    """Compare a feed with the one of its state, or note it where there is no state.

    ``directory``: the directory of the state, if not in its place.  ConfigChanged lists the
    differences.
    """
    file = (directory or state / "feeds" / feed.name) / "feed.json"
    now, known = described(feed), _known(file)
    changes = [] if known is None or known == now else _changes(state, feed, file, known, now)
    if changes and not allow_change:
        more = f"; and {len(changes) - 5} more" if len(changes) > 5 else ""
        raise ConfigChanged(
            f"feed {feed.name!r} is not what the state in {state} is of: "
            f"{'; '.join(changes[:5])}{more}.  Undo that, use another state_dir, or give "
            "allow_config_change=True to go on with the states that there are"
        )
    if changes or known is None:
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
    state: Path, feed: FeedConfig, file: Path, known: dict[str, Plain], now: dict[str, Plain]
) -> list[str]:
    """Return the changes of a feed; ConfigChanged where one is never allowed."""
    try:
        _check_share(state, feed, known.get(SHARE, WHOLE))
        changes = [
            *(text for _, text in _changed(known, now)),
            *_files_unlike(known["files"], now["files"]),
        ]
        never = list(_never(known, now, feed.declaration.policy.on_bad_example == "skip"))
    except ConfigChanged:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ServerError(f"{file} is damaged: {error!r:.200}. {_next(file)}") from None
    for change, why in never:
        raise ConfigChanged(
            f"feed {feed.name!r} can not go on from the state in {state}: {change}, and {why}.  "
            "Undo that or use another state_dir"
        )
    return changes


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


def described(feed: FeedConfig) -> dict[str, Plain]:
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
    described: dict[str, Plain] = json.loads(json.dumps(whole, default=jsonable))
    return described


def _known(file: Path) -> dict[str, Plain] | None:
    """Read the feed that a state was noted for; None where there is none."""
    known: Plain = read_json(file, lambda plain: plain, _next(file))
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


def _never(old: dict[str, Plain], new: dict[str, Plain], skips: bool) -> Iterator[tuple[str, str]]:
    """Yield changes after which examples would come twice or never, each with the reason.

    ``skips``: whether bad examples are dropped, by whichever stage finds them.
    """
    before, now = (tree["pipeline"]["shape"] for tree in (old, new))
    for _, change in _differences(before["kind"], now["kind"], "pipeline", "shape", "kind"):
        yield change, _WHY["shape"]
        return
    states = "pipeline", "shape", "initial_states"
    for _, change in _differences(_states(before), _states(now), *states):
        yield change, "states are stored as they were declared"
    for path, change in _changed(old, new):
        part = path[0] if path[0] == "partitions" else path[1]
        if not _exact(path, old["pipeline"], new["pipeline"], skips):
            yield change, _WHY[str(part)]
    files, there = old["files"], new["files"]
    if file_names(files) != file_names(there):
        sized = ([path, size, ""] for path, size, _ in files), ([p, n, ""] for p, n, _ in there)
        yield next(_files_unlike(*map(list, sized))), "positions are counted through all files"


#: Why a change of a part of a feed can not be gone on with.
_WHY = {
    "partitions": "positions and states belong to partitions",
    "source": "positions are counted in the examples of that",
    "order": "positions are counted in that order",
    "stages": "batches are counted in the examples that pass these",
    "shape": "batches are counted in what that makes",
}
#: Options of a shape that do not decide which examples make a batch, beside its batch sizes: a
#: changed size holds from the first batch on that follows all committed ones.
_LAYOUT = {"dynamic_pad", "padding_values", "mask", "capacity", "map", "left", "right"}
_SIZES = {"batch_size", "batch_sizes", "initial_states"}  # names of states are compared by _never
#: The same, but for a shape with a budget of padded elements.
_PADDING = {"ragged", "pad_to_multiple", "pad_to_boundary"}
#: The other shapes are classes of the user's.
_OURS = {"batch", "bucket", "pack", "stratified_sample_unknown_dist", "sequences"}
#: Stages after which there are as many examples.
_KEEPING = {"map", "select", "with_origin"}


def _exact(path: Place, old: dict[str, Plain], new: dict[str, Plain], skips: bool) -> bool:
    """Return whether a feed goes on exactly after a change at ``path``."""
    shapes = old["shape"], new["shape"]
    match path:
        case ("pipeline", "source", *within):
            return not {"paths", "features"}.isdisjoint(within)  # the files are compared beside it
        case ("pipeline", "stages", *_):
            counted = all(one["kind"] == "batch" and not one.get("balance") for one in shapes)
            return counted and not skips and _passed(old["stages"]) == _passed(new["stages"])
        case ("pipeline", "shape", "batch_sizes", *within):
            return bool(within) and None not in (*old["shape"][path[2]], *new["shape"][path[2]])
        case ("pipeline", "shape", name, *_):
            budget = any(one.get("max_padded_elements") for one in shapes)
            free = name in _LAYOUT | _SIZES or (name in _PADDING and not budget)
            return free and shapes[0]["kind"] in _OURS
    return False


def _passed(stages: list[Plain]) -> list[Plain]:
    """Return the stages up to the last one that may change which examples there are."""
    most = max((i for i, one in enumerate(stages, 1) if one["kind"] not in _KEEPING), default=0)
    return stages[:most]


def _states(shape: dict[str, Plain]) -> dict[str, Plain]:
    return {
        state["name"]: [state["dtype"], state["shape"]] for state in shape.get("initial_states", ())
    }


def file_names(files: list[Plain]) -> list[tuple[str, int]]:
    """Return the last names and sizes of files: those that only lie elsewhere have the same."""
    return [(str(path).rsplit("/", 1)[-1], size) for path, size, _ in files]


def _files_unlike(old: list[Plain], new: list[Plain]) -> Iterator[str]:
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


def _changed(old: dict[str, Plain], new: dict[str, Plain]) -> Iterator[tuple[Place, str]]:
    """Yield where the declarations of two feeds differ, and each difference for people."""
    for name in ("partitions", "pipeline"):
        yield from _differences(old[name], new[name], name)


def _differences(old: Plain, new: Plain, *at: str | int) -> Iterator[tuple[Place, str]]:
    """Yield where two trees of JSON data differ, and each difference for people."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _differences(old.get(key), new.get(key), *at, key)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from _differences(a, b, *at, i)
    elif old != new or type(old) is not type(new):
        where = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in at)
        yield at, f"{where[1:]} was {_short(old)} and is {_short(new)}"


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
