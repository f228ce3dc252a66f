"""What can happen any number of times at once is told in messages that the other end accepts."""

from __future__ import annotations

from headrace.session import Session
from headrace_proto import limits
from headrace_proto.messages import FROM_TRAINER, Step, Welcome
from headrace_server.shell.news import News
from headrace_server.shell.worker_messages import FROM_ROUTER

_MANY = 3 * limits.MAX_HEADER_ITEMS


def test_a_trainer_tells_of_any_number_of_views_that_went_at_once() -> None:
    session = Session("feed", b"0" * 16, 2)
    now = 0.0
    session.outgoing(now)
    session.receive(Welcome(1, "0", 7, "feed", [], 1.0, 30.0, 64, "/dev/shm/x", "", False), [], now)
    session.outgoing(now)
    for token in range(_MANY):
        session.mapped.release(token)
    told: list[int] = []
    for message in session.outgoing(now):
        decoded = FROM_TRAINER.decode(FROM_TRAINER.encode(message))
        if isinstance(decoded, Step):
            assert decoded.session == 7
            told += decoded.released
    assert told == list(range(_MANY))


def test_a_worker_is_told_of_any_number_of_blocks_that_a_death_has_freed() -> None:
    name = "f" * 100
    news = News()
    news.count_taken(name)
    for number in range(_MANY):
        news.free((name, 0, 2**40 + number))
    told: list[int] = []
    while (message := news.take()) is not None:
        decoded = FROM_ROUTER.decode(FROM_ROUTER.encode(message))
        assert decoded.taken == ((name, 1),)
        told += [number - 2**40 for _, _, number in decoded.freed]
    assert told == list(range(_MANY))
