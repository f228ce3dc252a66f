"""Commits, states and claims that trainers send to one worker's partitions, and their answers.

save ─► partition ─► its store has written it, or there is none ─► Kept
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..core.handover import StoreCommit
from ..making.run import Run
from .events import ClaimJudged, CommitsStored, Flushed, StateFlush
from .stores import Stores

_Name = tuple[str, int]


class Commits:
    """The commits of one worker's partitions."""

    def __init__(self, stores: Stores, send: Callable[[object], None]) -> None:
        self._stores = stores
        self._send = send
        self._done: dict[_Name, list[StoreCommit]] = {}

    def save(self, name: _Name, run: Run, commit: StoreCommit) -> None:
        """Take the commit of a batch of segments, with its states; answer it once it is stored."""
        code, text, number, token = "", "", commit.batch.number, commit.token
        if not self._stores.knows(name, token):
            columns, states = commit.payload or ((), b"")
            code, text = run.saved(number, states or b"", columns)
            self._stores.submit(name, run, () if code else (token,))
        self._stores.answer_commit(name, [number, code, text])

    def add(self, feed: str, commit: StoreCommit) -> None:
        """Note the commit of a batch without states, for ``take_done``."""
        self._done.setdefault((feed, commit.batch.partition), []).append(commit)

    def take_done(self) -> dict[_Name, list[StoreCommit]]:
        """Return the noted commits, by partition."""
        done, self._done = self._done, {}
        return done

    def done(self, name: _Name, run: Run, commits: Iterable[StoreCommit]) -> None:
        """Take commits of batches without states as one change; answer them once it is stored."""
        tokens: list[int] = []
        kept: list[list[Any]] = []
        rows = 0
        for commit in commits:
            batch = commit.batch
            if not self._stores.knows(name, commit.token):
                run.saved(batch.number)
                tokens.append(commit.token)
                rows += batch.rows
            kept.append([batch.number, "", ""])
        self._stores.submit(name, run, tokens, rows)
        self._stores.answer(name, CommitsStored(*name, kept))

    def flush(
        self,
        name: _Name,
        run: Run | None,
        flush: StateFlush,
        states: bytes,
    ) -> None:
        """Take states of lanes that a trainer flushes; answer the last such message."""
        if run is not None and flush.rows:
            run.flushed(flush.number, list(flush.rows), states, flush.columns)
            self._stores.submit(name, run)
        if not flush.more:
            self._stores.answer(name, Flushed(name[0], flush.session, flush.request))

    def claim(self, name: _Name, run: Run, place: Any) -> None:
        """Judge the claim of a batch; a place with the number -1 was committed by its trainer."""
        known: int | None = None
        if self._stores.knows(name, place.token):
            verdict = "done"
        elif place.number < 0:
            verdict = "no" if self._stores.lacks(name, place.token) else "done"
        else:
            known = run.claim(place.number, place.segments)
            verdict = "no" if known is None else "yes"
        self._send(ClaimJudged(*name, place.token, verdict, known or 0))
