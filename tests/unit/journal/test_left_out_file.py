"""The list of rows that are left out, on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_proto.errors import ServerError
from headrace_server.journal.left_out_file import left_out_rows, write_left_out


def test_rows_come_back(tmp_path: Path) -> None:
    write_left_out(tmp_path / "left_out.json", {7: (2, "it kills")})
    assert left_out_rows(tmp_path / "left_out.json") == {7: (2, "it kills")}
    assert left_out_rows(tmp_path / "none") == {}


@pytest.mark.parametrize(
    "text",
    ["{", "[[1]]", '[["x", 0, "y"]]', '[[1, "y"]]', "[1]", '[[-1, 0, "y"]]', '[[1, 1.5, "y"]]'],
)
def test_a_damaged_list_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "left_out.json"
    file.write_text(text)
    with pytest.raises(ServerError, match=r"left_out\.json is damaged: .* mend it"):
        left_out_rows(file)
