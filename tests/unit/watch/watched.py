"""A server to be watched that is no process: it tells what a test gives it."""

from __future__ import annotations

from typing import Any

from headrace_proto.errors import HeadraceError, ServerError, UnknownFeed

from .statuses import feed, worker

__all__ = ["Watched"]


class Watched:
    def __init__(self, **feeds: Any) -> None:
        self.draining = False
        self.addresses = ["tcp://127.0.0.1:5557"]
        self.failure: HeadraceError | None = None
        self.feeds = feeds or {"a": feed()}
        self.looks = 0
        self.share = [0, 1]
        self.disk: dict[str, Any] | None = None
        self.asked: list[dict[str, Any]] = []
        self.answer: dict[str, Any] = {"found": []}

    def look(self, timeout_s: float) -> dict[str, Any]:
        self.looks += 1
        if self.failure is not None:
            raise self.failure
        seen: dict[str, Any] = {"version": "0.1.0", "at": 100.0 + self.looks, "events": []}
        seen["access"] = {"keys": False, "known": [], "present": {}, "refused": {}}
        seen |= {"share": self.share, "disk": self.disk}
        return {**seen, "feeds": self.feeds, "workers": [worker()], "draining": self.draining}

    def ask(self, order: str, timeout_s: float, **values: Any) -> dict[str, Any]:
        if self.failure is not None:
            raise self.failure
        self.asked.append({"order": order, **values})
        return self.answer

    def begin_drain(self) -> None:
        self.draining = True

    def snapshot(
        self, feed: str | None, timeout_s: float, name: str = "", whole: bool = False
    ) -> dict[str, Any]:
        self.asked.append({"snapshot": name, "whole": whole})
        if feed in ("absent", ""):
            raise UnknownFeed(f"{feed=} is none of a")
        if self.failure is not None:
            raise self.failure
        return {"headrace": 1, "feed": feed or "a", "snapshot": "20260102T030405Z-0123456789ab"}

    def end(self, feed: str | None, cancel: bool) -> None:
        self.asked.append({"end": self._known(feed), "cancel": cancel})

    def restart(self, feed: str | None, force: bool) -> None:
        self.asked.append({"restart": self._known(feed), "force": force})

    def _known(self, feed: str | None) -> str | None:
        if feed == "absent":
            raise UnknownFeed("feed='absent' is none of a")
        return feed

    def fail(self, text: str) -> None:
        self.failure = ServerError(text)
