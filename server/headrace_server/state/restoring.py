"""Taking a feed's state back to a snapshot: all of it or nothing, whatever is killed meanwhile.

    snapshots/FEED/ID/ ─ prepare ─► feeds/.FEED.new/ ─ take_back ─► feeds/FEED/
                                    what was there ──────────────► feeds/.FEED.old/

Once ``COMPLETE`` lies in the new directory it is what holds, and the next start goes on with the
change where it was cut off.  What was there before is kept until the next time.

The beginning of a feed is a snapshot without stores.

Each such change is a *generation* of the feed.  Trainers of an earlier one are not let in again:
what they did since the snapshot is undone.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace_proto.errors import ServerError

from ..core.rewinding import BEGINNING
from ..files.durable_file import sync_directory, write_durably, writing
from ..process.config import FeedConfig
from .omissions import Omissions
from .statedir import STATES, StateDirectory, described

__all__ = ["Resumption", "finish", "prepare", "resumption", "take_back"]

logger = logging.getLogger("headrace.server")

_COMPLETE = "COMPLETE"
_FLIGHT = "flight"
_GENERATION = "generation.json"
_BESIDE = ("feed.json", "functions.json", "quarantine.json")


@dataclass(frozen=True, slots=True)
class Resumption:
    """How often a feed was taken back to a snapshot, and to which one last.

    ``before`` is the snapshot that it had gone on from before it was taken back to its beginning.
    """

    generation: int = 0
    snapshot: str = ""
    before: str = ""


def resumption(state: Path, feed: str) -> Resumption:
    """What is noted of a feed."""
    file = state / "feeds" / feed / _GENERATION
    try:
        plain = json.loads(file.read_text())
        before = str(plain.get("before", ""))
        return Resumption(int(plain["generation"]), str(plain["snapshot"]), before)
    except FileNotFoundError:
        return Resumption()
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ServerError(f"{file} is damaged: {error!r:.200}") from None


def prepare(
    state: StateDirectory,
    feed: FeedConfig,
    source: Path | None,
    snapshot: str,
    allow_change: bool = False,
) -> None:
    """Bring the snapshot that lies in ``source`` to where it can take the place of a feed's state.

    None stands for the beginning.
    ConfigChanged where the feed is not what the snapshot is of.
    """
    feeds = state.path / "feeds"
    before = resumption(state.path, feed.name)
    new = feeds / f".{feed.name}.new"
    shutil.rmtree(new, ignore_errors=True)
    with writing(new):
        new.mkdir(parents=True)
    if source is not None:
        for path in sorted(source.iterdir()):
            if path.suffix in STATES or path.name in _BESIDE:
                with writing(new / path.name, path.stat().st_size):
                    shutil.copyfile(path, new / path.name)
                    _sync(new / path.name)
        _follow_files(new / "feed.json", feed)
    state.check_feed(feed, allow_change, new)
    plain: dict[str, Any] = {"generation": before.generation + 1, "snapshot": snapshot}
    if snapshot == BEGINNING:
        plain["before"] = before.before if before.snapshot == BEGINNING else before.snapshot
    write_durably(new / _GENERATION, json.dumps(plain))


def take_back(state: StateDirectory, feed: str) -> None:
    """Have what was prepared take its place.  Nobody may have the feed's stores open."""
    feeds = state.path / "feeds"
    new = feeds / f".{feed}.new"
    _keep_quarantine(feeds / feed / "quarantine.json", new / "quarantine.json")
    write_durably(new / _COMPLETE, "")
    sync_directory(feeds)
    finish(state.path)


def finish(state: Path) -> None:
    """Go on with changes that an end has cut off; what had not come to hold is removed."""
    feeds = state / "feeds"
    for new in sorted(feeds.glob(".*.new")):
        name = new.name[1 : -len(".new")]
        if not (new / _COMPLETE).exists():
            shutil.rmtree(new, ignore_errors=True)
            continue
        present, old = feeds / name, feeds / f".{name}.old"
        if present.exists():
            if (present / _FLIGHT).exists() and not (new / _FLIGHT).exists():
                os.rename(present / _FLIGHT, new / _FLIGHT)  # the record of all lives stays
            shutil.rmtree(old, ignore_errors=True)
            os.rename(present, old)
        os.rename(new, present)
        sync_directory(feeds)
        (present / _COMPLETE).unlink()
    for done in sorted(feeds.glob(f"*/{_COMPLETE}")):
        if not done.parent.name.startswith("."):
            done.unlink()


def _sync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _follow_files(file: Path, feed: FeedConfig) -> None:
    """The same files may lie elsewhere on another machine, with other times."""
    try:
        known = json.loads(file.read_text())
        names, now = _names(known["files"]), described(feed)
        source = known["pipeline"]["source"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ServerError(f"{file} of the snapshot is damaged: {error!r:.200}") from None
    if known["files"] == now["files"] or names != _names(now["files"]):
        return  # the same, or other files: who opens the state looks at it
    logger.warning(
        "feed %r: files of the same names and sizes as in the snapshot are taken for the same, "
        "though they lie elsewhere or were written at another time",
        feed.name,
    )
    known["files"] = now["files"]
    source["paths"] = now["pipeline"]["source"]["paths"]
    write_durably(file, json.dumps(known, indent=1, sort_keys=True))


def _names(files: list[Any]) -> list[tuple[str, int]]:
    return [(str(path).rsplit("/", 1)[-1], size) for path, size, _ in files]


def _keep_quarantine(known: Path, new: Path) -> None:
    """Rows that were found to kill or were left out since are left out now too."""
    rows = Omissions.read(new)
    rows.add(Omissions.read(known))
    if rows.deadly or rows.skipped:
        rows.write(new)
