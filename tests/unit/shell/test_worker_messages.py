"""Router and workers understand each other, and nothing that only looks like a message."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_proto.codec import Registry, pack
from headrace_proto.errors import ProtocolError
from headrace_server.shell import worker_messages
from headrace_server.shell.worker_messages import (
    FROM_ROUTER,
    FROM_WORKER,
    Assign,
    Claimed,
    Close,
    Copied,
    Copy,
    Dry,
    Failed,
    Finished,
    Flush,
    Flushed,
    Further,
    Kept,
    Made,
    Opened,
    Removed,
    Retarget,
    Retargeted,
    Seek,
    Settled,
    Sought,
    Starved,
    Turn,
    Up,
    Waiting,
)

MESSAGES: list[tuple[Registry, Any]] = [
    (FROM_WORKER, Up(3, 2**40)),
    (FROM_WORKER, Opened("speech", 4095, [["x", "float32", [-1, 3]], ["é", "bytes", []]])),
    (
        FROM_WORKER,
        Made(
            "speech",
            1,
            2,
            3,
            "slab-0-0-0",
            4096,
            2**40,
            [[0, 64, [3]]],
            {"b": 1},
            {"x": 2},
            True,
            kept=[[2**40, "", ""], [7, "stale", "it is not out"]],
        ),
    ),
    (
        FROM_WORKER,
        Made(
            *("speech", 1, 2, 3, "slab-0-0-0", 4096, 2**40, [[0, 64, [3]]], {}, {}),
            kept=[],
            more=(
                Further(3, 3, "slab-0-0-0", 8192, 2**40, [[0, 64, [3]]], {"bucket": 2}),
                Further(2**40, 1, "slab-0-0-1", 0, 64, [], {}),
            ),
        ),
    ),
    (FROM_WORKER, Opened("speech", 1, [], {"durable": True}, 2**40)),
    (FROM_WORKER, Claimed("speech", 4095, 2**62, "yes", 2**40)),
    (FROM_WORKER, Finished("speech", 1, {"remainder": 5})),
    (FROM_WORKER, Failed("speech", 0, "data", "line\nof text")),
    (FROM_WORKER, Removed(("slab-0-0-1", "slab-0-0-0"))),
    (FROM_WORKER, Retargeted("speech", 2, 3, 2**40, "there are no classes")),
    (FROM_WORKER, Retargeted("speech", 2, 3, 2**40, "", {"waiting": [1, 2]})),
    (
        FROM_WORKER,
        Sought("speech", 3, 1, [[4095, 0, 1, 4, "out", 2**40], [0, 2, 0, 4, "ready", -1]]),
    ),
    (FROM_ROUTER, Seek("speech", 2**40, b"\xff any bytes")),
    (FROM_WORKER, Waiting("speech", 2, "batch 7 waits for class 1 (0 of 4 rows are here)")),
    (FROM_WORKER, Waiting("speech", 2, "it waits for save_state", 2**40)),
    (FROM_WORKER, Kept("speech", 4095, [[2**40, "", ""], [7, "cancelled", "it was drained"]])),
    (FROM_WORKER, Starved("speech", 2)),
    (FROM_WORKER, Dry("speech", 2**40)),
    (FROM_WORKER, Flushed("speech", 3, 2**40)),
    (FROM_WORKER, Copied("speech", 3, 2**40, "the disk is full")),
    (FROM_ROUTER, Retarget("speech", 3, (0.25, 0.75), [[0, 5]])),
    (FROM_ROUTER, Assign("speech", 7)),
    (FROM_ROUTER, Assign("speech", 7, 2**40)),
    (FROM_ROUTER, Settled((("speech", 0, 2**50), ("other", 1, 0)), (("speech", 3),))),
    (FROM_ROUTER, Close("speech", cancel=True, abandon=True)),
    (
        FROM_ROUTER,
        Turn(
            *("speech", 1, [[2**40, 1, [[0, 64, [4, 2]]], 2**62], [8, 0, [], 7]]),
            *([[9, 2**40]], (3, 2**40), [[2**62, 8, b"which"]], (5, 2**40)),
        ),
    ),
    (FROM_ROUTER, Copy("speech", 1, 2**40, "/state/snapshots/speech/x.part")),
    (FROM_ROUTER, Flush("speech", 1, 2**40, 3, 4, (0, 5), [[0, 64, [2, 8]]], True)),
]


@pytest.mark.parametrize(("registry", "message"), MESSAGES, ids=lambda v: type(v).__name__)
def test_a_message_comes_out_as_it_went_in(registry: Registry, message: Any):
    assert registry.decode(registry.encode(message)) == message


def test_every_message_is_tried_above_and_can_be_imported():
    for registry in (FROM_WORKER, FROM_ROUTER):
        tried = {type(message) for where, message in MESSAGES if where is registry}
        assert tried == set(registry.kinds)
    names = {kind.__name__ for r in (FROM_WORKER, FROM_ROUTER) for kind in r.kinds}
    assert names | {"FROM_WORKER", "FROM_ROUTER", "Further"} == set(worker_messages.__all__)


def test_what_may_be_left_out_has_its_plain_meaning():
    assert FROM_ROUTER.decode(pack([2])) == Settled((), ())
    assert FROM_ROUTER.decode(pack([3, "speech"])) == Close("speech", False, False)
    turn, flush = FROM_ROUTER.decode(pack([5, "speech", 1])), [6, "speech", 1, 2, 3, 4, [0], []]
    assert (list(turn.saves), list(turn.wants), turn.leaves) == ([], [], ())
    assert (list(turn.claims), turn.releases) == ([], ())
    assert FROM_ROUTER.decode(pack([1, "speech", 7])).made == 0
    assert FROM_WORKER.decode(pack([2, "speech", 7, []])).next == 0
    assert FROM_WORKER.decode(pack([13, "speech", 7, 1, "no"])).number == 0
    assert FROM_ROUTER.decode(pack(flush)).more is False
    assert FROM_WORKER.decode(pack([8, "speech", 1, "why"])).batch == -1


@pytest.mark.parametrize(
    ("registry", "values", "words"),
    [
        (FROM_ROUTER, [2, [["speech", 1]]], "is not \\(feed, partition, number\\)"),
        (FROM_ROUTER, [2, ["abc"]], "Settled.freed"),
        (FROM_ROUTER, [2, [], [["speech", 1, 2]]], "is not \\(feed, count\\)"),
        (FROM_ROUTER, [1, "speech", -1], "Assign.partition"),
        (FROM_ROUTER, [3, "speech", 1], "Close.cancel"),
        (FROM_ROUTER, [5, "speech", 1, [], [], [-1]], "Turn.leaves"),
        (FROM_ROUTER, [5, "speech", 1, [], [], [], [], [-1]], "Turn.releases"),
        (FROM_ROUTER, [1, "speech", 1, -1], "Assign.made"),
        (FROM_WORKER, [13, "speech", 1, -1, "yes"], "Claimed.token"),
        (FROM_ROUTER, [6, "speech", 1, 2, 3, 4, [True], []], "Flush.rows"),
        (FROM_WORKER, [11, "speech", -1], "Dry.stripe"),
        (FROM_WORKER, [9, "speech", 1], "lacks its field 'batches'"),
        (FROM_WORKER, [1, 0], "lacks its field 'life'"),
        (FROM_WORKER, [6, [1]], "is not a text"),
        (FROM_WORKER, [99], "no op 99"),
    ],
)
def test_what_is_no_message_is_refused_with_its_field(
    registry: Registry, values: list[Any], words: str
):
    with pytest.raises(ProtocolError, match=words):
        registry.decode(pack(values))
