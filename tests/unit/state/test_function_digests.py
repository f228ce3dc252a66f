"""Stored descriptions of functions, and a start's judgement of a change."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from headrace_proto.errors import ServerError
from headrace_server.pipeline.fingerprint import PYTHON
from headrace_server.state.function_digests import (
    changed_functions,
    check_functions,
    note_functions,
    noted_functions,
)
from headrace_server.state.statedir import ConfigChanged

BEFORE = {"mine:f": {"f": "code 1", "g": "code 1", "RATE": "value 1"}}


def changed(**parts: str) -> dict[str, dict[str, str]]:
    return {"mine:f": {**BEFORE["mine:f"], **parts}}


def test_stored_fingerprints_are_read_back_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    assert noted_functions(tmp_path) is None
    note_functions(tmp_path, BEFORE)
    assert noted_functions(tmp_path) == {"python": PYTHON, "functions": BEFORE}
    (tmp_path / "functions.json").write_text('{"format": 1}')
    with pytest.raises(ServerError, match=r"functions\.json is damaged"):
        noted_functions(tmp_path)


def test_changed_code_is_refused_unless_allowed_and_a_value_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "headrace.server")
    known = {"python": PYTHON, "functions": BEFORE}
    check_functions("a", known, BEFORE, False)
    check_functions("a", None, changed(f="code 2"), False)
    assert not caplog.records
    with pytest.raises(
        ConfigChanged, match="g, which mine:f uses, was changed; the function mine:f"
    ):
        check_functions("a", known, changed(f="code 2", g="code 2"), False)
    check_functions("a", known, changed(f="code 2"), True)
    assert "goes on though the function mine:f was changed" in caplog.text
    check_functions("a", known, changed(RATE="value 2"), False)
    assert "RATE, which mine:f uses, has another value" in caplog.text
    check_functions("a", {**known, "python": "other"}, changed(f="code 2"), False)
    assert "another version of Python" in caplog.text


def test_of_many_changes_five_are_listed_and_the_others_counted() -> None:
    now = {f"mine:f{n}": {f"f{n}": "code 2"} for n in range(7)}
    before = {name: dict.fromkeys(parts, "code 1") for name, parts in now.items()}
    with pytest.raises(ConfigChanged, match=r"mine:f4 was changed; and 2 more"):
        check_functions("a", {"python": PYTHON, "functions": before}, now, False)


def test_functions_of_later_workers_are_compared_with_those_of_the_first() -> None:
    assert changed_functions(BEFORE, BEFORE) == ""
    assert "RATE" in changed_functions(BEFORE, changed(RATE="value 2"))
