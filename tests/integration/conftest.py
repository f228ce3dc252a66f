"""Fixtures of integration tests."""

from __future__ import annotations

from typing import Any

import pytest

from tests.located import unseen


@pytest.fixture
def over_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers of this process do not find the server's memory, as on another host."""
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
