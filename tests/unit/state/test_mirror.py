"""A store with a mirror answers once the mirror has its commit, and is made again of the mirror."""

from __future__ import annotations

import copy
import errno
import random
import threading
from collections.abc import Callable, Iterable
from multiprocessing.connection import Listener
from pathlib import Path

import msgpack
import pytest

from headrace_server.core.stored_state import Change
from headrace_server.state.mirror import Mirror, Mirrored
from headrace_server.state.statedir import partition_path
from headrace_server.state.store import Store
from tests.patience import eventually
from tests.unit.changes import Model, random_change

NAME = "numbers", 3


class Kept:
    """A mirror in this process."""

    def __init__(self, everything: Callable[[], Iterable[bytes]]) -> None:
        self._everything = everything
        self.records: list[bytes] = []

    def send(self, record: bytes) -> None:
        self.records.append(record)

    def send_everything(self) -> None:
        self.records = [*self._everything()]

    def close(self) -> None:
        pass


def test_a_change_is_applied_once_though_its_mirror_fails(tmp_path: Path) -> None:
    class Failing(Kept):
        failures = 2

        def send(self, record: bytes) -> None:
            self.failures -= 1
            if self.failures >= 0:
                raise OSError(errno.EMFILE, "Too many open files")
            super().send(record)

    made: list[Failing] = []

    def mirror(everything: Callable[[], Iterable[bytes]]) -> Failing:
        made.append(Failing(everything))
        return made[-1]

    path = tmp_path / "0.journal"
    store = Store(path, "process", mirror=mirror)  # type: ignore[arg-type]
    store.submit(Change(tokens=[7]), tickets=["answered"])
    eventually(lambda: "answered" in store.take_done())
    assert len(made[0].records) == 1 and not store.fault
    store.close()
    store = Store(path, "process")
    assert store.load().tokens == [7]
    store.close()


def test_a_mirror_that_ends_is_named_and_gets_everything_when_it_is_asked_again(
    tmp_path: Path,
) -> None:
    received: list[tuple[bool, list[bytes]]] = []
    with Listener(str(tmp_path / "m"), "AF_UNIX") as listener:

        def listen() -> None:
            for answers in (False, True):
                with listener.accept() as connection:
                    _, _, whole, records = msgpack.unpackb(connection.recv_bytes())
                    received.append((whole, records))
                    if answers:
                        connection.send_bytes(b"")

        thread = threading.Thread(target=listen)
        thread.start()
        mirror = Mirror(str(tmp_path / "m"), NAME, lambda: [b"a", b"b"])
        with pytest.raises(ConnectionResetError, match="the server that mirrors it has ended"):
            mirror.send(b"b")
        mirror.send(b"b")
        mirror.close()
        thread.join()
    assert received == [(False, [b"b"]), (True, [b"a", b"b"])]


def test_a_store_of_mirrored_records_has_all_that_was_answered(tmp_path: Path) -> None:
    chance, model = random.Random(5), Model()
    made: list[Kept] = []

    def mirror(everything: Callable[[], Iterable[bytes]]) -> Kept:
        made.append(Kept(everything))
        return made[-1]

    records: list[bytes] = []
    for life in range(3):
        state = tmp_path / str(life)
        path = partition_path(state, *NAME)
        path.parent.mkdir(parents=True)
        Mirrored("", print, {NAME: records}).restore(state, NAME[0])
        store = Store(path, "process", mirror=mirror)  # type: ignore[arg-type]
        assert store.load() == model.saved
        for _ in range(20):
            change = random_change(chance)
            model.apply(copy.deepcopy(change))
            assert not store.write([change])  # the mirror takes its time
            store.submit(change)
            store.submit(Change(), tickets=["answered"])
            eventually(lambda store=store: "answered" in store.take_done())
        records = made[-1].records
        store.close()
    assert len(records) > 20
