"""Looks for servers that are away at another address.

    a connection without its server, once a second ─► ray://      the directory ─► its new address
                                                   ─► a DNS name  looked up     ─► its next address

ZeroMQ tries the first address of a name only.  A look-up may take long, so a thread of its own
waits for it.
"""

from __future__ import annotations

import threading
from math import inf
from typing import TYPE_CHECKING

from headrace_proto.errors import ConnectionLost

from .shares import looked_up

if TYPE_CHECKING:
    from .driver import Driver

_ASK_S = 1.0  # between two lookups of the address of a server that is away


class AddressLookup:
    """The addresses at which the servers of one driver are tried."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._asked_at = driver.clock()
        self._places: dict[str, str] = {}  # by name: the address that is tried now
        self._tried: dict[str, list[str]] = {}  # by name: its addresses, the last one tried last
        self._words: dict[str, str] = {}  # by name: the tried addresses, for people

    def place_of(self, address: str) -> str:
        """Return where a server is tried: one of the addresses for which its name stands."""
        return self._places.get(address, address)

    @property
    def words(self) -> str:
        """Return the tried addresses of servers that no attempt to connect reaches, in words."""
        names = {one.address: None for one in self._driver.connections if one.unreached}
        return "".join(self._words.get(name, "") for name in names)

    def look(self) -> None:
        """Look for servers that are away, in another thread."""
        driver = self._driver
        if driver.clock() - self._asked_at <= _ASK_S:
            return
        if driver.moved is not None or any(one.unreached for one in driver.connections):
            self._asked_at = inf  # until the answer, which may take longer than a heartbeat
            threading.Thread(target=self._run, name="headrace-search", daemon=True).start()

    def _run(self) -> None:
        driver = self._driver
        try:
            moved = {} if driver.moved is None else driver.moved()
            for name in {one.address for one in driver.connections if one.unreached}:
                self._try_next(name)
            with driver.lock:
                for one in driver.connections:
                    if one.address in moved:
                        one.session.address = moved[one.address]
                        driver.reach(one.session)
                    elif one.unreached and one.place != self.place_of(one.address):
                        driver.reach(one.session)
        except Exception as error:
            driver.fail(error)
        self._asked_at = driver.clock()

    def _try_next(self, name: str) -> None:
        """Choose the address of a name that is tried next."""
        try:
            found = looked_up(name)
        except ConnectionLost as error:
            self._words[name] = f"  {error}"
            return
        if not found:  # it is an address already
            return
        tried = self._tried.setdefault(name, found[:1])  # ZeroMQ has tried the first one
        place = min(found, key=lambda one: tried.index(one) if one in tried else -1)
        if place in tried:
            tried.remove(place)
        tried.append(place)
        later = ", ".join(one for one in found if one not in tried)
        each = f"each of which was tried, but not {later}" if later else "each of which was tried"
        self._words[name] = f"  Its name stands for {', '.join(found)}, {each}"
        if len(found) > 1 or name in self._places:
            self._places[name] = place
