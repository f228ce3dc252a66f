"""The directory of servers on Ray: its answers to a starting server, and to trainers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_proto.errors import ServerError
from headrace_server.cluster.directory import TERM, Begun, Directory, Losses, Superseded


class Servers:
    """The calls of several servers to a directory; each server has the term of its last start."""

    def __init__(self, count: int = 2, with_states: tuple[str, ...] = ()) -> None:
        self.directory = Directory(count, with_states)
        self.terms = [""] * count
        self.numbers = [0] * count
        self.done: list[Losses] = [{} for _ in range(count)]
        for share in range(count):
            self.start(share)

    def start(self, share: int, lost: bool = False) -> Begun:
        begun = self.directory.begin(share, "" if lost else self.terms[share], 0)
        assert begun is not None
        self.numbers[share] = begun.number
        self.terms[share] = f"term {begun.number}"
        if lost:
            self.done[share] = {}
        self.report(share)
        return begun

    def report(self, share: int, **snapshots: str) -> dict[str, tuple[int, str]]:
        number, notes = self.numbers[share], {TERM: self.terms[share]}
        address = f"tcp://host{number}:{share}"
        arguments = share, number, address, notes, snapshots, self.done[share]
        return self.directory.here(*arguments)

    def take_back(self, share: int) -> None:
        self.done[share] = {**self.done[share], **self.report(share)}
        self.report(share)

    def keep(self, share: int, name: tuple[str, int], whole: bool, *records: bytes) -> bool:
        (kept,) = self.directory.keep(share, self.numbers[share], [(name, whole, [*records])])
        return kept


def test_trainers_are_given_addresses_once_all_servers_are_there() -> None:
    directory = Directory(2, ())
    begun = directory.begin(1, "", 5)
    assert begun is not None and (begun.number, begun.again, begun.lost) == (5, False, False)
    directory.here(1, 5, "tcp://a:1", {TERM: "t"}, {}, {})
    assert directory.addresses() == ({}, "share 0 of 2 has no server")
    directory.begin(0, "", 6)
    directory.here(0, 6, "tcp://b:1", {TERM: "u"}, {}, {})
    assert directory.addresses() == ({0: "tcp://b:1", 1: "tcp://a:1"}, "")


def test_a_server_that_starts_where_its_state_lies_goes_on_from_that() -> None:
    servers = Servers(with_states=("sums",))
    begun = servers.start(1)
    assert (begun.again, begun.lost, begun.owed) == (True, False, {})


@given(st.lists(st.tuples(st.integers(0, 1), st.booleans(), st.binary(max_size=9)), max_size=30))
def test_a_server_that_starts_elsewhere_gets_the_records_since_the_last_whole_state(
    sent: list[tuple[int, bool, bytes]],
) -> None:
    servers = Servers(1)
    known: dict[tuple[str, int], list[bytes]] = {}
    for partition, whole, record in sent:
        name = "numbers", partition
        assert servers.keep(0, name, whole, record) == (whole or name in known)
        if whole:
            known[name] = [record]
        elif name in known:
            known[name].append(record)
    begun = servers.start(0, lost=True)
    assert begun.lost and begun.partitions == known and begun.notes[TERM] == "term 1"


def test_a_partition_with_many_records_is_asked_for_its_whole_state() -> None:
    servers, name = Servers(1), ("numbers", 0)
    record = bytes(1 << 16)
    assert servers.keep(0, name, True, b"state")
    kept = [servers.keep(0, name, False, record) for _ in range(5)]
    assert kept == [True] * 3 + [False] * 2
    assert servers.keep(0, name, True, record) and servers.keep(0, name, False, record)
    assert servers.start(0, lost=True).partitions == {name: [record] * 2}


def test_feeds_with_states_go_back_at_all_servers_before_trainers_are_given_addresses() -> None:
    servers = Servers(with_states=("sums",))
    servers.report(0, sums="S1")
    servers.report(1, sums="S1")
    servers.report(0, sums="S2")
    begun = servers.start(1, lost=True)
    assert begun.owed == {"sums": (1, "S2")}
    there, why = servers.directory.addresses()
    assert not there and why == "share 0 of feed 'sums' is being taken back to S2"
    servers.take_back(0)
    assert servers.directory.addresses()[1].startswith("share 1 of feed 'sums'")
    servers.take_back(1)
    assert len(servers.directory.addresses()[0]) == 2
    assert servers.report(0) == servers.report(1) == {}


def test_a_server_that_is_lost_again_while_it_goes_back_does_so_again() -> None:
    servers = Servers(with_states=("sums",))
    servers.start(1, lost=True)
    servers.take_back(0)
    begun = servers.start(1)  # on the node where it had begun
    assert (begun.lost, begun.owed) == (False, {"sums": (1, "beginning")})
    assert not servers.directory.addresses()[0]
    servers.take_back(1)
    assert servers.directory.addresses()[0]


def test_an_earlier_server_of_a_share_is_refused_every_request() -> None:
    servers = Servers(1)
    earlier = servers.numbers[0]
    servers.start(0, lost=True)
    for ask in (
        lambda: servers.directory.here(0, earlier, "tcp://a:1", {}, {}, {}),
        lambda: servers.directory.keep(0, earlier, []),
    ):
        with pytest.raises(Superseded, match="share 0 was given to another server"):
            ask()


def test_a_directory_that_was_lost_learns_from_the_servers_what_they_know() -> None:
    servers = Servers(with_states=("sums",))
    servers.directory = Directory(2, ("sums",), restarted=True)
    assert not servers.keep(0, ("numbers", 0), False, b"record")
    assert servers.keep(0, ("numbers", 0), True, b"state")
    servers.report(0, sums="S1")
    assert servers.directory.addresses()[1] == "share 1 of 2 has no server"
    servers.report(1)
    assert servers.directory.addresses()[0]
    assert servers.start(0, lost=True).owed == {"sums": (1, "S1")}


def test_a_new_directory_finds_the_shares_that_still_owe_a_take_back() -> None:
    """1. Share 1 went back to S1, share 0 did not; the order of their reports changes nothing.
    2. The snapshot that share 0 knows is undone.  3. Loss and snapshot stay those of the report.
    """
    for order in ((0, 1), (1, 0)):
        servers = Servers(with_states=("sums",))
        servers.report(0, sums="S1")
        assert servers.start(1, lost=True).owed == {"sums": (1, "S1")}
        servers.take_back(1)
        servers.directory = Directory(2, ("sums",), restarted=True)
        known = {0: "S2", 1: "S1"}
        for share in order:
            servers.report(share, sums=known[share])
        there, why = servers.directory.addresses()
        assert not there and why == "share 0 of feed 'sums' is being taken back to S1"
        servers.take_back(0)
        assert servers.directory.addresses()[0]
        assert servers.start(0).owed == {}
        assert servers.start(0, lost=True).owed == {"sums": (2, "S1")}


def test_a_new_directory_replaces_no_state_before_all_servers_have_reported() -> None:
    servers = Servers(with_states=("sums",))
    servers.start(1, lost=True)
    servers.take_back(0)
    servers.take_back(1)
    servers.directory = Directory(2, ("sums",), restarted=True)
    servers.report(0)
    assert servers.directory.begin(0, "", 0) is None
    servers.report(1, sums="S3")
    begun = servers.directory.begin(0, "", 0)
    assert begun is not None and begun.owed == {"sums": (2, "S3")}


def test_servers_go_back_to_one_snapshot_though_another_is_reported_meanwhile() -> None:
    servers = Servers(with_states=("sums",))
    servers.report(0, sums="S1")
    assert servers.start(1, lost=True).owed == {"sums": (1, "S1")}
    assert servers.report(0, sums="S2") == {"sums": (1, "S1")}


def test_a_server_that_ends_before_it_has_replaced_lost_state_replaces_it_again() -> None:
    """Its directory has the notes of the lost one by then, but none of the records."""
    servers = Servers(1)
    begun = servers.directory.begin(0, "", 0)
    assert begun is not None and begun.lost
    begun = servers.directory.begin(0, begun.notes[TERM], 0)
    assert begun is not None and begun.lost


def test_a_share_that_was_lost_together_with_the_directory_is_refused() -> None:
    directory = Directory(2, (), restarted=True)
    with pytest.raises(ServerError, match="share 1 was lost together with the directory"):
        directory.begin(1, "", 1)
    begun = directory.begin(0, "a term", 1)
    assert begun is not None and not begun.lost


def test_trainers_get_their_keys() -> None:
    assert Directory(1, (), {"secret": "s"}).trainer_keys() == {"secret": "s"}
    assert Directory(1, ()).trainer_keys() == {}
