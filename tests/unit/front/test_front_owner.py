"""A front holds greetings until their owner is ready; trainers of a dead owner greet again."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from headrace_proto.messages import FROM_SERVER, Pulse, Unknown
from headrace_server.core.end_of_feed import RETURN_S
from headrace_server.front import front_owner
from headrace_server.front.front_owner import FrontOwner
from headrace_server.process.channel_server import ChannelServer
from headrace_server.process.descriptors import divide, undivide
from headrace_server.process.relay_messages import FROM_FRONT, AllBack, Known
from headrace_server.process.worker_diary import Diary, DiaryFile

KNOWN = Known(None)


class World:
    """An owner, the messages to each of its lives, and those to trainers."""

    def __init__(self, number: int = 1, state: str | None = None) -> None:
        self.told: list[tuple[bytes, object]] = []
        self.said: list[tuple[bytes, object]] = []
        self.gone: set[bytes] = set()
        self.owner = FrontOwner(number, cast(ChannelServer, self), self._say, state)

    def tell(self, name: bytes, frames: Sequence[bytes]) -> bool:
        self.told.append((name, FROM_FRONT.decode(frames[0])))
        self.frames = [*frames[1:]]
        return True

    def unsent_memory(self, name: bytes) -> int:
        return 0

    def _say(self, connection: bytes, header: bytes) -> bool:
        self.said.append((connection, FROM_SERVER.decode(header)))
        return connection not in self.gone

    def take_told(self) -> list[Any]:
        told, self.told = [message for _, message in self.told], []
        return told

    def begun(self) -> list[Any]:
        self.begin()
        return self.take_told()

    def begin(self, name: bytes = b"1-0", now: float = 0.0) -> None:
        self.owner.begin_life(0, name, KNOWN)
        self.owner.open(now)


def test_strangers_that_use_all_descriptors_keep_no_trainer_from_an_explanation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    w = World()
    w.owner.pass_greeting(b"a", 5, "", [b"hello"])
    diary = Diary(DiaryFile(tmp_path / "diary-1").path)
    diary.begin("speech", 1)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    diary.enter("feeds:augment")
    divide(40, 10)
    strangers = []
    try:
        with contextlib.suppress(OSError):
            while True:
                strangers.append(os.dup(0))
        now += 12
        w.owner.explain(tmp_path)
    finally:
        monkeypatch.undo()
        for number in strangers:
            os.close(number)
        undivide()
    assert w.said == [(b"a", Pulse(0, "worker 1 has been in `augment` for 12 s"))]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM])
def test_without_a_descriptor_or_memory_nothing_is_explained_and_the_greeting_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
):
    def refused(path: str) -> Any:
        raise OSError(number, os.strerror(number))

    w = World()
    w.owner.pass_greeting(b"a", 5, "", [b"hello"])
    monkeypatch.setattr(front_owner, "DiaryReader", refused)
    w.owner.explain(tmp_path)
    assert w.said == [] and w.owner.greets(b"a")


def test_trainers_of_a_life_that_ended_greet_again_and_the_next_life_learns_when_all_have():
    w = World()
    w.begin()
    for connection, session in ((b"a", 2), (b"b", 5), (b"c", 8)):
        assert w.owner.opened(connection, session) == b""
    w.gone.add(b"c")
    assert sorted(w.owner.end_life()) == [2, 5, 8]
    assert dict(w.said) == {b"a": Unknown(2), b"b": Unknown(5), b"c": Unknown(8)}
    assert b"a" in w.owner and b"c" not in w.owner and w.owner.load == 0
    w.take_told()
    w.begin(b"1-1")
    assert AllBack() not in w.take_told()
    w.owner.opened(b"a", 2)
    assert w.take_told() == []
    w.owner.opened(b"b", 5)
    assert w.take_told() == [AllBack()]


def test_trainers_that_do_not_come_back_are_waited_for_a_moment_only():
    w = World()
    w.begin()
    w.owner.opened(b"a", 2)
    w.owner.end_life()
    w.begin(b"1-1", now=10.0)
    w.take_told()
    w.owner.tick(10.0 + RETURN_S / 2, KNOWN)
    assert w.take_told() == []
    w.owner.tick(10.0 + RETURN_S, KNOWN)
    assert w.take_told() == [AllBack()]


def at_work(state: Path, sessions: int) -> None:
    """A server with so many trainers is killed."""
    w = World(state=str(state))
    w.begin()
    for session in range(sessions + 1):
        w.owner.opened(b"%d" % session, session)
    w.owner.left(0)


def test_the_next_server_waits_for_as_many_trainers_as_were_at_work(tmp_path: Path):
    at_work(tmp_path, 2)
    for connections in ((b"x",), (b"x", b"y")):  # a server that is killed amid this waits again
        w = World(state=str(tmp_path))
        w.begin()
        for session, connection in enumerate(connections):
            assert AllBack() not in w.take_told()
            w.owner.opened(connection, session)
    assert w.take_told() == [AllBack()]
    assert AllBack() in World(number=2, state=str(tmp_path)).begun(), "another owner had none"


def test_a_number_of_trainers_that_can_not_be_read_or_stored_counts_as_none(tmp_path: Path):
    for text in "some", "-1", "":
        (tmp_path / "trainers-1").write_text(text)
        assert AllBack() in World(state=str(tmp_path)).begun()
    w = World(state=str(tmp_path / "gone"))
    w.begin()
    w.owner.opened(b"x", 7)
    assert w.owner.sessions == {b"x": 7}
