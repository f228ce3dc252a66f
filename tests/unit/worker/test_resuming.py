"""Trainers with a token are let in, asked to wait, or refused; the supervisor is asked once."""

from __future__ import annotations

from dataclasses import replace

import pytest

import headrace_server as hs
from headrace_proto.errors import FeedInUse, FeedRewound, ServerError
from headrace_proto.messages import Handed, Hello
from headrace_server.process.config import FeedConfig
from headrace_server.process.rewinding import BEGINNING
from headrace_server.worker.resuming import Later, PresentTrainer, Resuming

S = "20260102T030405Z-0123456789ab"


def feed(generation: int = 0, snapshot: str = "", untouched: bool = False) -> FeedConfig:
    declaration = hs.from_examples([{"x": 1}]).batch(1).declaration()
    return FeedConfig("f", declaration, (), 1, generation, snapshot, untouched)


def hello(resume: str = "", generation: int = -1, nonce: bytes = b"n") -> Hello:
    return Hello(1, "1", "f", nonce, process=b"p", resume=resume, generation=generation)


def test_a_trainer_from_before_the_rewind_is_refused_because_its_work_is_undone():
    desk = Resuming(feed(2, S), durable=True)
    with pytest.raises(FeedRewound, match=f"was taken back to snapshot {S}"):
        desk.admit(hello(generation=1), [], 1.0)
    desk.admit(hello(generation=2), [], 1.0)


@pytest.mark.parametrize(
    "of_start_7",
    [{"term": 7}, {"batches": (Handed(7 << 32 | 1, 0, 0, 0, 0, 4),)}],
)
def test_a_trainer_of_an_unknown_start_is_refused_because_its_work_is_undone(
    of_start_7,
):
    first = hello(generation=0)
    desk = Resuming(feed(), durable=True, starts=(5, 6, 8))
    with pytest.raises(FeedRewound, match=r"does not know start 7 of the server.*put back"):
        desk.admit(replace(first, **of_start_7), [], 1.0)
    desk.admit(replace(first, term=6, batches=(Handed(6 << 32 | 1, 0, 0, 0, 0, 4),)), [], 1.0)
    Resuming(feed(), durable=False).admit(replace(first, **of_start_7), [], 1.0)


def test_commits_count_against_joining():
    desk = Resuming(feed(1, S, untouched=True), durable=True)
    desk.admit(hello(S), [], 1.0)
    desk.touched()
    with pytest.raises(Later, match="another trainer"):
        desk.admit(hello(S), [PresentTrainer(b"q", S, 0.0)], 1.0)
    with pytest.raises(Later, match="is being taken back"):
        desk.admit(hello(S), [], 1.0)


def test_without_a_state_directory_there_is_nothing_to_go_on_from():
    with pytest.raises(ServerError, match="has no state directory"):
        Resuming(feed(), durable=False).admit(hello(S), [], 1.0)


def restarting(generation: int = -1) -> Hello:
    return Hello(1, "1", "f", b"n", process=b"p", generation=generation, restart=True)


@pytest.mark.parametrize("durable", [False, True])
def test_a_feed_is_started_from_its_beginning_unless_others_use_it(durable: bool):
    desk = Resuming(feed(), durable)
    desk.opened(used=False)
    desk.admit(restarting(), [PresentTrainer(b"q", "", 0.9)], 1.0)
    desk.touched()
    with pytest.raises(Later, match="other trainers may use the feed"):
        desk.admit(restarting(), [PresentTrainer(b"q", "", 0.9)], 1.0)
    with pytest.raises(FeedInUse, match="headrace restart f --force"):
        desk.admit(restarting(), [PresentTrainer(b"q", "", 4.5)], 5.0)
    with pytest.raises(Later, match="is being started from its beginning"):
        desk.admit(restarting(), [], 6.0)
    asked = ("take_back", {"snapshot": BEGINNING})
    assert desk.reports == [asked]
    desk.admit(restarting(generation=0), [PresentTrainer(b"q", "", 4.5)], 7.0)  # it reconnects


def test_a_trainer_from_before_the_restart_is_refused_with_that_reason():
    desk = Resuming(feed(1, BEGINNING), durable=False)
    with pytest.raises(FeedRewound, match="started again from its beginning"):
        desk.admit(hello(generation=0), [], 1.0)


def test_no_owner_judges_a_token_before_it_knows_the_marks_of_the_others():
    """Work at another owner counts as work here does."""
    for used, touched, judged in ((False, False, None), (True, False, Later), (False, True, Later)):
        desk = Resuming(feed(), durable=True, alone=False)
        desk.opened(used=False)
        with pytest.raises(Later, match="opening"):
            desk.admit(hello(BEGINNING), [], 1.0)
        desk.all_opened(used, touched)
        if judged is None:
            desk.admit(hello(BEGINNING), [], 1.0)
            desk.all_opened(used=False, touched=True)
        with pytest.raises(Later, match="being started from its beginning"):
            desk.admit(hello(BEGINNING), [], 1.0)


@pytest.mark.parametrize("durable", [False, True])
def test_a_later_life_knows_of_batches_done_before_it_opens_its_partitions(durable: bool):
    """Then it has the other owners' reports at once.  Its own last one may have been lost."""
    for used, touched, here in ((True, False, False), (False, True, False), (False, False, True)):
        desk = Resuming(feed(), durable, alone=False)
        desk.all_opened(used, touched)
        if here and not durable:
            desk.touched()
        desk.opened(here)
        with pytest.raises(Later, match="being started from its beginning"):
            desk.admit(restarting(), [], 1.0)
