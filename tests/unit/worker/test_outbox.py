"""Trainers are sent references or bytes, and memory is pinned until they have read them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace_server as hs
from headrace_proto.messages import (
    FROM_SERVER,
    Answered,
    Deliver,
    Ended,
    Outcome,
    Retired,
)
from headrace_server.core.dispatch_effects import Answer, Batch, Send
from headrace_server.making.slab import BlockPlace
from headrace_server.process.config import FeedConfig, RunConfig
from headrace_server.worker import outbox
from headrace_server.worker.desk import Desk
from headrace_server.worker.events import Opened
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
    """An outbox, the desk of one feed, and trainers elsewhere."""

    def __init__(self, directory: Path) -> None:
        self.socket = Socket()
        self.sessions = SessionTable(directory)
        channels: Any = None  # nobody comes by a channel
        socket: Any = self.socket
        self.outbox = Outbox(
            socket, directory, self.sessions, channels, slab_bytes=BLOCK * 64, max_credits=4
        )
        feed = FeedConfig("default", hs.from_examples([{"i": 1}]).batch(4).declaration(), (), 1)
        self.desk = Desk(feed, RunConfig((feed,), str(directory), ()))
        self.desk.on_opened(Opened(0, [["i", "int64", [4]]]))
        self.path = directory / SEGMENT
        self.path.write_bytes(b"".join(bytes([k]) * BLOCK for k in range(64)))

    def trainer(self, name: bytes, local: bool, feed: str = "default") -> Session:
        session = self.sessions.open(name, feed, name)
        session.local = local
        return session

    def deliver(self, session: Session, batches: int, columns: int = 1) -> list[Batch]:
        """So many batches are made, and go to one trainer; they are not flushed."""
        dispatcher = self.desk.dispatcher
        dispatcher.join(session.number, 0.0)
        dispatcher.window(session.number, batches)
        told = [[0, 32, [4]]] * columns
        places = [BlockPlace(SEGMENT, n * BLOCK, told, False) for n in range(batches)]
        for n, place in enumerate(places):
            self.desk.on_made(Batch(0, n, 4, place, nbytes=BLOCK))
        sends = [e for e in dispatcher.take_effects() if isinstance(e, Send)]
        for effect in sends:
            self.outbox.deliver(self.desk, effect)
        return [effect.batch for effect in sends]

    def received(self, session: Session) -> list[Any]:
        """Return the messages to a trainer since the last call."""
        return [FROM_SERVER.decode(header) for header in self.socket.said.pop(session.identity, [])]


@pytest.fixture
def post(tmp_path: Path) -> Post:
    return Post(tmp_path)


# Batches


def test_references_of_a_round_go_several_to_a_message_and_answers_with_the_first(post: Post):
    here = post.trainer(b"here", local=True)
    post.outbox.answer(Answer(here.number, (7,), (8,)))
    batches = post.deliver(here, 20)
    assert all(batch.pins == {(here.number, token)} for token, batch in _mapped(here).items())
    assert list(_mapped(here).values()) == batches
    post.outbox.flush()
    first, second = post.received(here)
    assert [len(first.items), len(second.items)] == [16, 4]
    assert [d.seq for d in (*first.items, *second.items)] == list(range(1, 21))
    assert (first.committed, first.stale) == ((7,), (8,)) and second.committed == ()
    assert (first.items[1].segment, first.items[1].offset) == (SEGMENT, BLOCK)
    post.outbox.flush()
    assert post.received(here) == []


def _mapped(session: Session) -> dict[int, Batch]:
    return {token: batch for token, (_, batch) in session.mapped.items()}


def test_references_that_do_not_fit_one_header_go_one_by_one_and_answers_by_themselves(
    post: Post,
):
    here = post.trainer(b"here", local=True)
    post.outbox.answer(Answer(here.number, (7,), ()))
    post.deliver(here, 16, columns=1000)
    post.outbox.hurry(here.number)
    post.outbox.flush()
    *batches, answers = post.received(here)
    assert [d.seq for message in batches for d in message.items] == list(range(1, 17))
    assert len(batches) == 16 and answers == Outcome(here.number, (7,), (), [])


def test_a_trainer_elsewhere_gets_the_bytes_and_the_block_is_pinned_until_they_left(post: Post):
    away = post.trainer(b"away", local=False)
    post.outbox.answer(Answer(away.number, (7,), ()))
    batches = post.deliver(away, 2)
    assert [len(batch.pins) for batch in batches] == [1, 1]
    for number, (connection, header, block, _) in enumerate(post.socket.blocks):
        message = FROM_SERVER.decode(header)
        assert isinstance(message, Deliver) and connection == away.identity
        assert block == bytes([number]) * BLOCK
        assert (message.items[0].frame, message.items[0].segment) == (1, "")
        assert message.committed == ((7,) if number == 0 else ())
    post.outbox.flush()
    assert all(batch.pins for batch in batches)
    for *_, sent in post.socket.blocks:
        sent()
    assert not any(batch.pins for batch in batches) and not away.mapped


def test_it_is_known_that_a_connection_is_gone(post: Post):
    gone = post.sessions.open(b"n", "default", NOBODY)
    assert not post.outbox.send(NOBODY, Ended(gone.number))


# Answers


def test_answers_without_a_batch_go_by_themselves_and_many_in_several_messages(post: Post):
    here = post.trainer(b"here", local=True)
    for token in range(100):
        post.outbox.answer(Answer(here.number, (token,), (), ()))
    post.outbox.answer(Answer(here.number, (), (200,), ((201, "state", "none"),)))
    post.outbox.flush()
    first, second = post.received(here)
    assert first == Outcome(here.number, tuple(range(64)), (), [])
    assert (second.committed, second.stale) == (tuple(range(64, 100)), (200,))
    assert [list(fault) for fault in second.faults] == [[201, "state", "none"]]


def test_a_trainer_that_waits_for_answers_gets_them_without_a_batch(
    post: Post, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(outbox, "_MOMENT_S", PATIENCE_S)
    here = post.trainer(b"here", local=True)
    post.outbox.answer(Answer(here.number, (1,), ()))
    post.outbox.flush()
    assert post.received(here) == [] and post.outbox.due_in_s > 0
    post.outbox.hurry(here.number)
    post.outbox.flush()
    assert [one.committed for one in post.received(here)] == [(1,)]
    post.outbox.answer(Answer(here.number, (2,), ()))
    assert post.outbox.due_in_s == 0
    post.outbox.flush()
    assert [one.committed for one in post.received(here)] == [(2,)]


def test_gathered_messages_for_a_trainer_that_left_are_dropped(post: Post):
    here = post.trainer(b"here", local=True)
    post.outbox.answer(Answer(here.number, (7,), ()))
    post.deliver(here, 3)
    post.outbox.forget(here.number)
    post.outbox.flush()
    assert post.received(here) == []


# Words


def test_words_on_a_feed_go_to_its_trainers_and_nobody_elses(post: Post):
    one, other = post.trainer(b"one", local=True), post.trainer(b"other", local=False, feed="b")
    post.outbox.end("b", "data", "𝔣" * 100_000)
    answers = [Answered(one.number, 5), Answered(one.number, 6, None, "state", "it is none")]
    for answer in (*answers, Answered(99, 5)):
        post.outbox.tell(answer)
    assert post.received(one) == answers
    (ended,) = post.received(other)
    assert (ended.code, len(ended.text)) == ("data", 8000)


def test_trainers_that_map_a_removed_segment_are_notified_and_its_file_is_removed(post: Post):
    here, away = post.trainer(b"here", local=True), post.trainer(b"away", local=False)
    post.outbox.retire(SEGMENT)
    assert not post.path.exists()
    assert post.received(here) == [Retired(here.number, (SEGMENT,))]
    assert post.received(away) == []
    post.outbox.retire(SEGMENT)
