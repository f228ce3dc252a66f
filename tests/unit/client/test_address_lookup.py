"""A server is tried at every address of its name."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

import headrace
from headrace.connection.link import Link
from headrace.connection.session import Member
from headrace_proto.errors import ConnectionLost, UnknownFeed
from headrace_proto.messages import Hello, Refused
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.waiting import waits_end_with

from .peer import Peer, opening


class Name:
    """The addresses for which ``localhost`` stands; ZeroMQ itself knows it as 127.0.0.1."""

    def __init__(self) -> None:
        self.addresses = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
        self.port = free_port()
        self.address = f"tcp://localhost:{self.port}"

    def bound(self, host: str) -> str:
        return f"tcp://{host}:{self.port}"

    def look_up(self, host: str, port: str, *of: object) -> list[tuple[object, ...]]:
        if not self.addresses:
            raise socket.gaierror(-2, "Name or service not known")
        kind = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
        return [(*kind, (address, port)) for address in self.addresses]


@pytest.fixture
def name(monkeypatch: pytest.MonkeyPatch) -> Name:
    name = Name()
    monkeypatch.setattr("headrace.connection.places.sockets.getaddrinfo", name.look_up)
    monkeypatch.setattr("headrace.connection.finding._ASK_S", 0.1)
    return name


def test_a_server_that_goes_on_at_another_address_of_its_name_is_found(name):
    """1. The first server at the name lets a trainer in, and ends.
    2. The trainer greets the server at the second address.
    """
    with closing(Peer(name.bound("127.0.0.1"))) as first, closed(name.address) as link:
        opening(link, first.welcome)
        with closing(Peer(name.bound("127.0.0.2"))) as second:
            link.session.greet()
            first.close()
            second.welcome()


def closed(address: str) -> Any:
    return closing(Link(address, Member(), PATIENCE_S))


@pytest.fixture
def places() -> Iterator[list[Peer]]:
    """A locator and an owner; peers that are added are closed, too."""
    peers = [Peer(), Peer()]
    peers[0].owners = 0
    yield peers
    for peer in peers:
        peer.close()


def test_an_owner_whose_port_another_server_has_is_asked_for_at_the_locator(places):
    """1. The owner lets a trainer in, and ends.
    2. A server of other feeds takes its port, and refuses the trainer.
    3. The locator names the owner's new address.
    """
    locator, owner = places

    def let_in() -> None:
        locator.hear(Hello)
        locator.locate(owner=owner.address)
        owner.welcome()

    with closed(locator.address) as link:
        opening(link, let_in)
        owner.close()
        places += [stranger := Peer(owner.address), moved := Peer()]
        link.session.greet()
        stranger.hear(Hello)
        stranger.say(Refused("feed", "there is no feed 'f'; this server has 'g'"))
        assert not locator.hear(Hello).shares
        locator.locate(owner=moved.address)
        moved.welcome()
        link.waits.wait(lambda: link.wire.connected, PATIENCE_S, "the Welcome at the new address")


def test_a_locator_without_the_feed_ends_the_search_for_its_owner(places):
    locator, owner = places

    def refuse() -> None:
        locator.hear(Hello)
        locator.locate(owner=owner.address)
        owner.hear(Hello)
        owner.say(Refused("feed", "there is no feed 'f'"))
        locator.hear(Hello)
        locator.say(Refused("feed", "there is no feed 'f' any more"))

    with closed(locator.address) as link, pytest.raises(UnknownFeed, match="any more"):
        opening(link, refuse)


def test_where_no_address_answers_the_error_lists_those_of_the_name(name):
    with waits_end_with("Its name stands for"), pytest.raises(ConnectionLost) as caught:
        headrace.connect(name.address, timeout=PATIENCE_S)
    tried = ", ".join(f"tcp://127.0.0.{n}:{name.port}" for n in (1, 2, 3))
    assert f"Its name stands for {tried}" in str(caught.value)


def test_a_name_that_nobody_knows_is_named(name):
    name.addresses = []
    unknown = r"the name in .* can not be looked up: .* not known"
    with waits_end_with(unknown), pytest.raises(ConnectionLost, match=unknown):
        headrace.connect(name.address, timeout=PATIENCE_S)
