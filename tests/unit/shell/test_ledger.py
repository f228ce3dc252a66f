"""A ledger holds what all changes come to, and gives it back as one table."""

from __future__ import annotations

import copy
import random

import pytest
from tests.unit.shell.changes import Model, random_change

from headrace_server.core.changes import Change, Example, Saved
from headrace_server.shell.journal import record_bytes
from headrace_server.shell.ledger import Entry, Ledger, merged


class File:
    """Entries one after the other, as a journal has them."""

    def __init__(self) -> None:
        self.data = bytearray()

    def read(self, place: int, nbytes: int) -> bytes:
        return bytes(self.data[place : place + nbytes])

    def put(self, entry: Entry, ledger: Ledger) -> None:
        place, whole = len(self.data), b"".join(entry.parts())
        self.data += whole
        parsed, states_at = Entry.parse(whole)
        assert parsed.keys == entry.keys and whole[states_at:] == entry.states
        ledger.apply(parsed, place + states_at)


@pytest.mark.parametrize("seed", range(5))
def test_it_is_what_the_changes_come_to_however_they_are_merged_and_copied(seed: int):
    chance, model, file, ledger = random.Random(seed), Model(), File(), Ledger(1000)
    for _ in range(30):
        changes = [random_change(chance) for _ in range(chance.randrange(1, 5))]
        for change in changes:
            model.apply(copy.deepcopy(change))
        file.put(merged(changes), ledger)
        assert ledger.saved(file.read) == model.saved
        if chance.random() < 0.2:
            most = ledger.table_bytes()
            other, again = File(), Ledger(1000)
            for entry in ledger.table(file.read):
                most -= record_bytes(sum(map(len, entry.parts())))
                other.put(entry, again)
            assert most >= 0
            file, ledger = other, again
            assert ledger.saved(file.read) == model.saved


def test_many_large_states_are_copied_in_pieces(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace_server.shell.ledger._PIECE_BYTES", 1000)
    file, ledger = File(), Ledger(10)
    put = [Example(n, n, 0, 0, 0, 1, b"k%d" % n, b"%d" % n * 300) for n in range(20)]
    file.put(merged([Change(put=put, tokens=list(range(20)))]), ledger)
    pieces = list(ledger.table(file.read))
    assert len(pieces) > 4
    assert sum(record_bytes(sum(map(len, p.parts()))) for p in pieces) <= ledger.table_bytes()
    assert ledger.saved(file.read) == Saved({}, put, {}, [], list(range(10, 20)))


def test_a_state_that_went_wrong_in_the_file_is_not_copied():
    file, ledger = File(), Ledger(10)
    file.put(merged([Change(put=[Example(1, 1, 0, 0, 0, 1, b"key", b"state")])]), ledger)
    file.data[-1] ^= 1
    with pytest.raises(ValueError, match="state of example b'key' fails its checksum"):
        list(ledger.table(file.read))
    with pytest.raises(ValueError, match="state of example b'key' fails its checksum"):
        ledger.saved(file.read)


def test_an_entry_without_changes_is_not_worth_a_record():
    assert not merged([Change(), Change()])
    assert merged([Change(), Change(base=0)])
    assert merged([Change(tokens=[1])]) and merged([Change(drop=[0])])
