"""A changed byte of a file is noticed, and the file is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace_server.files.checksums import bytes_of, sealed, sums_of, unsealed, verify


def test_each_stretch_has_a_sum_of_its_own(tmp_path: Path):
    file = tmp_path / "a"
    file.write_bytes(bytes(range(100)))
    bounds = [0, 10, 10, 70, 100]
    sums = sums_of(bytes_of(file), bounds)
    file.write_bytes(bytes(range(50)) + b"!" + bytes(range(51, 100)))
    changed = bytes_of(file)
    for number in (0, 1, 3):
        verify("a", changed, sums[number : number + 1], bounds[number : number + 2])
    with pytest.raises(ValueError, match="bytes of a from 10 to 70 are not those that were writ"):
        verify("a", changed, sums[2:3], bounds[2:4])


def test_a_whole_file_has_one_sum_and_an_empty_one_too(tmp_path: Path):
    for content in (b"", b"x"):
        (tmp_path / "a").write_bytes(content)
        verify("a", bytes_of(tmp_path / "a"), sums_of(np.frombuffer(content, np.uint8)))
    with pytest.raises(ValueError, match="the bytes of a are not those"):
        verify("a", bytes_of(tmp_path / "a"), [0])


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": 1}', '{"a": 2, "sum": 5}', "\x00"])
def test_an_object_that_was_changed_is_not_read(tmp_path: Path, text: str):
    file = tmp_path / "a.json"
    file.write_text(sealed({"a": [1, {"b": None}], "c": "ü"}))
    assert unsealed(file) == {"a": [1, {"b": None}], "c": "ü"}
    file.write_text(text)
    with pytest.raises(ValueError, match=r"a\.json"):
        unsealed(file)
