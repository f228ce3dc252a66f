"""What of a server outlives it: its state directory and its snapshots, and how a life begins there.

    begin(config, tokens)              ─► the config of this life: epoch, generations of the feeds
    prepare(feed, S), take_back(config, feed)
                                       ─► that of the next life, which goes on from snapshot S

The epoch is raised beyond that of every snapshot which is gone on from: tokens in it are never
given out again.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from headrace_proto.token import Token

from .config import FeedConfig, RunConfig
from .restoring import finish, prepare, resumption, take_back
from .snapshots import Shelf
from .statedir import StateDirectory

__all__ = ["Durable"]


class Durable:
    """The state directory of one server, held until ``close``."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        durability: str,
        snapshots: str | None = None,
        keep: int | None = None,
        allow_change: bool = False,
    ) -> None:
        self._durability = durability
        self._keep = keep
        self._allow_change = allow_change
        self._state = StateDirectory(path)
        try:
            finish(self._state.path)
            self.shelf = Shelf(self._state.path, snapshots, keep)
            self.shelf.sweep()
        except BaseException:
            self._state.close()
            raise

    @property
    def path(self) -> Path:
        return self._state.path

    def begin(self, config: RunConfig, tokens: Mapping[str, Token]) -> RunConfig:
        """The first life of this server; ``tokens`` by feed are gone on from."""
        found, epochs = {}, [0]
        for name, token in tokens.items():
            shelf = self.shelf
            if token.url and not shelf.far:
                shelf = Shelf(self.path, token.url)
            found[name], epoch = shelf.fetch(name, token.snapshot)
            epochs.append(epoch)
        for feed in config.feeds:
            if feed.name in tokens:
                snapshot = tokens[feed.name].snapshot
                prepare(self._state, feed, found[feed.name], snapshot, self._allow_change)
            else:
                self._state.check_feed(feed, self._allow_change)
        epoch = self._state.raise_epoch(max(epochs))
        for name in tokens:
            take_back(self._state, name)
        return dataclasses.replace(
            config,
            feeds=tuple(self._noted(feed, feed.name in tokens) for feed in config.feeds),
            state_directory=str(self.path),
            durability=self._durability,
            epoch=epoch,
        )

    def prepare(self, feed: FeedConfig, snapshot: str) -> int:
        """See that a feed can be taken back; the epoch of the snapshot."""
        directory, epoch = self.shelf.fetch(feed.name, snapshot)
        prepare(self._state, feed, directory, snapshot, self._allow_change)
        return epoch

    def take_back(self, config: RunConfig, feed: str, epoch: int) -> RunConfig:
        """The next life, with one feed taken back to what was prepared.

        No process may have its stores open.
        """
        epoch = self._state.raise_epoch(epoch)
        take_back(self._state, feed)
        feeds = tuple(self._noted(one, one.name == feed) for one in config.feeds)
        return dataclasses.replace(config, feeds=feeds, epoch=epoch)

    def _noted(self, feed: FeedConfig, untouched: bool) -> FeedConfig:
        was = resumption(self.path, feed.name)
        return dataclasses.replace(
            feed, generation=was.generation, snapshot=was.snapshot, untouched=untouched
        )

    def close(self) -> None:
        self._state.close()
