"""Answers of servers make a feed complete, or contradict each other."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from headrace.places import arranged, looked_up, missing_shares, shares_there
from headrace.session import Member, Session
from headrace_proto.errors import ConnectionLost
from headrace_proto.messages import ServedShare


def at(address: str, share: int = 0, shares: int = 2, server: str = "", **of: Any) -> Session:
    session = Session(Member())
    session.address, session.shares = address, 0
    facts = {"feed": "f", "partitions": 4, "declaration": {"source": "s", "shape": "t"}, **of}
    session.served = ServedShare(
        share=share, shares=shares, server=server or address, workers=(address,), **facts
    )
    return session


def silent(address: str) -> Session:
    session = Session(Member())
    session.address = address
    return session


def test_servers_are_sorted_by_share_in_any_order_of_their_answers():
    two, one = at("b", 1), at("a", 0)
    assert arranged([two, silent("c"), one]) == {0: one, 1: two}
    assert missing_shares([two, one]) == []


def test_the_later_of_two_addresses_of_one_server_counts():
    name, number = at("name", 0, server="same"), at("1.2.3.4", 0, server="same")
    assert arranged([name, number]) == {0: number}


def test_missing_shares_are_listed():
    assert missing_shares([silent("a")]) == []
    assert shares_there([silent("a")]) == ""
    assert shares_there([at("b", 0, 1), silent("a")]) == "of feed 'f' share 0/1 is at b"
    sessions = [at("b", 1, 4), silent("a"), at("c", 2, 4)]
    assert missing_shares(sessions) == [0, 3]
    assert shares_there(sessions) == (
        "of feed 'f' share 1/4 is at b, share 2/4 is at c; missing: share 0, 3 of 4"
    )


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (at("b", 0), "share 0/2 of feed 'f' is at a and at b, which are two servers"),
        (at("b", 1, feed="g"), "a serves feed 'f' and b serves feed 'g'"),
        (at("b", 1, 3), "as one of 2 servers and b serves it as one of 3"),
        (at("b", 1, partitions=5), "with 4 partitions and b serves it with 5"),
        (at("b", 1, declaration={"source": "s", "shape": "u", "files": ""}), "in files, shape$"),
        (at("b", 1, declaration=7), "they differ in shape, source"),
    ],
)
def test_servers_that_contradict_each_other_are_named(other: Session, text: str):
    with pytest.raises(ValueError, match=text):
        arranged([at("a"), other])


def test_only_names_are_looked_up(monkeypatch: pytest.MonkeyPatch):
    found = [("", "", "", "", (f"10.0.0.{n}", 5)) for n in (2, 1, 2)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *of: found)
    for address in ("tcp://127.0.0.1:5", "tcp://[::1]:5", "ipc:///tmp/x"):
        assert looked_up(address) == []
    assert looked_up("tcp://feeder:5") == ["tcp://10.0.0.1:5", "tcp://10.0.0.2:5"]


def test_a_name_that_nobody_knows_is_named(monkeypatch: pytest.MonkeyPatch):
    def unknown(*of: Any) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ConnectionLost, match=r"the name in tcp://feeder:5 can not .* not known"):
        looked_up("tcp://feeder:5")
