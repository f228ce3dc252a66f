"""The starts of a server's owners, each with a term of its own: no two give out the same token.

begin_all() ─► of(owner) ─► … its death ─► begin(owner) ─► of(owner) ─► …

With a state directory each start is stored there before it begins.
"""

from __future__ import annotations

import secrets
import threading
from dataclasses import replace

from headrace_proto.placement import next_term

from ..journal.state_directory import StateDirectory
from ..process.config import RunConfig
from ..process.rewinding import BEGINNING
from ..process.rundir import forget_journals


class Starts:
    """``config`` is that of the last start."""

    def __init__(self, config: RunConfig, durable: StateDirectory | None) -> None:
        if not config.term:  # tokens of its starts must differ
            config = replace(config, term=next_term(secrets.randbits(30), config.share))
        self.config = config
        self._durable = durable
        self._begun: dict[int, RunConfig] = {}  # by owner
        # A worker may die while the server begins anew.
        self._lock = threading.RLock()

    def of(self, owner: int) -> RunConfig:
        """Return the config of an owner's start."""
        return self._begun[owner]

    def begin_all(self) -> None:
        """Begin all owners: the first with the term of the server's start."""
        with self._lock:
            for number in range(self.config.workers):
                if number:
                    self.config = self._next_term()
                self._begun[number] = self.config

    def begin(self, owner: int) -> None:
        """Begin an owner again after its death: it goes on as after a start of the server."""
        with self._lock:
            if self._durable is not None:
                self.config = self._durable.next_start(self.config)
            else:
                self.config = self._next_term()
            self._begun[owner] = self.config

    def take_back(self, feed: str, term: int) -> None:
        """Begin all owners again, with a feed taken back to its prepared state, or its beginning.

        No process may have its stores open.
        """
        with self._lock:
            if self._durable is not None:
                self.config = self._durable.take_back(self.config, feed, term)
            else:
                forget_journals(self.config.directory, feed)
                begun = self.config.feed(feed)
                anew = replace(begun, generation=begun.generation + 1, snapshot=BEGINNING)
                feeds = tuple(anew if one is begun else one for one in self.config.feeds)
                self.config = replace(self._next_term(), feeds=feeds)
            self.begin_all()

    def _next_term(self) -> RunConfig:
        if self._durable is not None:
            return self._durable.next_term(self.config)
        return replace(self.config, term=next_term(self.config.term, self.config.share))
