"""Fixtures of integration tests."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def over_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers of this process do not find the server's memory, as on another host."""

    def unseen(directory: str, session_file: str) -> None:
        raise FileNotFoundError(session_file)

    monkeypatch.setattr("headrace.connection.connection.Attachment", unseen)


@pytest.fixture(params=["shared memory", "tcp"])
def way(request: pytest.FixtureRequest) -> str:
    """Run a test with either transport of batches."""
    if request.param == "tcp":
        request.getfixturevalue("over_tcp")
    return str(request.param)


@pytest.fixture(scope="session")
def tf() -> Any:
    """TensorFlow, loaded when the first test asks for it."""
    return pytest.importorskip("tensorflow")
