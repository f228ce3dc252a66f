"""Trainers with a token are let in, asked to wait, or refused; the supervisor is asked once."""

from __future__ import annotations

import pytest

from headrace_proto.errors import FeedRewound, ServerError
from headrace_proto.messages import Hello
from headrace_server import pipeline as hs
from headrace_server.core.rewinding import Member
from headrace_server.shell.config import FeedConfig
from headrace_server.shell.rejoining import Later, Rejoining

S = "20260102T030405Z-0123456789ab"


def feed(generation: int = 0, snapshot: str = "", untouched: bool = False) -> FeedConfig:
    declaration = hs.from_examples([{"x": 1}]).batch(1).declaration()
    return FeedConfig("f", declaration, (), 1, generation, snapshot, untouched)


def hello(resume: str = "", generation: int = -1, nonce: bytes = b"n") -> Hello:
    return Hello(1, 1, "1", "f", nonce, process=b"p", resume=resume, generation=generation)


def test_a_trainer_without_a_token_is_let_in():
    Rejoining(feed(), durable=False).admit(hello(), [], 1.0)


def test_a_trainer_of_before_is_told_that_its_work_is_undone():
    desk = Rejoining(feed(2, S), durable=True)
    with pytest.raises(FeedRewound, match=f"was taken back to snapshot {S}"):
        desk.admit(hello(generation=1), [], 1.0)
    desk.admit(hello(generation=2), [], 1.0)


def test_a_trainer_that_reconnects_does_not_ask_again():
    desk = Rejoining(feed(1, S), durable=True)
    desk.admit(hello(S, generation=1), [], 1.0)
    assert desk.asks == []


def test_the_supervisor_is_asked_once_and_its_refusal_is_told():
    desk = Rejoining(feed(), durable=True)
    for nonce in (b"a", b"b"):
        with pytest.raises(Later, match="is being taken back"):
            desk.admit(hello(S, nonce=nonce), [], 1.0)
    assert desk.asks == [S]
    desk.refuse(S, "server", "there is no such snapshot")
    with pytest.raises(ServerError, match="there is no such snapshot"):
        desk.admit(hello(S), [], 2.0)


def test_what_was_committed_counts_against_joining():
    desk = Rejoining(feed(1, S, untouched=True), durable=True)
    desk.admit(hello(S), [], 1.0)
    desk.touched()
    with pytest.raises(Later, match="another trainer"):
        desk.admit(hello(S), [Member(b"q", S, 0.0)], 1.0)
    with pytest.raises(Later, match="is being taken back"):
        desk.admit(hello(S), [], 1.0)


def test_without_a_state_directory_there_is_nothing_to_go_on_from():
    with pytest.raises(ServerError, match="has no state directory"):
        Rejoining(feed(), durable=False).admit(hello(S), [], 1.0)
