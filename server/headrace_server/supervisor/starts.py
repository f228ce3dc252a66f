"""The starts of a server's owners, each with a term of its own: no two give out the same token.

begin_all() ─► of(owner) ─► … its death ─► begin(owner) ─► of(owner) ─► …

With a state directory each start is stored there before it begins.
"""

from __future__ import annotations

import secrets
import threading
from dataclasses import replace
from typing import Any

from headrace_proto.placement import next_term

from ..process.config import RunConfig
from ..state.durable import Durable


class Starts:
    """``config`` is that of the last start."""

    def __init__(self, config: RunConfig, durable: Durable | None) -> None:
        if not config.term:  # tokens of its starts must differ
            config = replace(config, term=next_term(secrets.randbits(30), config.share))
        self.config = config
        self._durable = durable
        self._begun: dict[int, RunConfig] = {}  # by owner
        # A worker may die while the server begins anew.
        self._lock = threading.RLock()

    def of(self, owner: int | None) -> RunConfig:
        """Return the config of an owner's start; for the front that of the last start of any."""
        return self.config if owner is None else self._begun.get(owner, self.config)

    def change(self, **values: Any) -> None:
        """Let all starts from now on have other values."""
        with self._lock:
            self.config = replace(self.config, **values)

    def begin_all(self) -> None:
        """Begin all owners: the first with the term of the server's start."""
        with self._lock:
            for number in range(self.config.workers):
                if number:
                    self.config = self._next_term()
                self._begun[number] = self.config

    def begin_all_anew(self) -> None:
        """Begin all owners again, while the server goes on."""
        with self._lock:
            self.config = self._next_term()
            self.begin_all()

    def begin(self, owner: int) -> None:
        """Begin an owner again after its death: it goes on as after a start of the server."""
        with self._lock:
            if self._durable is not None:
                self.config = self._durable.next_start(self.config)
            else:
                self.config = self._next_term()
            self._begun[owner] = self.config

    def take_back(self, feed: str, term: int) -> None:
        """Begin the next start of the server, with a feed taken back to its prepared state."""
        assert self._durable is not None
        with self._lock:
            self.config = self._durable.take_back(self.config, feed, term)

    def _next_term(self) -> RunConfig:
        if self._durable is not None:
            return self._durable.next_term(self.config)
        return replace(self.config, term=next_term(self.config.term, self.config.share))
