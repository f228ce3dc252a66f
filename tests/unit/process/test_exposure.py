"""Addresses that other machines can reach, and the options that these need."""

from __future__ import annotations

import pytest

from headrace_server.server.arguments import check_exposed, is_local

HERE = ["ipc:///tmp/x", "tcp://127.0.0.1:*", "tcp://127.9.9.9:1", "tcp://localhost:5", "tcp://lo:5"]
OPEN = ["tcp://0.0.0.0:5557", "tcp://*:5557", "tcp://eth0:1", "tcp://10.0.0.1:1", "tcp://a.lo:1"]


@pytest.mark.parametrize("address", [*HERE, "tcp://[::1]:5"])
def test_an_address_that_only_this_machine_reaches_needs_no_keys(address: str):
    assert is_local(address)
    check_exposed([address], None, False)


@pytest.mark.parametrize("address", [*OPEN, "tcp://[::]:5", "tcp://127.0.0.1.example.org:1"])
def test_an_address_that_others_reach_needs_keys_or_an_explicit_waiver(address: str):
    with pytest.raises(ValueError, match=r"bind=.*keys=DIR.*insecure=True where"):
        check_exposed(["tcp://127.0.0.1:*", address], None, False)
    check_exposed([address], "keys", False)
    check_exposed([address], None, True)


def test_keys_and_the_word_that_none_are_wanted_contradict_each_other():
    with pytest.raises(ValueError, match="one of them"):
        check_exposed(HERE, "keys", True)
