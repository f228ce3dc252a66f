"""A trainer of a feed with two owners, against a server that is a socket in the test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from headrace.link import Link
from headrace.session import Received, Session
from headrace_proto.errors import ConnectionLost, DeadlineExceeded
from headrace_proto.messages import (
    Deliver,
    Delivery,
    Hello,
    Outcome,
    Pulse,
    Step,
    Unknown,
    Welcome,
)
from tests.patience import PATIENCE_S
from tests.waiting import waits_end_with

from .peer import Peer


class Owners:
    """A server with two owners, which records a trainer's messages to each by type."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.identities: dict[int, bytes] = {}  # by owner
        self._kept: list[tuple[int, Any]] = []
        self._gone: set[bytes] = set()

    def hear(self, owner: int, kind: type, wanted: Callable[[Any], bool] = lambda m: True) -> Any:
        """The next message of a kind to one owner; -1 is any."""
        while True:
            for at, (of, message) in enumerate(self._kept):
                if of == owner and isinstance(message, kind) and wanted(message):
                    del self._kept[at]
                    return message
            message = self._peer.hear(object)
            if self._peer.identity in self._gone:
                continue
            if isinstance(message, Hello):
                self.identities[message.owner] = self._peer.identity
            of = next(k for k, one in self.identities.items() if one == self._peer.identity)
            self._kept.append((of, message))

    def begin_anew(self) -> None:
        """Ignore all messages of the present connections."""
        self._gone.update(self.identities.values())
        self.identities.clear()
        self._kept.clear()

    def say(self, owner: int, message: object, *frames: bytes) -> None:
        self._peer.identity = self.identities[owner]
        self._peer.say(message, *frames)

    def deliver(self, owner: int, seq: int, token: int, number: int) -> None:
        batch = Delivery(seq, token, owner, number, 1, 0, [], {}, "", 0, 1)
        self.say(owner, Deliver(7 + owner, (batch,)), b"")


@pytest.fixture
def owners(peer: Peer) -> Owners:
    return Owners(peer)


@pytest.fixture
def link(peer: Peer, owners: Owners) -> Iterator[Link]:
    """A link to both: the greeting that named none was answered by owner 1."""
    link = Link(peer.address, Session("f", b"nonce", prefetch=0), 30.0)
    opening = threading.Thread(target=link.open)
    opening.start()
    try:
        for owner, greeted in ((1, -1), (0, 0)):
            hello = owners.hear(greeted, Hello)
            assert (hello.nonce, hello.generation) == (b"nonce", -1 if greeted < 0 else 3)
            owners.identities[owner] = owners.identities.pop(greeted)
            told = {"owner": owner, "owners": 2, "partitions": 2}
            properties = {"generation": 3}
            welcome = Welcome(
                1, "t", 7 + owner, "f", [], 30.0, 300.0, 64, properties=properties, **told
            )
            owners.say(owner, welcome)
        opening.join(PATIENCE_S)
        assert [session.owner for session in link.sessions] == [0, 1]
        yield link
    finally:
        link.close()
        opening.join()


class Doing:
    """A call in a thread, and its outcome."""

    def __init__(self, does: Callable[[], Any]) -> None:
        self._does = does
        self._came: list[Any] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._came.append(self._does())
        except BaseException as error:
            self._came.append(error)

    def end(self) -> Any:
        self._thread.join(PATIENCE_S)
        (came,) = self._came
        return came


def test_a_wait_for_one_owner_sends_commits_to_the_others(link: Link, owners: Owners):
    taking = Doing(link.take)
    owners.hear(0, Step)
    owners.deliver(0, 1, 1, 0)
    assert taking.end().delivery.token == 1
    link.commit(1)
    taking = Doing(link.take)
    assert owners.hear(0, Step).commits == (1,)
    owners.hear(1, Step)
    owners.deliver(1, 1, 11, 0)
    assert taking.end().delivery.token == 11


def test_the_error_of_a_deadline_names_the_awaited_owner(link: Link, owners: Owners):
    told = threading.Event()

    def answer() -> None:
        while not told.is_set():
            for owner in (0, 1):
                if owner in owners.identities:
                    owners.say(owner, Pulse(7 + owner, waiting=f"owner {owner} is in augment"))
            told.wait(0.05)

    with waits_end_with("is in augment"):
        taking = Doing(link.take)
        owners.hear(0, Step)
        answering = threading.Thread(target=answer)
        answering.start()
        error = taking.end()
    told.set()
    answering.join()
    assert isinstance(error, DeadlineExceeded) and "owner 0 is in augment" in str(error)


def test_an_owner_that_does_not_answer_is_named_as_a_server_that_does_not(peer: Peer):
    owners = Owners(peer)
    link = Link(peer.address, Session("f", b"nonce", prefetch=0), 0.5)
    opening = Doing(link.open)
    try:
        owners.hear(-1, Hello)
        owners.say(-1, Welcome(1, "t", 7, "f", [], 30.0, 300.0, 64, owner=0, owners=2))
        error = opening.end()
    finally:
        link.close()
    assert isinstance(error, ConnectionLost) and "no server answered" in str(error)


@pytest.mark.parametrize("number", [1, 3])
def test_a_server_with_another_number_of_owners_gets_claims_of_all_held_batches(
    link: Link, owners: Owners, number: int
):
    """1 batches 0/0 and 0/1 are taken, one is committed, 2 the server restarts with others."""
    for session in link.sessions:
        session.prefetch = 1
    link.say()
    for owner in (0, 1):
        owners.hear(owner, Step)
        owners.deliver(owner, 1, 10 + owner, 0)
        link.place(cast(Received, Doing(link.take).end()).delivery, b"")
    link.commit(10)
    link.say()
    assert owners.hear(0, Step, lambda step: bool(step.commits)).commits == (10,)
    for owner in (0, 1):
        owners.say(owner, Unknown(7 + owner))
    other = {"owners": number, "partitions": 2}
    hello = owners.hear(0, Hello)
    owners.say(0, Welcome(1, "t", 17, "f", [], 30.0, 300.0, 64, owner=0, **other))
    owners.begin_anew()
    for owner in range(number):
        hello = owners.hear(owner, Hello)
        mine = [10 + partition for partition in (0, 1) if partition % number == owner]
        assert [place.token for place in hello.batches] == mine
        assert list(hello.held) == [token for token in mine if token == 11]
        owners.say(owner, Welcome(1, "t", 17, "f", [], 30.0, 300.0, 64, owner=owner, **other))
    assert owners.hear(0, Step, lambda step: bool(step.commits)).commits == (10,)
    owners.say(0, Outcome(17, (10,)))
    link.commit(11)
    link.say()
    owner = 1 % number
    assert owners.hear(owner, Step, lambda step: 11 in step.commits).session == 17
    owners.say(owner, Outcome(17, (11,)))
    assert Doing(link.settle).end() is None
    assert len(link.sessions) == number and link.connected
