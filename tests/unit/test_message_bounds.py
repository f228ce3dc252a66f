"""Events that can come in any number at once are sent in messages that the other end accepts."""

from __future__ import annotations

from headrace.session import Session
from headrace_proto import limits
from headrace_proto.messages import FROM_TRAINER, Step, Welcome

_MANY = 3 * limits.MAX_HEADER_ITEMS


def test_a_trainer_releases_any_number_of_views_at_once() -> None:
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
