"""A table holds the result of all changes, and returns it as one table."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest

from headrace_server.journal.live_table import LiveTable, decoded, encoded
from headrace_server.shaping.stored_state import Change, Examples
from tests.unit.changes import Model, random_change


class File:
    """Records one after the other, as a journal has them."""

    def __init__(self) -> None:
        self.data = bytearray()

    def read(self, place: int, nbytes: int) -> bytes:
        return bytes(self.data[place : place + nbytes])

    def put(self, changes: list[Change], table: LiveTable) -> None:
        place, whole = len(self.data), b"".join(bytes(p) for c in changes for p in encoded(c))
        self.data += whole
        assert decoded(whole) == changes
        table.apply(decoded(whole), place, len(whole))


@pytest.mark.parametrize("seed", range(5))
def test_it_is_what_the_changes_come_to_however_they_are_gathered_and_copied(seed):
    chance, model, file, piece_bytes = (
        random.Random(seed),
        Model(),
        File(),
        (200, 1 << 20)[seed % 2],
    )
    table = LiveTable(1000, piece_bytes)
    for _ in range(30):
        changes = [random_change(chance) for _ in range(chance.randrange(1, 5))]
        for change in changes:
            model.apply(copy.deepcopy(change))
        file.put(changes, table)
        assert table.saved(file.read) == model.saved
        if chance.random() < 0.2:
            other, again = File(), LiveTable(1000, piece_bytes)
            for change in table.changes(file.read):
                other.put([change], again)
            file, table = other, again
            assert table.saved(file.read) == model.saved


def test_an_empty_change_is_not_worth_a_record():
    assert not Change()
    assert Change(base=0) and Change(tokens=[1]) and Change(drop=[0])


@pytest.mark.parametrize("kinds", [("bytes", "bytes"), ("rows", "rows"), ("rows", "bytes")])
def test_rows_of_several_records_are_gathered_in_the_order_in_which_they_came(kinds):
    def part(kind: str, indices: list[int]) -> Examples:
        numbers = np.array([[i] * 6 for i in indices], np.int64).T
        states = [bytes([i, i + 1]) for i in indices]
        rows = np.frombuffer(b"".join(states), np.uint8).reshape(-1, 2)
        keys = [(0, b"%d" % i) for i in indices]
        return Examples(np.ascontiguousarray(numbers), keys, [states if kind == "bytes" else rows])

    parts = [part(kinds[0], [4, 5, 1, 9]), part(kinds[1], [7, 0, 2])]
    some = [(parts[0], np.array([0, 1, 3])), (parts[1], np.array([1, 2]))]
    gathered = Examples.gathered(some, lambda shape: np.empty(shape, np.uint8))
    assert gathered.numbers[1].tolist() == [0, 2, 4, 5, 9]
    assert [key for _, key in gathered.keys] == [b"0", b"2", b"4", b"5", b"9"]
    assert gathered.packed() == [bytes([i, i + 1]) for i in (0, 2, 4, 5, 9)]
