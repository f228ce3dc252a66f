"""``connect``: refusals before any message is sent."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

import headrace
from headrace.connecting import _tell_of_use
from headrace_proto.messages import Welcome


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"framework": "keras"}, ValueError, "framework='keras' is not one of 'numpy', 'tf'"),
        ({"prefetch": -1}, ValueError, "prefetch must be between 0 and 63, not -1"),
        ({"prefetch": 64}, ValueError, "prefetch must be between 0 and 63, not 64"),
        ({"prefetch": 1.5}, TypeError, "prefetch=1.5 is neither an integer nor .auto."),
        ({"prefetch": True}, TypeError, "prefetch=True is neither an integer nor .auto."),
        ({"commit": "auto"}, ValueError, "commit='auto' is not one of 'on_next', 'explicit'"),
        ({"commit": None}, ValueError, "commit=None is not one of"),
        ({"order": "all"}, ValueError, "order='all' is not one of 'feed', 'any'"),
        ({"order": None}, ValueError, "order=None is not one of"),
        (
            {"order": "any", "rank": 0, "world_size": 2},
            ValueError,
            "order='any' and rank=0: ranks take the same rounds",
        ),
        ({"rank": 0}, ValueError, "rank=0 and world_size=None: give both or neither"),
        ({"world_size": 2}, ValueError, "rank=None and world_size=2"),
        ({"rank": "0", "world_size": 2}, TypeError, "rank='0' is not an integer"),
        ({"rank": 0, "world_size": True}, TypeError, "world_size=True is not an integer"),
        ({"feed": 7}, TypeError, "feed=7 is not the name of a feed"),
        (
            {"rank": 2, "world_size": 2},
            ValueError,
            "rank must be between 0 and world_size-1 = 1, not 2",
        ),
        ({"timeout": 0}, ValueError, "timeout=0 is not a positive number"),
        ({"timeout": math.nan}, ValueError, "timeout=nan is not a positive number"),
        ({"feed": "f" * 101}, ValueError, "feed='f.*has 101 characters; the most is 100"),
        ({"keys": 7}, TypeError, "keys=7 is not a path"),
        ({"commit": "c" * 999}, ValueError, "commit='c{78,79} is not one of"),
        ({"timeout": "1"}, ValueError, "timeout='1' is not a positive number"),
    ],
)
def test_an_argument_that_can_not_be_is_named_with_its_value_and_limit(arguments, kind, text):
    with pytest.raises(kind, match=text):
        headrace.connect("tcp://127.0.0.1:1", **arguments)


@pytest.mark.parametrize("address", ["", "127.0.0.1:5557", "http://x", "tcp://127.0.0.1:99999"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(ValueError, match="address="):
        headrace.connect(address)


def used(*every: tuple[bool, int], others: int = 0) -> Any:
    """Join a feed whose owners report this use of their partitions."""
    welcomes = [
        Welcome(7, "f", [], 1.0, 64, finished=ends, done=done, others=others)
        for ends, done in every
    ]
    sessions = [SimpleNamespace(welcome=welcome) for welcome in welcomes]
    return SimpleNamespace(sessions=sessions, address="tcp://a:1")


def test_a_log_of_a_used_feed_claims_no_commits_where_there_are_none(caplog):
    _tell_of_use(used((True, 0), (False, 0)))  # one partition had no rows
    assert caplog.messages == []
    _tell_of_use(used((True, 0), (True, 0)))
    _tell_of_use(used((True, 0), (False, 2)))
    nothing, begun = caplog.messages
    assert "has no more batches (committed batches: 0); to start it" in nothing
    assert "goes on where others left it (committed batches: 2)" in begun


def test_a_feed_that_others_train_on_goes_on_without_a_log(caplog):
    _tell_of_use(used((True, 5), (False, 0), others=1))  # the first owner's partitions are over
    assert caplog.messages == []
    _tell_of_use(used((True, 5), (False, 2), others=1))  # an earlier feed of this process
    _tell_of_use(used((True, 5), (True, 2), others=1))
    begun, over = caplog.messages
    assert "goes on where others left it (committed batches: 7)" in begun
    assert "has no more batches (committed batches: 7)" in over
