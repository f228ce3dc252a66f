"""What of a server outlives it: its state directory and its snapshots, and how a life begins there.

    begin(config, tokens)        ─► the config of this life: epoch, generations of the feeds
    take_back(config, feed, S)   ─► that of the next life, which goes on from snapshot S

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
from .restoring import finish, resumption, take_back
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
            if feed.name not in tokens:
                self._state.check_feed(feed, self._allow_change)
        epoch = self._state.raise_epoch(max(epochs))
        feeds = []
        for feed in config.feeds:
            if feed.name in tokens:
                args = found[feed.name], tokens[feed.name].snapshot, self._allow_change
                take_back(self._state, feed, *args)
            feeds.append(self._noted(feed, feed.name in tokens))
        return dataclasses.replace(
            config,
            feeds=tuple(feeds),
            state_directory=str(self.path),
            durability=self._durability,
            epoch=epoch,
        )

    def find(self, feed: str, snapshot: str) -> Path:
        """The directory of a snapshot; ServerError when it can not be gone on from."""
        return self.shelf.fetch(feed, snapshot)[0]

    def take_back(self, config: RunConfig, feed: str, snapshot: str) -> RunConfig:
        """The next life, with one feed taken back.  No process may have its stores open."""
        directory, epoch = self.shelf.fetch(feed, snapshot)
        epoch = self._state.raise_epoch(max(epoch, config.epoch))
        feeds = []
        for one in config.feeds:
            if one.name == feed:
                take_back(self._state, one, directory, snapshot, self._allow_change)
            feeds.append(self._noted(one, one.name == feed))
        return dataclasses.replace(config, feeds=tuple(feeds), epoch=epoch)

    def _noted(self, feed: FeedConfig, untouched: bool) -> FeedConfig:
        was = resumption(self.path, feed.name)
        return dataclasses.replace(
            feed, generation=was.generation, snapshot=was.snapshot, untouched=untouched
        )

    def close(self) -> None:
        self._state.close()
