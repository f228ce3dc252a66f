"""The server's keys in a directory: its files determine the admitted trainers."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from pathlib import Path

import pytest

from headrace_proto.keys import parse_public
from headrace_server.cli.keygen import make_pair
from headrace_server.net import keyring
from headrace_server.net.keyring import KeyRing
from tests.shortage import no_descriptors


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A server's, that knows alice."""
    make_pair(tmp_path / "keys", None)
    make_pair(tmp_path / "keys", "alice")
    return tmp_path / "keys"


def public(path: Path) -> str:
    return parse_public(path.read_text(), str(path))


def test_the_target_of_a_link_may_be_exchanged(keys, tmp_path):
    """As orchestrators do with the files that they mount."""
    first, second = (make_pair(tmp_path / n, "bob")[1] for n in ("1", "2"))
    (tmp_path / "data").symlink_to(first.parent)
    (keys / "trainers" / "bob.public").symlink_to(tmp_path / "data" / "bob.public")
    ring = KeyRing(keys)
    assert ring.name_of(public(first)) == "bob"
    (tmp_path / "next").symlink_to(second.parent)
    (tmp_path / "next").rename(tmp_path / "data")
    assert ring.refresh() and ring.name_of(public(second)) == "bob"


def test_a_file_that_is_no_key_lets_nobody_in_and_stops_nobody_else(keys, caplog):
    caplog.set_level(logging.WARNING, "headrace.trainers")
    shutil.copy(keys / "alice.secret", keys / "trainers" / "carol.public")
    (keys / "trainers" / "dave.public").write_bytes(b"\xff\x00" * 50)
    (keys / "trainers" / "..data").mkdir()
    (keys / "trainers" / "frank.public").mkdir()
    os.mkfifo(keys / "trainers" / "grace.public")
    (keys / "trainers" / "server.public").write_text((keys / "server.public").read_text())
    shared = keys / "trainers" / "eve.public"
    shutil.copy(keys / "trainers" / "alice.public", shared)
    shared.chmod(0o666)
    ring = KeyRing(keys)
    assert ring.names == ["alice"]
    told = "\n".join(caplog.messages)
    for words in ("carol.public", "holds a curve-secret", "dave.public", "everybody", "own pair"):
        assert words in told
    assert "frank.public" in told and "grace.public is no regular file" in told
    caplog.clear()
    assert not ring.refresh() and not caplog.messages


def test_a_directory_that_goes_away_lets_nobody_in_and_is_logged_once(keys, caplog):
    caplog.set_level(logging.WARNING, "headrace.trainers")
    ring = KeyRing(keys)
    (keys / "trainers").rename(keys / "away")
    assert ring.refresh() and ring.names == []
    assert not ring.refresh() and caplog.text.count("no trainer is let in") == 1
    (keys / "away").rename(keys / "trainers")
    assert ring.refresh() and ring.names == ["alice"]


def test_a_shortage_of_descriptors_takes_no_key_away(keys, tmp_path, monkeypatch):
    ring = KeyRing(keys)
    _, bob = make_pair(tmp_path / "bob", "bob")
    with no_descriptors():
        assert not ring.refresh() and ring.names == ["alice"]
    shutil.copy(bob, keys / "trainers")

    def none_left(*of: object, **named: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as after_the_look:
        after_the_look.setattr(keyring, "open", none_left, raising=False)
        assert not ring.refresh() and ring.names == ["alice"]
    assert ring.refresh() and ring.names == ["alice", "bob"]
