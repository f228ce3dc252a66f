"""Which exit code an error gives."""

from __future__ import annotations

import errno

import pytest

from headrace_proto.errors import (
    ConnectionLost,
    FilesMissing,
    HeadraceError,
    ServerError,
    UnknownFeed,
)
from headrace_server.cli import exits


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ServerError("x"), exits.FAILED),
        (FilesMissing("x"), exits.FAILED),  # a ValueError and an OSError, too
        (ConnectionLost("x"), exits.FAILED),
        (HeadraceError("x"), exits.FAILED),
        (UnknownFeed("x"), exits.MISTAKE),
        (ValueError("x"), exits.MISTAKE),
        (ImportError("x"), exits.MISTAKE),
        (FileNotFoundError(errno.ENOENT, "x"), exits.MISTAKE),
        (OSError(errno.ENOSPC, "x"), exits.FAILED),
    ],
)
def test_whose_fault_it_was_makes_the_exit_code(error: BaseException, code: int):
    assert exits.code_of(error) == code
    assert isinstance(error, exits.SHOWN)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "a.toml"), "a.toml: No such"),
        (PermissionError(errno.EACCES, "Permission denied", b"keys"), "keys: Permission denied"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left"),
        (OSError("a text of ours"), "a text of ours"),
        (FilesMissing("'a' does not exist"), "'a' does not exist"),
    ],
)
def test_an_error_of_the_system_is_told_by_its_file_and_without_a_number(
    error: BaseException, words: str
):
    assert exits.paragraph(error).startswith(words)
