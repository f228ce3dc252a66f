"""A trainer asks all servers for their shares before it greets any, against sockets in the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from headrace import driver
from headrace.link import Link
from headrace.session import Member
from headrace_proto.clock import AwakeClock
from headrace_proto.errors import ConnectionLost
from headrace_proto.messages import Hello, Pulse
from tests.patience import PATIENCE_S, eventually

from .peer import Peer, welcome_to


@pytest.fixture
def peers(peer: Peer) -> Iterator[list[Peer]]:
    other = Peer()
    peer.owners = other.owners = 0
    yield [peer, other]
    other.close()


class Opening:
    """A thread that opens a link, and its outcome."""

    def __init__(self, address: str, **of: Any) -> None:
        self.link = Link(address, Member(**of), PATIENCE_S)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.link.open()
        except BaseException as error:
            self.error = error

    def end(self) -> BaseException | None:
        self._thread.join(PATIENCE_S)
        self.link.close()
        return self.error


def served(peer: Peer, share: int) -> Hello:
    """Let a peer answer a greeting with its share; the greeting."""
    hello: Hello = peer.hear(Hello)
    peer.locate(share, 2)
    return hello


def welcomed(peer: Peer, owner: int = 0, owners: int = 1) -> Hello:
    """Let a peer answer a greeting for a share with a Welcome; the greeting."""
    while not (hello := peer.hear(Hello)).shares:
        pass
    peer.say(welcome_to(hello, owner=owner, owners=owners, partitions=4))
    return hello


def both(peers: list[Peer]) -> str:
    return ",".join(peer.address for peer in peers)


def test_every_server_is_asked_and_then_greeted_as_the_one_with_its_share(peers: list[Peer]):
    opening = Opening(both(peers))
    asked = [served(peers[0], 1), served(peers[1], 0)]
    assert [hello.shares for hello in asked] == [0, 0]
    hellos = [welcomed(peer) for peer in peers]
    assert [(hello.share, hello.shares) for hello in hellos] == [(1, 2), (0, 2)]
    assert len({hello.nonce for hello in asked + hellos}) == 1
    assert opening.end() is None
    link = opening.link
    assert [session.address for session in link.sessions] == [p.address for p in peers[::-1]]
    assert [link.session_of(p).share for p in range(4)] == [0, 1, 0, 1]


def test_a_rank_without_a_run_has_that_of_its_first_owner_for_all_others(peers: list[Peer]):
    opening = Opening(both(peers), rank=1, world_size=2)
    served(peers[0], 1), served(peers[1], 0)
    hello = peers[1].hear(Hello)
    assert hello.run == 0
    peers[1].say(welcome_to(hello, partitions=4, run=5))
    assert welcomed(peers[0]).run == 5
    assert opening.end() is None


def test_one_address_of_a_share_is_refused_at_once(peer: Peer):
    peer.owners = 0
    opening = Opening(peer.address)
    assert served(peer, 0).shares == 0
    error = opening.end()
    assert isinstance(error, ValueError)
    assert f"share 0/2 is at {peer.address}; missing: share 1 of 2" in str(error)


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """By how much the clocks of links are ahead, which ends a wait amid its timeout."""
    ahead = [0.0]
    clock = partial(AwakeClock, 1e6, lambda: time.monotonic() + ahead[0])
    monkeypatch.setattr(driver, "AwakeClock", clock)
    return ahead


def test_a_name_is_looked_up_until_the_timeout(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, ahead: list[float]
):
    looks: list[str] = []

    def looked_up(name: str) -> list[str]:
        looks.append(name)
        return [peer.address]

    monkeypatch.setattr("headrace.link.looked_up", looked_up)
    monkeypatch.setattr("headrace.link._LOOK_UP_S", 0.1)
    peer.owners = 0
    opening = Opening(peer.address)
    served(peer, 0)
    eventually(lambda: len(looks) > 2)
    ahead[0] = PATIENCE_S
    error = opening.end()
    assert isinstance(error, ConnectionLost)
    assert f"which stands for {peer.address}: of feed 'f' share 0/2 is at" in str(error)


def test_a_server_that_opens_its_sources_is_waited_for(peers: list[Peer], ahead: list[float]):
    opening = Opening(both(peers))
    served(peers[0], 0), served(peers[1], 1)
    welcomed(peers[0])
    while not peers[1].hear(Hello).shares:
        pass
    peers[1].say(Pulse(0, waiting="the workers are opening the feed's source"))
    sessions = opening.link.sessions
    eventually(lambda: any(session.welcome is not None for session in sessions))
    eventually(lambda: any("opening" in session.waiting for session in sessions))
    ahead[0] = PATIENCE_S
    error = opening.end()
    place = f"{peers[1].address} \\(share 1/2\\)"
    with pytest.raises(TimeoutError, match=f"for the feed at {place} to open"):
        raise error or AssertionError
