"""State that outlives a server: its state directory and snapshots, and how a start begins there.

    begin(config, tokens)              ─► the config of this start: term, generations of the feeds
    prepare(feed, S), take_back(config, feed)
                                       ─► that of the next start, which goes on from snapshot S

The number of a start is its **term**; a token carries it in its upper bits.  A start that goes on
from a snapshot gets a term beyond that of the snapshot, so no token is given out twice.  Terms also
follow the clock, so the same holds for tokens that a state directory has forgotten because it was
put back to an earlier state.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Container, Mapping
from pathlib import Path

from headrace_proto.placement import WHOLE, Share
from headrace_proto.token import Token

from ..process.config import FeedConfig, RunConfig
from ..process.rewinding import BEGINNING
from ..process.settings import KEEP_SNAPSHOTS
from .restoring import finish, prepare, resumption, take_back
from .snapshots import Shelf
from .state_directory import StateDirectory

#: 1 January 2026, in seconds since 1970: terms by the clock count from there …
_SINCE_S = 1_767_225_600
#: … in steps of an eighth of a second, since 31 bits of these last until 2034; after that a term is
#: one more than the one before.  A directory that is put back to an earlier state has to be started
#: later than this after the start that it forgets, by one step for each worker and share.
_STEPS = 8


def term_by_clock() -> int:
    """Return the least term for a start that begins now."""
    return max(0, int(_STEPS * (time.time() - _SINCE_S)))


class Durable:
    """The state directory of one server, held until ``close``."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        durability: str,
        snapshots: str | None = None,
        keep: int = KEEP_SNAPSHOTS,
        allow_change: bool = False,
        share: Share = WHOLE,
    ) -> None:
        self._durability = durability
        self._allow_change = allow_change
        self._state = StateDirectory(path)
        try:
            finish(self._state.path)
            self.shelf = Shelf(self._state.path, snapshots, keep, share)
            self.shelf.check()
            self.shelf.sweep()
        except BaseException:
            self._state.close()
            raise

    @property
    def path(self) -> Path:
        return self._state.path

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
            feeds = (self._state.with_partitions(one, found.get(one.name)) for one in config.feeds)
            config = dataclasses.replace(config, feeds=tuple(feeds))
        for feed in config.feeds:
            if feed.name in tokens:
                snapshot = tokens[feed.name].snapshot
                prepare(self._state, feed, found[feed.name], snapshot, self._allow_change)
            else:
                self._state.check_feed(feed, self._allow_change)
        config = self.next_term(config, max(terms))
        if tokens:
            take_back(self._state, tokens)
        return dataclasses.replace(
            self._noted(config, tokens),
            state_directory=str(self.path),
            durability=self._durability,
        )

    def prepare(self, feed: FeedConfig, snapshot: str) -> int:
        """Check that a feed can be taken back; return the snapshot's term, 0 of the beginning."""
        if snapshot == BEGINNING:
            prepare(self._state, feed, None, snapshot, self._allow_change)
            return 0
        directory, term = self.shelf.fetch(feed.name, snapshot)
        prepare(self._state, feed, directory, snapshot, self._allow_change)
        return term

    def take_back(self, config: RunConfig, feed: str, term: int) -> RunConfig:
        """Return the config of the next start, with one feed taken back to its prepared state.

        No process may have its stores open.
        """
        config = self.next_term(config, term)
        take_back(self._state, [feed])
        return self._noted(config, [feed])

    def next_start(self, config: RunConfig) -> RunConfig:
        """Return the config of the next start, which goes on from the stored state."""
        return self._noted(self.next_term(config))

    def next_term(self, config: RunConfig, beyond: int = 0) -> RunConfig:
        """Return the same config under a larger term, which is stored."""
        term = self._state.raise_term(beyond, term_by_clock(), config.share)
        starts, start = self._state.starts, self._state.count
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

    def close(self) -> None:
        self._state.close()
