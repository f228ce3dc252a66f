"""Messages have bounds: each of their numbers, and what is sent where events come at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest

from headrace_proto import limits
from headrace_proto.errors import ProtocolError
from headrace_proto.messages import (
    FROM_SERVER,
    FROM_TRAINER,
    Flush,
    Get,
    Give,
    Given,
    Handed,
    Hello,
    Idle,
    Over,
    Renew,
    Resize,
    Retarget,
    Save,
    ServedShare,
    Step,
    Version,
    Welcome,
)
from headrace_server.pipeline.segment_options import check_rows
from headrace_server.shaping.spans import SEGMENT_PLACE
from tests.unit.client.test_session import One

_MANY = 3 * limits.MAX_HEADER_ITEMS
COLUMNS = [[0, 8, [1]]]
HANDED = Handed(5, 0, 1, 0, 1, 4, columns=COLUMNS)
GIVEN = Given(1, 2, 3, 4, 5, 6, 7, 8, 9, columns=COLUMNS)
LISTS = ("commits", "released", "returned", "withdrawn")
GET = {"request": 1, "partition": 1, "epoch": 1}


def with_one_number_wrong(value: Any) -> Iterator[Any]:
    """Yield plain data again and again, each time with another of its numbers out of bounds."""
    if type(value) is int:
        yield from (-2, limits.MAX_COUNT + 1, 2**64 - 1)
    elif type(value) is float:
        yield from (float("nan"), float("inf"), -1e101)
    elif type(value) is list:
        for at, one in enumerate(value):
            yield from (
                [*value[:at], wrong, *value[at + 1 :]] for wrong in with_one_number_wrong(one)
            )


WHOLE = [
    (
        FROM_TRAINER,
        Hello(8, "t", "f", b"n", batches=(HANDED,), gets=(1, 0, 0), acknowledged=(0, 1)),
    ),
    (FROM_TRAINER, Renew(1, 0, (5,), 5)),
    (FROM_TRAINER, Retarget(1, 1, (0.5, 0.5))),
    (FROM_TRAINER, Flush(1, 1, 5, (0,), COLUMNS)),
    (FROM_TRAINER, Resize(1, 1, (4,))),
    (FROM_TRAINER, Version(1, 1, 7)),
    (FROM_SERVER, Welcome(1, "f", [], 1.0, 64, next=(0, 0, 0), stale=(5,))),
    (FROM_SERVER, Idle(1, (1,), (1,))),
    (FROM_SERVER, Over(1, 1, 0, -1, (1,))),
    (FROM_SERVER, ServedShare("f", 0, 1, 4, "s", {}, ())),
]


@pytest.mark.parametrize(("registry", "message"), WHOLE, ids=lambda one: type(one).__name__)
def test_a_message_with_a_number_out_of_its_bounds_is_refused(registry: Any, message: Any) -> None:
    op, *fields = msgpack.unpackb(registry.encode(message))
    assert registry.decode(msgpack.packb([op, *fields])) == message
    tried = 0
    for wrong in with_one_number_wrong(fields):
        with pytest.raises(ProtocolError, match=rf"{type(message).__name__}\.\w+: .* is not "):
            registry.decode(msgpack.packb([op, *wrong]))
        tried += 1
    assert tried >= 9


PACKED = [
    (FROM_TRAINER, lambda n: Step(n)),
    *[(FROM_TRAINER, lambda n, name=name: Step(1, **{name: (n,)})) for name in LISTS],
    *[(FROM_TRAINER, lambda n, name=name: Step(1, gets=(Get(**GET | {name: n}),))) for name in GET],
    (FROM_TRAINER, lambda n: Step(1, saves=(Save(n, columns=[]),))),
    (FROM_TRAINER, lambda n: Step(1, saves=(Save(1, 1, [[n, 8, [1]]]),))),
    (FROM_TRAINER, lambda n: Step(1, saves=(Save(1, 1, [[0, 8, [n]]]),))),
    (FROM_SERVER, lambda n: Give(1, stale=(n,))),
    *[
        (FROM_SERVER, lambda n, name=name: Give(1, (GIVEN._replace(**{name: n}),)))
        for name in ("token", "number", "turn_index", "rows", "bucket", "offset")
    ],
]


@pytest.mark.parametrize(("registry", "made"), PACKED)
def test_a_packed_message_with_a_number_out_of_its_bounds_is_refused(
    registry: Any, made: Any
) -> None:
    assert registry.decode(registry.encode(made(1))) == made(1)
    for wrong in (limits.MAX_COUNT + 1, 2**63 - 1):
        with pytest.raises(ProtocolError, match="the most is"):
            registry.decode(registry.encode(made(wrong)))


def test_a_trainer_releases_any_number_of_views_at_once() -> None:
    one = One()
    session, now = one.session, one.now
    for token in range(_MANY):
        session.mapped.released.append(token)
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
    place = bytes(8 + most * SEGMENT_PLACE.itemsize)
    given = Given(1, 2, 3, 4, 5, 6, 7, most, 2**40, columns=described, place=place)
    given = given._replace(segment="slab-1000-1000000")
    message = Give(1, (given,), tuple(range(64)))
    header = FROM_SERVER.encode(message)
    assert FROM_SERVER.decode(header).items[0].place == place
