"""A snapshot is made of the copies of all owners, or refused with the code of its cause."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_S

from headrace_proto.errors import DataError, ServerError
from headrace_server.shell.archive import Archive
from headrace_server.shell.snapshots import Shelf

MADE = {"code": "", "text": ""}


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    feed = tmp_path / "feeds" / "speech"
    feed.mkdir(parents=True)
    (feed / "feed.json").write_text("{}")
    return Shelf(tmp_path)


def archive(shelf: Shelf, *answers: Mapping[str, Any], epoch: int = 1) -> Archive:
    def ask(order: str, timeout_s: None, failure: Any, feed: str, directory: str) -> Any:
        assert (order, timeout_s, failure()) == ("copy", None, None)
        Path(directory, "0.journal").write_bytes(b"store")
        return dict(enumerate(answers))

    return Archive(shelf, lambda: epoch, ask)


def test_a_snapshot_is_made_of_copies_and_knows_the_epoch_of_the_last_start(shelf: Shelf):
    token = archive(shelf, MADE, MADE, epoch=7).make("speech")
    assert token.feed == "speech"
    path, epoch = shelf.fetch("speech", token.snapshot)
    assert epoch == 7 and (path / "0.journal").read_bytes() == b"store"


def test_a_copy_that_can_not_be_made_is_told_and_leaves_nothing(shelf: Shelf, tmp_path: Path):
    full = {"code": "data", "text": "partition 2: the disk is full"}
    with pytest.raises(DataError, match="the snapshot was not made: partition 2: the disk is full"):
        archive(shelf, MADE, full).make("speech")
    assert list((tmp_path / "snapshots" / "speech").iterdir()) == []


def test_a_place_that_can_not_be_written_is_told(tmp_path: Path):
    (tmp_path / "snapshots").write_text("a file")
    with pytest.raises(ServerError, match="snapshots"):
        archive(Shelf(tmp_path)).make("speech")


def test_no_more_are_made_at_a_time_than_can_be(shelf: Shelf):
    """1. Sixteen are being made; 2. the next is refused; 3. once they are made, one more is."""
    begun, go_on = threading.Semaphore(0), threading.Event()

    def ask(*_: Any, **values: Any) -> Any:
        begun.release()
        assert go_on.wait(PATIENCE_S)
        return {}

    one = Archive(shelf, lambda: 1, ask)
    threads = [threading.Thread(target=one.make, args=("speech",)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert begun.acquire(timeout=PATIENCE_S)
    with pytest.raises(ServerError, match="16 snapshots are being made: ask again later"):
        one.make("speech")
    go_on.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert one.make("speech").feed == "speech"
