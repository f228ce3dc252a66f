"""A snapshot is whole or not there, unchanged or refused, and may be at a URL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace_proto.errors import ServerError
from headrace_server.journal.snapshots import Shelf

FEED = "speech"


def state(tmp_path: Path, name: str = "state") -> Path:
    feed = tmp_path / name / "feeds" / FEED
    feed.mkdir(parents=True)
    (feed / "feed.json").write_text('{"a": 1}')
    return tmp_path / name


def made(shelf: Shelf, content: bytes = b"store", term: int = 3, name: str = "") -> str:
    name, directory = shelf.begin(FEED, name)
    (directory / "0.journal").write_bytes(content)
    return shelf.finish(FEED, name, term).snapshot


def test_stored_snapshots_are_found_again(tmp_path):
    shelf = Shelf(state(tmp_path))
    name = made(shelf)
    directory, term = Shelf(tmp_path / "state").fetch(FEED, name)
    assert (directory / "0.journal").read_bytes() == b"store"
    assert (directory / "feed.json").read_text() == '{"a": 1}'
    assert term == 3
    assert shelf.stored(FEED) == [name]


def test_one_that_was_not_finished_is_not_there_and_is_swept(tmp_path):
    shelf = Shelf(state(tmp_path))
    name, directory = shelf.begin(FEED)
    (directory / "0.journal").write_bytes(b"half")
    assert shelf.stored(FEED) == []
    with pytest.raises(ServerError, match=f"there is no snapshot {name}.*the last ones: none"):
        shelf.fetch(FEED, name)
    _, other = shelf.begin(FEED)
    shelf.sweep()
    assert not other.exists()


@pytest.mark.parametrize("file", ["0.journal", "feed.json", "snapshot.json"])
def test_every_flipped_byte_is_found(tmp_path, file):
    shelf = Shelf(state(tmp_path))
    name = made(shelf)
    path = shelf.fetch(FEED, name)[0] / file
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            assert shelf.fetch(FEED, name)[1] == 3
        except ServerError:
            continue
        # Space between words of JSON may differ; nothing else.
        assert file == "snapshot.json"
        assert json.loads(path.read_text()) == json.loads(whole)
    path.write_bytes(whole)
    shelf.fetch(FEED, name)


def test_only_the_newest_are_kept_where_that_is_asked_for(tmp_path):
    url = f"file://{tmp_path}/far"
    shelf = Shelf(state(tmp_path), url, keep=2)
    for content in (b"1", b"2", b"3"):
        made(shelf, content)
    kept = set(shelf.stored(FEED))
    assert len(kept) == 2
    assert {p.name for p in (tmp_path / "far" / FEED).iterdir()} == kept


def named(hour: int, digit: int = 0) -> str:
    """Return the name that a snapshot has by a clock at this hour."""
    return f"20260102T{hour:02}0000Z-{digit:012x}"


@pytest.mark.parametrize("share", [(0, 1), (0, 2)])
def test_a_clock_that_is_set_back_changes_nothing_in_the_order(tmp_path, share):
    url, directory = f"file://{tmp_path}/far", state(tmp_path)
    other = state(tmp_path, "other")
    given = [named(hour) for hour in (9, 8, 23, 1, 2, 0, 5)]
    for taken, name in enumerate(given, 1):
        shelf = Shelf(directory, url, keep=2, share=share, origin="now")  # a server of its own
        made(shelf, name=name)
        if share[1] > 1:
            shelf.settle(FEED, name)
            made(Shelf(other, url, share=(1, 2), origin="now"), name=name)
        kept = given[max(0, taken - 2) : taken]
        assert shelf.stored(FEED) == kept
        there = tmp_path / "far" / FEED
        assert {one.name for one in there.iterdir() if list(one.glob("**/0.journal"))} >= {*kept}
        assert shelf.newest(FEED) == name
        assert Shelf(directory, url, share=share, origin="before").newest(FEED) == ""


def test_one_that_was_fetched_is_older_than_those_made_after_it(tmp_path):
    url = f"file://{tmp_path}/far"
    names = [named(hour) for hour in (3, 2, 1)]
    for name in names:
        made(Shelf(state(tmp_path) if name == names[0] else tmp_path / "state", url), name=name)
    shelf = Shelf(state(tmp_path, "other"), url, keep=2)
    made(shelf, name=named(9))
    shelf.fetch(FEED, names[2])
    later = [made(shelf, name=named(8))]
    assert shelf.stored(FEED) == [names[2], *later]
    later.append(made(shelf, name=named(0)))
    assert shelf.stored(FEED) == later


def test_a_snapshot_stays_until_its_token_is_returned(tmp_path, monkeypatch):
    """Another one is made while this one is on its way to the URL."""
    shelf = Shelf(state(tmp_path), f"file://{tmp_path}/far", keep=1)
    assert shelf._far is not None
    put, others = shelf._far.put, [named(2), named(1)]

    def later(*given: Any) -> None:
        if others:
            made(shelf, name=others.pop())
        put(*given)

    monkeypatch.setattr(shelf._far, "put", later)
    first = made(shelf, name=named(3))
    assert first in shelf.stored(FEED)
    assert shelf.fetch(FEED, first)
    last = made(shelf, name=named(0))
    assert shelf.stored(FEED) == [last]


def test_old_shares_are_forgotten_once_every_server_has_a_newer_one(tmp_path):
    shelf = Shelf(state(tmp_path), keep=1, share=(0, 2))
    names = [made(shelf) for _ in range(3)]
    assert len(shelf.stored(FEED)) == 3
    shelf.settle(FEED, names[1])
    assert shelf.stored(FEED) == names[1:]
    shelf.settle(FEED, names[2])
    assert shelf.stored(FEED) == names[2:]
