"""What a worker is told keeps its order, fits its messages, and carries each block once."""

from __future__ import annotations

import time

import pytest

from headrace_proto import limits
from headrace_proto.layout import Slot
from headrace_proto.messages import Handed
from headrace_server import pipeline as hs
from headrace_server.core import segment_dispatch
from headrace_server.core.handover import Batch, Claim, Leave, Release, Save, Want
from headrace_server.shell.config import FeedConfig, RunConfig
from headrace_server.shell.news import News, Worth
from headrace_server.shell.worker_messages import FROM_ROUTER, Flush, Settled, Turn

COLUMNS = [[0, 64, [4, 4]]]


def save(number, block=b"states", partition=0, columns=COLUMNS):
    return Save(Batch(partition, number, 4), (columns, block), 100 + number)


def claim(token, segments=b"", partition=0):
    return Claim(partition, Handed(token, partition, 5, 4, segments))


def flush(number, request=1, partition=0):
    told = Flush("f", partition, number, 7, request, (0, 1), COLUMNS, False)
    return segment_dispatch.Flush(Batch(partition, number, 4), (told, b"flushed"))


def told(*effects):
    news = News()
    for effect in effects:
        news.add("f", effect)
    messages = []
    for message, frames in news.take_turns():
        assert FROM_ROUTER.decode(FROM_ROUTER.encode(message)) is not None, "it fits a header"
        messages.append((message, frames))
    assert list(news.take_turns()) == []
    return messages


def test_a_round_of_a_partition_is_one_message():
    (turn,) = told(save(3, b"a"), Want(0, 5), save(4, b"b"), Leave(0, 2), Want(0, 6), Want(0, 9, 1))
    assert turn == (
        Turn("f", 0, [[3, 1, COLUMNS, 103], [4, 2, COLUMNS, 104]], [[6, 0], [9, 1]], (2,)),
        [b"a", b"b"],
    )


def test_each_partition_has_its_own():
    assert [m.partition for m, _ in told(Want(1, 1), Want(0, 1), save(0, partition=1))] == [1, 0]


def test_states_that_stay_with_the_trainer_have_no_frame_whatever_is_said_of_them():
    hostile = [["x" * 5000]] * 10
    ((turn, frames),) = told(save(1, None, columns=hostile), save(2, None))
    assert turn.saves == [[1, 0, [], 101], [2, 0, [], 102]] and frames == []


def test_a_flush_comes_after_the_save_it_speaks_of_and_before_what_followed_it():
    first, word, second = told(save(1), flush(1), Leave(0, 3), Want(0, 2))
    assert first[0].saves == [[1, 1, COLUMNS, 101]] and first[1] == [b"states"]
    assert word[0].number == 1 and word[1] == [b"flushed"]
    assert second[0].leaves == (3,) and second[0].wants == [[2, 0]] and not second[0].saves


def test_a_flush_alone_is_one_message_and_several_keep_their_order():
    (alone,) = told(flush(1))
    assert isinstance(alone[0], Flush)
    assert [m.request for m, _ in told(flush(1, 5), flush(1, 6))] == [5, 6]


def test_many_saves_are_told_in_order_with_each_block_in_one_message_and_wishes_after_them():
    blocks = [b"%d" % i for i in range(200)]
    messages = told(Want(0, 9), *(save(i, block) for i, block in enumerate(blocks)))
    got = []
    for turn, frames in messages:
        got += [(number, frames[frame - 1]) for number, frame, _, _ in turn.saves]
        assert len(frames) == len(turn.saves) <= 64
    assert got == list(enumerate(blocks))
    assert [len(turn.wants) for turn, _ in messages] == [0, 0, 0, 1]


def test_saves_of_many_states_fit_their_messages():
    slot = Slot("float32", (60_000, 3, 700), 2**30, 2**30)
    columns = [[slot.offset, slot.nbytes, list(slot.shape)]] * 1000
    messages = told(*(save(i, columns=columns) for i in range(5)))
    assert [len(turn.saves) for turn, _ in messages] == [1] * 5


def test_any_number_of_wishes_and_leaves_fits_their_messages():
    n = 10_000
    messages = told(*(Want(0, 2**40 + i, i) for i in range(n)), *(Leave(0, i) for i in range(n)))
    assert [stripe for turn, _ in messages for _, stripe in turn.wants] == list(range(n))
    assert [stripe for turn, _ in messages for stripe in turn.leaves] == list(range(n))


def test_claims_of_many_rows_fit_their_messages_and_come_before_what_follows_from_them():
    segments = b"s" * limits.MAX_HEADER_STRING
    messages = told(save(9), Want(0, 3), *(claim(token, segments) for token in range(8)))
    assert [turn.claims for turn, _ in messages[:-1]] == [[[t, 5, segments]] for t in range(8)]
    assert messages[-1][0] == Turn("f", 0, [[9, 1, COLUMNS, 109]], [[3, 0]])


def test_any_number_of_batches_that_go_out_again_fits_their_messages():
    messages = told(*(Release(0, 2**40 + n) for n in range(1000)))
    assert [n for turn, _ in messages for n in turn.releases] == [2**40 + n for n in range(1000)]


def test_nothing_is_told_when_there_is_no_news():
    news = News()
    assert news.take() is None and list(news.take_turns()) == []
    news.count_taken("f")
    assert news.take() == Settled((), (("f", 1),)) and news.take() is None


def test_any_number_of_freed_blocks_is_told_in_messages_that_fit():
    news = News()
    name = "n" * 100
    for i in range(1000):
        news.free((name, 4095, 10**15 + i), 0.001)
    news.count_taken(name)
    told = []
    while (message := news.take()) is not None:
        FROM_ROUTER.encode(message)
        assert message.taken == ((name, 1),)
        told += message.freed
    assert len(told) == len(set(told)) == 1000


def test_what_is_worth_little_is_told_together_when_it_is_worth_a_message():
    news = News()
    told = []
    for number in range(12):
        news.count_taken("f", 0.25)
        news.free(("f", 0, number), 0.1)
        told += [(message.freed, message.taken) for message in iter(news.take, None)]
    assert told == [
        (tuple(("f", 0, number) for number in range(upto - 4, upto)), (("f", upto),))
        for upto in (4, 8, 12)
    ]


def test_what_is_free_is_told_though_nothing_is_taken():
    news = News()
    for number in range(3):
        assert news.take() is None
        news.free(("f", 0, number), 0.4)
    assert news.take() == Settled(tuple(("f", 0, number) for number in range(3)), ())


def test_what_is_worth_no_message_waits_for_a_moment_only(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    news = News()
    news.count_taken("f", 0.1)
    assert news.take() is None
    now[0] += 0.04
    news.count_taken("f", 0.1)
    assert news.take() is None
    now[0] += 0.011
    assert news.take() == Settled((), (("f", 2),))
    news.count_taken("f", 0.1)
    now[0] += 1
    assert news.take() is None, "each waits from when it was heard of"


def worth(**options):
    pipeline = hs.from_examples([{"i": 1}]).batch(4)
    if "capacity" in options:
        capacity = options.pop("capacity")
        pipeline = hs.from_examples([{"i": 1}]).bucket("i", 4, 1, capacity=capacity)
    feed = FeedConfig("f", pipeline.declaration(), (), 1)
    return Worth(feed, RunConfig((feed,), "", (), **options))


def test_a_part_of_what_may_be_ahead_is_worth_a_message_and_room_where_it_is_scarce():
    assert worth().taken(1, False) == worth().freed(1, False) == 1 / 2
    assert worth(max_ahead=3).taken(1, False) == worth(capacity=1).taken(1, False) == 1
    assert worth(max_ahead=160).taken(1, False) == 1 / 10
    assert worth(max_ahead=160, capacity=64).taken(1, False) == 1 / 4
    assert worth(capacity=160).taken(1, False) == 1 / 10
    assert worth(max_ahead_bytes=4000).taken(500, False) == 1 / 2
    assert worth(slab_bytes=8000).freed(500, False) == 1 / 2
    assert worth().freed(2**22, False) == 1, "it is still warm"
    assert worth().taken(1, True) == worth().freed(1, True) == 1
