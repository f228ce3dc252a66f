"""A snapshot that was asked for is made or refused, and whoever asked is told."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_S

from headrace_proto.errors import DataError, ServerError
from headrace_proto.token import Token
from headrace_server.shell.archive import Archive
from headrace_server.shell.snapshots import Shelf


class Router:
    """What the archive says to the router."""

    def __init__(self) -> None:
        self.orders: queue.Queue[dict[str, Any]] = queue.Queue()

    def __call__(self, owner: int | None = None, /, **order: Any) -> None:
        self.orders.put(order)

    def next(self) -> dict[str, Any]:
        return self.orders.get(timeout=PATIENCE_S)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    feed = tmp_path / "feeds" / "speech"
    feed.mkdir(parents=True)
    (feed / "feed.json").write_text("{}")
    return Shelf(tmp_path)


def test_a_trainers_snapshot_is_made_of_copies_and_told_to_it(shelf: Shelf):
    router = Router()
    archive = Archive(shelf, 5, router)
    ticket = archive.ask("speech", session=3, request=8)
    copy = router.next()
    assert (copy["order"], copy["ticket"], copy["feed"]) == ("copy", ticket, "speech")
    Path(copy["directory"], "0.journal").write_bytes(b"store")
    archive.copied(ticket, "", "")
    answer = router.next()
    assert (answer["order"], answer["session"], answer["request"]) == ("snapshotted", 3, 8)
    token = Token.from_plain("token", answer["token"])
    assert shelf.fetch("speech", token.snapshot)[1] == 5
    archive.copied(ticket, "", "")  # said again: nothing more comes of it
    assert router.orders.empty()


def test_a_copy_that_can_not_be_made_is_told_and_leaves_nothing(shelf: Shelf, tmp_path: Path):
    router = Router()
    archive = Archive(shelf, 1, router)
    ticket = archive.ask("speech", session=3, request=8)
    router.next()
    archive.copied(ticket, "data", "partition 2: the disk is full")
    answer = router.next()
    assert answer["token"] is None
    assert answer["code"] == "data"
    assert answer["text"] == "the snapshot was not made: partition 2: the disk is full"
    assert list((tmp_path / "snapshots" / "speech").iterdir()) == []


def test_a_place_that_can_not_be_written_is_told(tmp_path: Path):
    (tmp_path / "snapshots").write_text("a file")
    router = Router()
    Archive(Shelf(tmp_path), 1, router).ask("speech", session=1, request=1)
    answer = router.next()
    assert answer["token"] is None
    assert "snapshots" in answer["text"]


def test_an_operators_snapshot_is_waited_for(shelf: Shelf):
    router = Router()
    archive = Archive(shelf, 1, router)
    ticket = archive.ask("speech")
    Path(router.next()["directory"], "0.journal").write_bytes(b"store")
    archive.copied(ticket, "", "")
    assert archive.wait(ticket, 10)["feed"] == "speech"
    refused = archive.ask("speech")
    archive.copied(refused, "data", "no")
    with pytest.raises(DataError, match="the snapshot was not made: no"):
        archive.wait(refused, 10)


def test_who_waits_when_the_time_is_over_or_the_server_stops_is_told(shelf: Shelf):
    archive = Archive(shelf, 1, Router())
    with pytest.raises(ServerError, match="took longer than 0 s"):
        archive.wait(archive.ask("speech"), 0)
    ticket = archive.ask("speech")
    archive.close()
    with pytest.raises(ServerError, match="the server was stopped"):
        archive.wait(ticket, 10)


def test_no_more_are_made_at_a_time_than_can_be(shelf: Shelf):
    router = Router()
    archive = Archive(shelf, 1, router)
    for request in range(16):
        archive.ask("speech", 1, request)
        router.next()
    archive.ask("speech", 1, 16)
    assert "16 snapshots are being made" in router.next()["text"]


def test_a_snapshot_is_made_when_all_owners_have_copied_their_partitions(shelf: Shelf):
    """1. Three owners are asked, and one has copied.
    2. Another dies: its next life is asked again, and nobody else.
    3. When the last has copied, the trainer's owner is told.
    """
    asked: queue.Queue[tuple[int | None, dict[str, Any]]] = queue.Queue()

    def order(owner: int | None = None, /, **values: Any) -> None:
        asked.put((owner, values))

    archive = Archive(shelf, 5, order, owners=3)
    ticket = archive.ask("speech", session=3, request=8, owner=1)
    owner, copy = asked.get(timeout=PATIENCE_S)
    assert owner is None and copy["order"] == "copy"
    Path(copy["directory"], "0.journal").write_bytes(b"store")
    archive.copied(ticket, "", "", owner=0)
    archive.copied(ticket, "", "", owner=0)
    archive.begin_again(6, owner=2)
    assert asked.get(timeout=PATIENCE_S) == (2, copy)
    archive.begin_again(7, owner=0)  # it has copied
    archive.copied(ticket, "", "", owner=2)
    assert asked.empty()
    archive.copied(ticket, "", "", owner=1)
    owner, answer = asked.get(timeout=PATIENCE_S)
    assert (owner, answer["order"], answer["session"]) == (1, "snapshotted", 3)
    token = Token.from_plain("token", answer["token"])
    assert shelf.fetch("speech", token.snapshot)[1] == 7  # no token of these lives is repeated


def test_a_snapshot_that_one_owner_can_not_copy_is_refused_when_all_have_answered(shelf: Shelf):
    router = Router()
    archive = Archive(shelf, 1, router, owners=2)
    ticket = archive.ask("speech", session=3, request=8)
    router.next()
    archive.copied(ticket, "data", "partition 2: the disk is full", owner=1)
    assert router.orders.empty()
    archive.copied(ticket, "", "", owner=0)
    assert "partition 2: the disk is full" in router.next()["text"]
