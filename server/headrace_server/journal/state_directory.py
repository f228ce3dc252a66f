"""The state directory: files that outlive a server, for its next start.

LOCK                          held by flock while a server runs: a second one is refused
terms.json                    number of starts and their last terms, twice, so that a wrong digit
                              shows; the last term fences off earlier tokens
index/                        indexes of record files
feeds/NAME/feed.json          the declaration of the feed, its files, its partitions
feeds/NAME/K.lock             POSIX lock of the worker that has partition K
feeds/NAME/K.journal          partition K, see journal.py; K.journal.spare: room of its next file
feeds/NAME/generation.json    the snapshot that it was taken back to last, see restoring.py
snapshots/NAME/ID/            copies of all that, see snapshots.py

    begin(config, tokens)              ─► the config of this start: term, generations of the feeds
    prepare(feed, S), take_back(config, feed)
                                       ─► that of the next start, which goes on from snapshot S

A symbolic link in the directory is refused at a start, and not followed later.

The number of a start is its **term**; a token carries it in its upper bits.  A start that goes on
from a snapshot gets a term beyond that of the snapshot, so no token is given out twice.  Terms also
follow the clock, so the same holds for tokens that a state directory has forgotten because it was
put back to an earlier state.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Container, Iterable, Mapping
from pathlib import Path

from headrace_proto.errors import ServerError
from headrace_proto.placement import WHOLE, Share, next_term
from headrace_proto.token import Token

from ..files.durable_file import held, read_json, refuse_links, usable, write_durably, writing
from ..process.config import BEGINNING, FeedConfig, RunConfig
from ..process.settings import KEEP_SNAPSHOTS
from .feed_directory import check_feed, has_states, moved_aside, with_partitions
from .restoring import finish, prepare, resumption, take_back
from .snapshots import Shelf

#: The file of the terms.
TERM = "terms.json"
_TERM_REMEDY = (
    "It has two equal lists of the number of starts and a term: write [[1, N], [1, N]] into it, "
    "with an N larger than any term before, or resume from a snapshot"
)
#: Tokens carry the term above 32 bits, and are below 2**63.
_MOST_TERMS = 2**31 - 1
#: A wrong clock must not use them up.
_MOST_BY_CLOCK = _MOST_TERMS - 2**24
#: Number of terms that are kept.
_MOST_STARTS = 1000
#: 1 January 2026, in seconds since 1970: terms by the clock count from there …
_SINCE_S = 1_767_225_600
#: … in steps of an eighth of a second, since 31 bits of these last until 2034; after that a term is
#: one more than the one before.  A directory that is put back to an earlier state has to be started
#: later than this after the start that it forgets, by one step for each worker and share.
_STEPS = 8


def term_by_clock() -> int:
    """Return the least term for a start that begins now."""
    return max(0, int(_STEPS * (time.time() - _SINCE_S)))


class StateDirectory:
    """The state directory of one server, held until ``close``."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        durability: str = "power",
        snapshots: str | None = None,
        keep: int = KEEP_SNAPSHOTS,
        share: Share = WHOLE,
        origin: str = "",
    ) -> None:
        """Hold the directory; ServerError where another server holds it."""
        self._durability = durability
        self.path = Path(os.path.realpath(path))  # it may itself be a link
        self.starts: tuple[int, ...] = ()  # the last terms, this start's at the end
        self.count = 0  # number of all starts, this one included
        try:
            with usable("state_dir", path), writing(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ServerError(f"state_dir={str(self.path)!r} is not a directory") from None
        try:
            with usable("state_dir", path), writing(self.path / "LOCK"):
                self._lock = held(self.path / "LOCK", os.O_RDWR | os.O_CREAT)
        except BlockingIOError:
            raise ServerError(
                f"state_dir={str(self.path)!r} is in use by another server: one server owns a "
                "state directory"
            ) from None
        try:
            refuse_links(self.path)
            finish(self.path)
            self.shelf = Shelf(self.path, snapshots, keep, share, origin)
            self.shelf.check()
            self.shelf.sweep()
        except BaseException:
            self.close()
            raise

    def begin(
        self, config: RunConfig, tokens: Mapping[str, Token], keep_partitions: bool = False
    ) -> RunConfig:
        """Return the config of the first start; feeds go on from the snapshots in ``tokens``.

        With ``keep_partitions`` a feed that has a state keeps the number of partitions of that.
        """
        found, terms = {}, [0]
        for name, token in tokens.items():
            shelf = self.shelf
            if token.url and not shelf.far:
                shelf = Shelf(self.path, token.url, share=config.share)
            found[name], term = shelf.fetch(name, token.snapshot)
            terms.append(term)
        if keep_partitions:
            feeds = (with_partitions(self.path, one, found.get(one.name)) for one in config.feeds)
            config = dataclasses.replace(config, feeds=tuple(feeds))
        for feed in config.feeds:
            if feed.name in tokens:
                snapshot = tokens[feed.name].snapshot
                prepare(self.path, feed, found[feed.name], snapshot)
            else:
                self._refuse_lost(feed.name)
                check_feed(self.path, feed)
        config = self.next_term(config, max(terms))
        if tokens:
            take_back(self.path, tokens)
        return dataclasses.replace(
            self._noted(config, tokens), state_directory=str(self.path), durability=self._durability
        )

    def _refuse_lost(self, feed: str) -> None:
        """Raise ServerError where a feed has snapshots and no state: it had one."""
        directory, snapshots = self.path / "feeds" / feed, self.path / "snapshots" / feed
        lost = not ((directory / "feed.json").exists() or has_states(directory))
        if lost and (stored := self.shelf.stored(feed)):
            raise ServerError(
                f"the state of feed {feed!r} is gone from {directory}, and snapshots of it lie in "
                f"{snapshots}.  Resume from one, the last is {stored[-1]}; or, "
                f"{moved_aside(snapshots, f'.{feed}')}"
            )

    def prepare(self, feed: FeedConfig, snapshot: str) -> int:
        """Check that a feed can be taken back; return the snapshot's term, 0 of the beginning."""
        if snapshot == BEGINNING:
            prepare(self.path, feed, None, snapshot)
            return 0
        directory, term = self.shelf.fetch(feed.name, snapshot)
        prepare(self.path, feed, directory, snapshot)
        return term

    def take_back(self, config: RunConfig, feed: str, term: int) -> RunConfig:
        """Return the config of the next start, with one feed taken back to its prepared state.

        No process may have its stores open.
        """
        config = self.next_term(config, term)
        take_back(self.path, [feed])
        return self._noted(config, [feed])

    def next_start(self, config: RunConfig) -> RunConfig:
        """Return the config of the next start, which goes on from the stored state."""
        return self._noted(self.next_term(config))

    def next_term(self, config: RunConfig, beyond: int = 0) -> RunConfig:
        """Return the same config under a larger term, which is stored."""
        term = self.raise_term(beyond, term_by_clock(), config.share)
        starts, start = self.starts, self.count
        return dataclasses.replace(config, term=term, starts=starts, start=start)

    def _noted(self, config: RunConfig, untouched: Container[str] = ()) -> RunConfig:
        """Return a config with the stored facts of its feeds; ``untouched`` were taken back."""
        feeds = []
        for feed in config.feeds:
            was = resumption(self.path, feed.name)
            noted = dataclasses.replace(
                feed,
                generation=was.generation,
                snapshot=was.snapshot,
                untouched=feed.name in untouched,
            )
            feeds.append(noted)
        return dataclasses.replace(config, feeds=tuple(feeds))

    def raise_term(self, beyond: int = 0, at_least: int = 0, share: Share = WHOLE) -> int:
        """Store and return the term of this start, one of a share and greater than ``beyond``.

        The term is on the disk before this returns.  ``at_least`` goes by the clock, so a
        directory that was put back to an earlier state gives terms beyond those of the starts
        that it has forgotten.
        """
        file = self.path / TERM
        count, *terms = read_json(file, _terms, _TERM_REMEDY) or (0, 0)
        if not file.exists() and any(map(has_states, self.path.glob("feeds/[!.]*"))):
            raise ServerError(f"{file} is gone, and states are there.  {_TERM_REMEDY}")
        number = next_term(max(terms[-1], beyond), share)
        if number < at_least <= _MOST_BY_CLOCK:
            number = next_term(at_least - 1, share)
        if number > _MOST_TERMS:
            raise ServerError(f"{file} is damaged: there is no term above {_MOST_TERMS}")
        self.starts = (*filter(None, terms), number)[-_MOST_STARTS:]
        self.count = count + 1
        write_durably(file, json.dumps([[self.count, *self.starts]] * 2))
        return number

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _terms(plain: Iterable[list[int]]) -> list[int]:
    """Return the number of starts and the terms of the last ones, which a term's file has twice."""
    once, again = plain
    if once != again or len(once) < 2 or {*map(type, once)} != {int} or min(once) < 0:
        raise ValueError("its two lists are not alike")
    return list(once)
