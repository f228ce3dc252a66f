"""No two starts of owners have one term, with a state directory and without."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace_server as hs
from headrace_server.journal.state_directory import StateDirectory
from headrace_server.process.config import FeedConfig, RunConfig
from headrace_server.process.rewinding import BEGINNING
from headrace_server.server import starts as module
from headrace_server.server.starts import Starts
from tests.patience import PATIENCE_S

FEED = FeedConfig("a", hs.from_examples([{"x": 1}]).batch(4).declaration(), (), 3)
CONFIG = RunConfig((FEED,), "/there", (), workers=3)


@pytest.fixture(params=["stored", "in memory"])
def starts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Starts]:
    if request.param == "in memory":
        yield Starts(CONFIG, None)
        return
    durable = StateDirectory(tmp_path, "power")
    begun = durable.begin(CONFIG, {})
    durable.prepare(FEED, BEGINNING)
    yield Starts(begun, durable)
    durable.close()


def terms(starts: Starts) -> list[int]:
    return [starts.of(owner).term for owner in range(3)]


def test_every_start_of_an_owner_has_a_larger_term_than_all_before(starts: Starts):
    first = starts.config.term
    starts.begin_all()
    begun = terms(starts)
    assert first == begun[0] and begun == sorted(set(begun))
    starts.begin(1)
    assert starts.of(1).term > begun[-1] and starts.of(0).term == begun[0]
    assert starts.config.term == starts.of(1).term
    starts.take_back("a", 0)
    assert min(terms(starts)) > starts.config.term - 3 > begun[-1]
    assert [starts.of(owner).feed("a").generation for owner in range(3)] == [1, 1, 1]


def test_a_change_amid_the_start_of_an_owner_is_not_lost(
    starts: Starts, monkeypatch: pytest.MonkeyPatch
):
    """A worker has died, and its next term is being stored, when a feed is taken back."""
    waits_or_over, lock = threading.Event(), threading.RLock()

    class Lock:
        """The lock of the starts, which shows that a thread waits for it."""

        def __enter__(self) -> None:
            if not lock.acquire(blocking=False):
                waits_or_over.set()
                lock.acquire()

        def __exit__(self, *error: object) -> None:
            lock.release()

    def change() -> None:
        starts.take_back("a", 0)
        waits_or_over.set()

    monkeypatch.setattr(starts, "_lock", Lock())
    began = threading.Thread(target=change)
    replaced = module.replace
    stored = StateDirectory.next_start

    def meanwhile() -> None:
        if not began.ident:
            began.start()
            assert waits_or_over.wait(PATIENCE_S)

    def next_start(durable: StateDirectory, config: RunConfig) -> RunConfig:
        meanwhile()
        return stored(durable, config)

    def replacing(config: RunConfig, **values: Any) -> RunConfig:
        if "term" in values:
            meanwhile()
        return replaced(config, **values)

    monkeypatch.setattr(StateDirectory, "next_start", next_start)
    monkeypatch.setattr(module, "replace", replacing)
    starts.begin(1)
    began.join(PATIENCE_S)
    assert starts.of(1).feed("a").generation == starts.config.feed("a").generation == 1
    assert len({*terms(starts)}) == 3


def test_a_start_that_can_not_be_stored_leaves_the_last_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    durable = StateDirectory(tmp_path, "power")
    starts = Starts(durable.begin(CONFIG, {}), durable)
    starts.begin_all()
    before = terms(starts)

    def full(config: RunConfig) -> RunConfig:
        raise OSError(28, "no room")

    monkeypatch.setattr(durable, "next_start", full)
    with pytest.raises(OSError, match="no room"):
        starts.begin(1)
    assert terms(starts) == before
    durable.close()
