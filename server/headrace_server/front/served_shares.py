"""Tells a trainer which share of a feed this server has, before it opens a session.

    Hello for another share, or for none ─► ServedShare ─► the trainer finds the other servers

A trainer compares the answers of all servers of a feed: what they declare must be the same, so each
part of the declaration has a digest.  Files count by name and size, since they may lie elsewhere on
each host and be written there at another time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headrace_proto.messages import Hello, ServedShare

from ..pipeline.declaration import digest
from ..process.config import FeedConfig, RunConfig
from ..state.statedir import described


def digests(feed: FeedConfig) -> dict[str, str]:
    """Return a digest of each part of a feed that all its servers must have alike."""
    plain = described(feed)
    pipeline: Mapping[str, Any] = plain["pipeline"]
    source = {name: value for name, value in pipeline["source"].items() if name != "paths"}
    files = [(str(path).rsplit("/", 1)[-1], size) for path, size, _ in plain["files"]]
    parts = {**pipeline, "source": source, "files": files}
    return {name: digest(part) for name, part in parts.items()}


class ServedShares:
    """The share of each feed that one server has."""

    def __init__(self, config: RunConfig) -> None:
        self._feeds = {feed.name: feed for feed in config.feeds}
        self._server = Path(config.directory).name
        self._digests: dict[str, dict[str, str]] = {}  # by feed, once a trainer has asked

    def answer(self, hello: Hello, sessions: Iterable[int]) -> ServedShare | None:
        """Answer a greeting that is for another share; None where it is for this one.

        ``sessions``: the number of sessions of each owner.
        """
        name = hello.feed or (next(iter(self._feeds)) if len(self._feeds) == 1 else "")
        feed = self._feeds.get(name)
        if feed is None or (hello.share, hello.shares) == feed.share:
            return None  # an owner answers that there is no such feed
        if name not in self._digests:
            self._digests[name] = digests(feed)
        return ServedShare(
            feed=name,
            share=feed.share[0],
            shares=feed.share[1],
            partitions=feed.partitions,
            server=self._server,
            sessions=sum(sessions),
            declaration=self._digests[name],
        )
