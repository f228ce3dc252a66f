"""Trainers are sent references or bytes, and memory is pinned until they have read them."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_proto import messages
from headrace_proto.messages import (
    FROM_SERVER,
    Answered,
    Ended,
    Give,
    Idle,
    LetGo,
    Retired,
)
from headrace_server.leasing import protocol
from headrace_server.leasing.protocol import Answer, Batch
from headrace_server.making.arena import Block
from headrace_server.making.partition_run import Body
from headrace_server.worker import outbox
from headrace_server.worker.blocks import Blocks, Untaken
from headrace_server.worker.outbox import Outbox
from headrace_server.worker.sessions import Session, SessionTable
from tests.patience import PATIENCE_S

SEGMENT = "slab-0-0-0"
BLOCK = 64
NOBODY = b"nobody of that name"


class Socket:
    """The public socket, and the trainers that get its messages."""

    def __init__(self) -> None:
        self.said: dict[bytes, list[bytes]] = {}  # headers, by connection
        self.blocks: list[tuple[bytes, bytes, memoryview, Callable[[], object]]] = []

    def say(self, connection: bytes, header: bytes) -> bool:
        self.said.setdefault(connection, []).append(header)
        return connection != NOBODY

    def send_block(
        self, connection: bytes, header: bytes, block: memoryview, sent: Callable[[], object]
    ) -> None:
        self.blocks.append((connection, header, block, sent))


class Post:
    """An outbox, and the trainers that it writes to."""

    def __init__(self, directory: Path) -> None:
        self.socket = Socket()
        self.sessions = SessionTable(directory)
        channels: Any = None  # nobody comes by a channel
        socket: Any = self.socket
        self.outbox = Outbox(
            socket, directory, self.sessions, channels, slab_bytes=BLOCK * 64, max_credits=4
        )
        self.freed: list[Any] = []
        slab: Any = SimpleNamespace(free=self.freed.append)
        self.outbox.blocks = Blocks(slab, ["default"])
        self.path = directory / SEGMENT
        self.path.write_bytes(b"".join(bytes([k]) * BLOCK for k in range(64)))

    def trainer(self, name: bytes, local: bool, feed: str = "default") -> Session:
        session = self.sessions.open(name, feed, name)
        session.local, session.welcome, session.open = local, True, True
        return session

    def give(self, session: Session, batches: int, columns: int = 1) -> list[Batch]:
        """Give so many batches to one trainer; they are not flushed."""
        made = []
        described = [[0, 32, [4]]] * columns
        for n in range(batches):
            body = Body(Block(0, n * BLOCK, BLOCK), described, SEGMENT, untaken=Untaken())
            batch = Batch(0, n, -1, (0, n), 4, nbytes=BLOCK, body=body)
            self.outbox.give(session, protocol.Give(n + 1, 100 + n, batch))
            made.append(batch)
        return made

    def received(self, session: Session) -> list[Any]:
        """Return the messages to a trainer since the last call."""
        return [FROM_SERVER.decode(header) for header in self.socket.said.pop(session.identity, [])]


@pytest.fixture
def post(tmp_path: Path) -> Post:
    return Post(tmp_path)


# Batches


def test_references_of_a_round_go_several_to_a_message_and_answers_with_the_first(post: Post):
    here = post.trainer(b"here", local=True)
    post.outbox.answer(here, Answer((7,), (8,)))
    batches = post.give(here, 20)
    assert all(batch.body.pins == 1 for batch in batches)
    assert list(here.mapped.values()) == batches
    post.outbox.flush()
    first, second = post.received(here)
    assert [len(first.items), len(second.items)] == [16, 4]
    assert [given.request for given in (*first.items, *second.items)] == list(range(1, 21))
    assert (first.committed, first.stale) == ((7,), (8,)) and second.committed == ()
    assert (first.items[1].segment, first.items[1].offset) == (SEGMENT, BLOCK)
    post.outbox.flush()
    assert post.received(here) == []


def test_messages_keep_their_order_and_wait_until_the_trainer_has_answered_its_welcome(post: Post):
    here = post.trainer(b"here", local=True)
    here.open = False
    post.give(here, 1)
    for request in (5, 6):
        post.outbox.tell(here, Idle(here.number, (request,), (request,)))
    post.outbox.let_go(here)
    post.outbox.flush()
    assert post.received(here) == []
    here.open = True
    post.outbox.flush()
    given, idle, let_go = post.received(here)
    assert isinstance(given, Give) and isinstance(let_go, LetGo) and here.said == 3
    assert idle == Idle(here.number, (5, 6), (5, 6))


def test_references_that_do_not_fit_one_header_go_one_by_one_and_answers_by_themselves(
    post: Post,
):
    here = post.trainer(b"here", local=True)
    post.outbox.answer(here, Answer((7,), ()))
    post.give(here, 16, columns=1000)
    post.outbox.hurry(here)
    post.outbox.flush()
    *batches, answers = post.received(here)
    assert [given.request for message in batches for given in message.items] == list(range(1, 17))
    assert len(batches) == 16 and answers == messages.Answer(here.number, (7,), (), [])
    assert here.said == 17


def test_a_trainer_elsewhere_gets_the_bytes_and_the_block_is_pinned_until_they_left(post: Post):
    away = post.trainer(b"away", local=False)
    post.outbox.answer(away, Answer((7,), ()))
    batches = post.give(away, 2)
    assert [batch.body.pins for batch in batches] == [1, 1] and not away.mapped
    post.outbox.flush()
    for number, (connection, header, block, _) in enumerate(post.socket.blocks):
        message = FROM_SERVER.decode(header)
        assert isinstance(message, Give) and connection == away.identity
        assert bytes(block) == bytes([number]) * BLOCK
        assert (message.items[0].frame, message.items[0].segment) == (1, "")
        assert message.committed == ((7,) if number == 0 else ())
        post.outbox.blocks.gone(batches[number])
    assert post.freed == []
    for *_, sent in post.socket.blocks:
        sent()
    assert post.freed == [batch.body.block for batch in batches]


def test_a_block_is_free_when_its_trainer_maps_it_no_more_and_the_desk_is_done_with_it(post: Post):
    here = post.trainer(b"here", local=True)
    one, other = post.give(here, 2)
    post.outbox.blocks.gone(one)
    post.outbox.unmap(here, 101)
    assert post.freed == []
    post.outbox.unmap(here, 100)
    post.outbox.blocks.gone(other)
    assert post.freed == [one.body.block, other.body.block]


def test_it_is_known_that_a_connection_is_gone(post: Post):
    gone = post.sessions.open(b"n", "default", NOBODY)
    assert not post.outbox.send(NOBODY, Ended(gone.number))


# Answers


def test_answers_without_a_batch_go_by_themselves_and_many_in_several_messages(post: Post):
    here = post.trainer(b"here", local=True)
    for token in range(100):
        post.outbox.answer(here, Answer((token,)))
    post.outbox.answer(here, Answer((), (200,), ((201, "state", "none"),)))
    post.outbox.flush()
    first, second = post.received(here)
    assert first == messages.Answer(here.number, tuple(range(64)), (), [[201, "state", "none"]])
    assert (second.committed, second.stale) == (tuple(range(64, 100)), (200,))
    assert post.outbox.due_in_s == inf


def test_a_trainer_that_waits_for_answers_gets_them_without_a_batch(
    post: Post, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(outbox, "_MOMENT_S", PATIENCE_S)
    here = post.trainer(b"here", local=True)
    post.outbox.answer(here, Answer((1,)))
    post.outbox.flush()
    assert post.received(here) == [] and post.outbox.due_in_s > 0
    post.outbox.hurry(here)
    post.outbox.flush()
    assert [one.committed for one in post.received(here)] == [(1,)]
    post.outbox.answer(here, Answer((2,)))
    assert post.outbox.due_in_s == 0
    post.outbox.flush()
    assert [one.committed for one in post.received(here)] == [(2,)]


def test_answers_ride_with_the_next_batch_and_wait_less_where_state_buffers_are_used_again(
    post: Post,
):
    here = post.trainer(b"here", local=True)
    post.outbox.answer(here, Answer((1,)))
    assert outbox._BUFFERS_S < post.outbox.due_in_s <= outbox._MOMENT_S
    post.give(here, 1)
    post.outbox.flush()
    (given,) = post.received(here)
    assert isinstance(given, Give) and given.committed == (1,)
    here.buffers = [memoryview(b"")]
    post.outbox.answer(here, Answer((2,)))
    assert post.outbox.due_in_s <= outbox._BUFFERS_S


def test_gathered_messages_for_a_trainer_that_left_are_dropped(post: Post):
    here = post.trainer(b"here", local=True)
    post.outbox.answer(here, Answer((7,)))
    post.give(here, 3)
    post.outbox.forget(here)
    post.outbox.flush()
    assert post.received(here) == []


# Words


def test_words_on_a_feed_go_to_its_trainers_and_nobody_elses(post: Post):
    one, other = post.trainer(b"one", local=True), post.trainer(b"other", local=False, feed="b")
    post.outbox.end("b", "data", "𝔣" * 100_000)
    answers = [Answered(one.number, 5), Answered(one.number, 6, None, "state", "it is none")]
    for answer in (*answers, Answered(99, 5)):
        post.outbox.answer_request(answer)
    post.outbox.flush()
    assert post.received(one) == answers
    (ended,) = post.received(other)
    assert (ended.code, len(ended.text)) == ("data", 8000)


def test_trainers_that_map_a_removed_segment_are_notified_and_its_file_is_removed(post: Post):
    here, away = post.trainer(b"here", local=True), post.trainer(b"away", local=False)
    post.outbox.retire(SEGMENT)
    post.outbox.flush()
    assert not post.path.exists()
    assert post.received(here) == [Retired(here.number, (SEGMENT,))]
    assert post.received(away) == []
    post.outbox.retire(SEGMENT)
