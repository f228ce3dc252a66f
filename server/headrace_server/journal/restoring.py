"""Taking a feed's state back to a snapshot: whole or not at all, also under kill -9.

    snapshots/FEED/ID/ ─ prepare ─► feeds/.FEED.new/ ─ take_back ─► feeds/FEED/
                                    the state before ────────────► feeds/.FEED.old/

Once the new directory has a file ``COMPLETE`` it is the valid one, and the next start completes a
change that was cut off.  The state before stays until the next time.

The beginning of a feed is a snapshot without stores.

Each such change is a *generation* of the feed.  Trainers of an earlier generation are not let in:
their work since the snapshot is undone.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..files.durable_file import read_json, sync_directory, whole, write_durably, writing
from ..pipeline.declaration import Options
from ..process.config import BEGINNING, FeedConfig
from .feed_directory import SUFFIX, check_feed
from .snapshots import GENERATION, sync_file

_COMPLETE = "COMPLETE"


@dataclass(frozen=True, slots=True)
class Resumption:
    """How often a feed was taken back to a snapshot, and to which one last.

    ``before`` is the snapshot that it had gone on from before it was taken back to its beginning.
    """

    generation: int = 0
    snapshot: str = ""
    before: str = ""


def resumption(state: Path, feed: str) -> Resumption:
    """Read the generation of a feed."""
    return read_json(state / "feeds" / feed / GENERATION, _resumption) or Resumption()


def _resumption(plain: Options) -> Resumption:
    return Resumption(whole(plain["generation"]), str(plain["snapshot"]), plain.get("before", ""))


def prepare(state: Path, feed: FeedConfig, source: Path | None, snapshot: str) -> None:
    """Copy the snapshot in ``source`` to a new directory beside a feed's state.

    None stands for the beginning.  ConfigChanged where the feed differs from that of the snapshot.
    """
    feeds = state / "feeds"
    before = resumption(state, feed.name)
    new = feeds / f".{feed.name}.new"
    shutil.rmtree(new, ignore_errors=True)
    with writing(new):
        new.mkdir(parents=True)
    if source is not None:
        for path in sorted(source.iterdir()):
            if path.suffix == SUFFIX or path.name == "feed.json":
                with writing(new / path.name, path.stat().st_size):
                    shutil.copyfile(path, new / path.name)
                    sync_file(new / path.name)
    check_feed(state, feed, new, rewritten=True)
    plain: dict[str, int | str] = {"generation": before.generation + 1, "snapshot": snapshot}
    if snapshot == BEGINNING:
        plain["before"] = before.before if before.snapshot == BEGINNING else before.snapshot
    write_durably(new / GENERATION, json.dumps(plain))


def take_back(state: Path, names: Iterable[str]) -> None:
    """Replace the states of feeds by the prepared ones.  No process may have their stores open."""
    feeds = state / "feeds"
    for name in names:
        new = feeds / f".{name}.new"
        write_durably(new / _COMPLETE, "")
    sync_directory(feeds)
    finish(state)  # once: it removes what is prepared and not complete


def finish(state: Path) -> None:
    """Complete changes that a crash has cut off, and remove those that were not valid yet."""
    feeds = state / "feeds"
    for new in sorted(feeds.glob(".*.new")):
        name = new.name[1 : -len(".new")]
        if not (new / _COMPLETE).exists():
            shutil.rmtree(new, ignore_errors=True)
            continue
        present, old = feeds / name, feeds / f".{name}.old"
        if present.exists():
            shutil.rmtree(old, ignore_errors=True)
            os.rename(present, old)
        os.rename(new, present)
        sync_directory(feeds)
        (present / _COMPLETE).unlink()
    for done in sorted(feeds.glob(f"*/{_COMPLETE}")):
        if not done.parent.name.startswith("."):
            done.unlink()
