"""Readers that a test opened are closed when it ends; generated examples are always the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import reading
from hypothesis import settings

settings.register_profile(
    "steady", settings.default, derandomize=True, deadline=None, database=None
)
settings.load_profile("steady")


@pytest.fixture(autouse=True)
def readers_are_closed() -> Iterator[None]:
    yield
    while reading.OPEN:
        reading.OPEN.pop().close()
