"""A server whose feed has ended waits only for trainers that have not acknowledged it."""

from __future__ import annotations

from headrace_server.core.end_of_feed import Farewell
from tests.footprint import entries

TTL = 30.0


def test_the_server_waits_for_no_trainer_where_all_acknowledged_the_end_or_none_is_there():
    assert Farewell(TTL).done(0, 100.0)


def test_a_trainer_that_does_not_acknowledge_is_waited_for_as_long_as_a_lease():
    farewell = Farewell(TTL)
    assert not farewell.done(1, 100.0)
    assert not farewell.done(1, 129.9)
    assert farewell.done(1, 130.0)


def test_one_whose_connection_is_lost_is_waited_for_until_its_lease_is_over_or_it_is_back():
    farewell = Farewell(TTL)
    farewell.lost(b"a", 80.0)
    assert not farewell.done(0, 100.0)
    assert not farewell.done(0, 109.9)
    assert farewell.done(0, 110.0)
    farewell = Farewell(TTL)
    farewell.lost(b"a", 90.0)
    farewell.lost(b"b", 91.0)
    farewell.back(b"a")
    assert not farewell.done(0, 100.0)
    farewell.back(b"b")
    assert farewell.done(0, 100.0) and not farewell.done(1, 100.0)


def test_trainers_of_the_server_before_have_a_moment_to_come():
    farewell = Farewell(TTL)
    assert not farewell.done(0, 100.0, began_ended=True)
    assert not farewell.done(0, 102.9, began_ended=True)
    assert farewell.done(0, 103.0, began_ended=True)
    assert Farewell(2.0).done(1, 100.0, True) is False


def test_trainers_that_are_long_gone_are_forgotten():
    farewell = Farewell(TTL)
    for i in range(100):
        farewell.lost(b"%d" % i, 10.0 * i)
    assert entries(farewell) <= 4
