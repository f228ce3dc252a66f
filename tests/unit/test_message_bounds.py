"""Events that can come in any number at once are sent in messages that the other end accepts."""

from __future__ import annotations

import re

import pytest

from headrace_proto import limits
from headrace_proto.messages import FROM_SERVER, FROM_TRAINER, Give, Given, Step
from headrace_server.pipeline.segment_options import check_rows
from headrace_server.shaping.slots import SEGMENT_PLACE
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


@pytest.mark.parametrize("columns", [1, 12, 200])
def test_a_batch_of_as_many_segments_as_can_be_declared_fits_one_message(columns: int) -> None:
    ranks = [1 + number % 4 for number in range(columns)]
    with pytest.raises(ValueError, match="the most is") as refused:
        check_rows(2**20, ranks)
    found = re.search(r"the most is (\d+)", str(refused.value))
    assert found is not None
    most = int(found[1])
    check_rows(most, ranks)
    described = [[2**40, 2**40, [2**20] * rank] for rank in ranks] + [[2**40, 8, [2**20]]] * 16
    place = bytes(most * SEGMENT_PLACE.itemsize)
    given = Given(1, 2, 3, 4, 5, 6, 7, most, 2**40, described, place, segment="slab-1000-1000-1000")
    message = Give(1, (given,), tuple(range(64)))
    header = FROM_SERVER.encode(message)
    assert FROM_SERVER.decode(header).items[0].place == place
