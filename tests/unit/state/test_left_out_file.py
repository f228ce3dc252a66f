"""The list of rows that are left out, on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_proto.errors import ServerError
from headrace_server.state.left_out_file import LeftOutFile, Skipped


def test_both_kinds_come_back_and_a_row_may_be_of_both(tmp_path: Path) -> None:
    file = tmp_path / "quarantine.json"
    one = LeftOutFile({7: "it kills"}, {7: Skipped("a spike", 2), 3: Skipped("NaN", 0)})
    one.write(file)
    assert LeftOutFile.read(file) == one
    assert LeftOutFile.read(tmp_path / "none") == LeftOutFile() == LeftOutFile.read(None)


def test_a_list_of_before_is_read(tmp_path: Path) -> None:
    file = tmp_path / "quarantine.json"
    file.write_text('[[7, "it kills"]]')
    assert LeftOutFile.read(file).deadly == {7: "it kills"}


def test_the_earlier_of_two_epochs_holds() -> None:
    one = LeftOutFile()
    for skipped in (Skipped("b", 2), Skipped("a", 1), Skipped("c", 3)):
        one.skip(5, skipped)
    assert one.skipped == {5: Skipped("a", 1)}
    other = LeftOutFile({1: "x"}, {5: Skipped("z", 0), 6: Skipped("y", 4)})
    one.add(other)
    assert one == LeftOutFile({1: "x"}, {5: Skipped("z", 0), 6: Skipped("y", 4)})


@pytest.mark.parametrize("row", ["-1", "1.5", '"3"', "true", "null", "1e400", "NaN", str(2**70)])
def test_a_row_or_an_epoch_that_counts_nothing_is_named(tmp_path: Path, row: str) -> None:
    file = tmp_path / "quarantine.json"
    for text in (f'[[{row}, "y"]]', f'[[1, "y", {row}]]'):
        file.write_text(text)
        with pytest.raises(ServerError, match=r"quarantine\.json is damaged: .* is no integer in"):
            LeftOutFile.read(file)


@pytest.mark.parametrize("text", ["{", "[[1]]", '[["x", "y"]]', '[[1, "y", "z"]]', "[1]"])
def test_a_damaged_list_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "quarantine.json"
    file.write_text(text)
    with pytest.raises(ServerError, match=r"quarantine\.json is damaged: .* mend it"):
        LeftOutFile.read(file)
