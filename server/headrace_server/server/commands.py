"""Commands of operators, which the locator passes on; each gets a thread, since most of them wait.

Command ─► locator ─► Commands ┬─ status, inspect ─► the watch
                               └─ the others ──────► the supervisor
        ◄── locator ◄── JSON, or an error's code and text
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace_proto.errors import HeadraceError, ProtocolError, code_of
from headrace_proto.token import SNAPSHOT

from ..process.child import Message
from ..watch.watch import Watch
from .asks import LOCATOR
from .snapshot_requests import in_thread

if TYPE_CHECKING:
    from .supervisor import Supervisor

#: Maximum time for a snapshot, which waits for stores and disks.
_SNAPSHOT_S = 600.0
#: Maximum number of commands that are carried out at the same time.
_MOST = 16
#: Maximum length of an error's text: it fits a header.
_LONGEST_TEXT = 4000


class Commands:
    """The commands to one server."""

    def __init__(self, server: Supervisor, watch: Watch) -> None:
        self._server, self._watch = server, watch
        self._places = threading.BoundedSemaphore(_MOST)

    def on_command(self, locator: int, number: int, **command: Any) -> None:
        """Carry out a command that the locator reports."""
        if self._places.acquire(blocking=False):
            in_thread(partial(self._perform, number, command))
        else:
            text = f"{_MOST} commands are being carried out: ask again later"
            self._answer(number, code="server", text=text)

    def _perform(self, number: int, command: Message) -> None:
        try:
            self._answer(number, json.dumps(self.carry_out(**command)))
        except (HeadraceError, ValueError) as error:
            self._answer(number, code=code_of(error), text=str(error)[:_LONGEST_TEXT])
        finally:
            self._places.release()

    def _answer(self, number: int, content: str = "", code: str = "", text: str = "") -> None:
        answered = {"content": content, "code": code, "text": text}
        self._server.crew.order(LOCATOR, order="commanded", number=number, **answered)

    def carry_out(
        self,
        what: str,
        feed: str,
        key: str,
        name: str,
        whole: bool,
        cancel: bool,
        force: bool,
        log: str = "",
        idle_s: float = 0.0,
    ) -> object:
        """Carry out a command; return its result.  ``key`` is hexadecimal."""
        server, watch, named = self._server, self._watch, feed or None
        if what == "status":
            return watch.status()
        watch.check_started()
        if what == "inspect":
            return watch.inspect(bytes.fromhex(key), named)
        if (name and not SNAPSHOT.fullmatch(name)) or (whole and not name):
            raise ProtocolError("Command.name is no name of a snapshot")
        actions: dict[str, Callable[[], object]] = {
            "snapshot": lambda: server.snapshot(named, _SNAPSHOT_S, name, whole),
            "end": lambda: server.end(named, cancel),
            "restart": lambda: server.restart(named, force),
            "drain": server.begin_drain,
            "logs": lambda: server.ask("logs")["logs"],
            "trim": lambda: server.ask("trim", log=log, idle_s=idle_s)["ended"],
        }
        if what not in actions:
            raise ProtocolError(f"Command.what: {what!r:.80} is none of this release")
        try:
            return actions[what]()
        finally:
            watch.forget()
