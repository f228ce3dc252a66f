"""Readers that a test opened are closed when it ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit import readers


@pytest.fixture(autouse=True)
def readers_are_closed() -> Iterator[None]:
    yield
    while readers.OPEN:
        readers.OPEN.pop().close()
