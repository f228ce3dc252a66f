"""An address is checked before ZeroMQ makes something else of it."""

from __future__ import annotations

import pytest

from headrace_proto.address import check_address, check_addresses, feed_on_ray


@pytest.mark.parametrize(
    "address",
    [
        "tcp://127.0.0.1:5557",
        "tcp://*:0",
        "tcp://feeder.example:65535",
        "ipc:///a",
    ],
)
def test_an_address_is_given_back(address: str):
    assert check_address("bind", address) == address


@pytest.mark.parametrize(
    "address",
    [
        *("", "127.0.0.1:5557", "tcp://", "tcp://host", "tcp://:5557", "tcp://host:5557/x"),
        *("ipc://", "udp://host:1", "tcp://host:55x", "tcp://host:-1", " tcp://host:1"),
        "tcp://host:1\n",
    ],
)
def test_an_invalid_value_is_refused_with_an_example(address: str):
    with pytest.raises(ValueError) as caught:
        check_address("bind", address)
    assert str(caught.value) == f"bind={address!r} is not like tcp://127.0.0.1:5557"


@pytest.mark.parametrize("address", ["ipc:///a\udcff", "tcp://\udcff:1"])
def test_a_text_that_utf_8_can_not_hold_is_refused(address: str):
    with pytest.raises(ValueError, match=r"^bind='.*udcff.*' is not a text that UTF-8 can hold$"):
        check_address("bind", address)


def test_a_port_that_zeromq_would_take_modulo_65536_is_refused_with_the_limit():
    with pytest.raises(
        ValueError, match="address='tcp://h:65536': a port must be between 0 and 65535"
    ):
        check_address("address", "tcp://h:65536")


@pytest.mark.parametrize(
    ("given", "addresses"),
    [
        ("tcp://a:1", ["tcp://a:1"]),
        ("tcp://a:1, tcp://b:2", ["tcp://a:1", "tcp://b:2"]),
        (["tcp://a:1", "ipc:///b"], ["tcp://a:1", "ipc:///b"]),
        ("s-{0..2}.s:5557", [f"tcp://s-{i}.s:5557" for i in range(3)]),
        ("tcp://s-{9..10}:5557,tcp://t:1", ["tcp://s-9:5557", "tcp://s-10:5557", "tcp://t:1"]),
        (["tcp://10.0.0.{7..7}:1"], ["tcp://10.0.0.7:1"]),
    ],
)
def test_addresses_of_several_servers_may_be_a_list_a_text_or_a_range(
    given: object, addresses: list[str]
):
    assert check_addresses("address", given) == addresses


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("", "address='' is not like tcp://127.0.0.1:5557"),
        ([], "address=[] names no server"),
        ("a:1", "address='a:1' is not like tcp://127.0.0.1:5557"),
        ("a", "address='a' is not like tcp://127.0.0.1:5557"),
        ("tcp://a:1,", "address='' is not like tcp://127.0.0.1:5557"),
        ("tcp://a:1,tcp://a:1", "address='tcp://a:1,tcp://a:1' names tcp://a:1 twice"),
        ("a-{1..1}:1,tcp://a-1:1", "address='a-{1..1}:1,tcp://a-1:1' names tcp://a-1:1 twice"),
        ("a-{0..}:1", "address='tcp://a-{0..}:1': a range is one"),
        ("a-{0..3:1", "address='tcp://a-{0..3:1': a range is one"),
        (
            "a-{3..0}:1",
            "address='tcp://a-{3..0}:1': a range is one {a..b} with a ≤ b, of at most 4096",
        ),
        ("a-{0..4096}:1", "address='tcp://a-{0..4096}:1': a range is one"),
        ("tcp://a:*", "address='tcp://a:*': port * is for servers, which take a free one; give"),
        ("a-{0..1}-{0..1}:1", "address='tcp://a-{0..1}-{0..1}:1': a range is one"),
    ],
)
def test_texts_that_name_no_servers_are_refused_with_the_reason(given: object, text: str):
    with pytest.raises(ValueError) as caught:
        check_addresses("address", given)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize("address", ["ray://", "ray://head:10001", "ray://a/b", "ray:// a b"])
def test_an_address_of_ray_that_names_no_feed_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="is not like ray://speech"):
        feed_on_ray(address)


@pytest.mark.parametrize(
    "address", ["ray://a,ray://b", ["ray://a", "tcp://b:1"], "tcp://b:1,ray://a"]
)
def test_an_address_of_ray_stands_alone(address: object) -> None:
    with pytest.raises(ValueError, match="stands for all servers: give it alone"):
        feed_on_ray(address)
