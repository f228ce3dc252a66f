"""Snapshots that are being made: what the supervisor does of them.

    make ─► order "copy" ─► owners: partitions copy their stores ─► checksums, disk, URL ─► token

Whoever calls lends a thread: disks and networks take their time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from headrace_proto.errors import ServerError, code_of, from_code
from headrace_proto.token import Token

from .snapshots import Shelf

__all__ = ["Archive"]

logger = logging.getLogger("headrace.server")

#: Snapshots that are made at the same time; more have to wait their turn outside.
_MOST = 16


class Archive:
    """The snapshots of one server.

    ``ask`` gives the answers of all owners to an order, or raises ``failure()`` where there is one.
    ``epoch`` is that of the last start.
    """

    def __init__(
        self,
        shelf: Shelf,
        epoch: Callable[[], int],
        ask: Callable[..., Mapping[int, Mapping[str, Any]]],
        failure: Callable[[], ServerError | None] = lambda: None,
    ) -> None:
        self._shelf = shelf
        self._epoch = epoch
        self._ask = partial(ask, "copy", None, failure)
        self._places = threading.BoundedSemaphore(_MOST)

    def make(self, feed: str) -> Token:
        """Make a snapshot.  An error has the code of its cause."""
        try:
            if not self._places.acquire(blocking=False):
                raise ServerError(f"{_MOST} snapshots are being made: ask again later")
            try:
                token = self._make(feed)
            finally:
                self._places.release()
        except Exception as error:
            text = f"the snapshot was not made: {error}"
            logger.error("feed %r: %s", feed, text)
            raise from_code(code_of(error), text) from error
        logger.info("feed %r: snapshot %s is made", feed, token.snapshot)
        return token

    def _make(self, feed: str) -> Token:
        name, directory = self._shelf.begin(feed)
        try:
            for told in self._ask(feed=feed, directory=str(directory)).values():
                if told["code"]:
                    raise from_code(told["code"], told["text"])
            return self._shelf.finish(feed, name, self._epoch())
        except BaseException:
            self._shelf.abandon(feed, name)
            raise
