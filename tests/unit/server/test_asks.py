"""A question to the owners waits until all have answered, and no longer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from headrace_proto.errors import HeadraceError, ServerError
from headrace_server.server.asks import LOCATOR, Asks
from tests.patience import PATIENCE_S, eventually


class Child:
    def __init__(self, owner: int, orders: list[tuple[int, dict[str, Any]]]) -> None:
        self._owner, self._orders = owner, orders

    def order(self, **values: Any) -> None:
        self._orders.append((self._owner, values))


class Server:
    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.failure: HeadraceError | None = None
        self.orders: list[tuple[int, dict[str, Any]]] = []
        self.dead: set[int] = set()
        self.asks = Asks(self.lock, self.wait_for, self.children, lambda: self.failure)

    def children(self) -> Any:
        owners = range(LOCATOR, 2)
        return {n: None if n in self.dead else Child(n, self.orders) for n in owners}

    def wait_for(self, done: Callable[[], bool], timeout_s: float | None) -> bool:
        return self.lock.wait_for(done, timeout_s)

    def hear(self, owner: int, **values: Any) -> None:
        with self.lock:
            self.asks.answer(owner, **values)
            self.lock.notify_all()


class Asking:
    def __init__(
        self, server: Server, *arguments: Any, orders: int | None = None, **values: Any
    ) -> None:
        self.answers: Mapping[int, Mapping[str, Any]] = {}
        self.error: HeadraceError | None = None
        n = len(server.orders) + (len(arguments[0]) if orders is None else orders)

        def ask() -> None:
            try:
                self.answers = server.asks.ask(*arguments, **values)
            except HeadraceError as error:
                self.error = error

        self._thread = threading.Thread(target=ask)
        self._thread.start()
        eventually(lambda: len(server.orders) == n)

    def end(self) -> Asking:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self


def test_the_next_life_of_an_owner_is_asked_again_until_it_has_answered():
    server = Server()
    asking = Asking(server, range(2), "copy", None)
    server.hear(0, request=1)
    assert server.asks.unanswered(0) == []
    assert server.asks.unanswered(1) == [{"request": 1, "order": "copy"}]
    server.hear(1, request=1)
    assert list(asking.end().answers) == [0, 1] and server.asks.unanswered(1) == []


def test_those_who_gave_no_answer_in_time_are_named():
    server = Server()
    with pytest.raises(
        ServerError, match=r"the locator and worker 0 gave no answer \(stats\) within"
    ):
        server.asks.ask(range(LOCATOR, 1), "stats", 0.0)
    server.hear(0, request=1)  # too late: harmless


def test_a_failure_of_the_server_or_of_the_question_ends_the_wait():
    server = Server()
    over: list[HeadraceError] = []
    first = Asking(server, [0], "copy", None, lambda: over[0] if over else None)
    other = Asking(server, [0], "close", None)
    with server.lock:
        over.append(ServerError("that life is over"))
        server.lock.notify_all()
    assert str(first.end().error) == "that life is over"
    with server.lock:
        server.failure = ServerError("it has failed")
        server.lock.notify_all()
    assert str(other.end().error) == "it has failed"
