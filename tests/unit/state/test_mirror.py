"""A store with a mirror answers once the mirror has its commit, and is made again of the mirror."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable
from pathlib import Path

from headrace_server.core.changes import Change
from headrace_server.state.mirror import Mirrored
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
            store.submit(Change(), "answered")
            eventually(lambda store=store: "answered" in store.take_done())
        records = made[-1].records
        store.close()
    assert len(records) > 20
