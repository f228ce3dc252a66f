"""Events that can come in any number at once are sent in messages that the other end accepts."""

from __future__ import annotations

from headrace_proto import limits
from headrace_proto.messages import FROM_TRAINER, Step
from tests.unit.client.test_session import One

_MANY = 3 * limits.MAX_HEADER_ITEMS


def test_a_trainer_releases_any_number_of_views_at_once() -> None:
    one = One()
    session, now = one.session, one.now
    for token in range(_MANY):
        session.mapped.release(token)
    told: list[int] = []
    for message, _ in session.outgoing(now):
        decoded = FROM_TRAINER.decode(FROM_TRAINER.encode(message))
        if isinstance(decoded, Step):
            assert decoded.session == 7
            told += decoded.released
    assert told == list(range(_MANY))
