"""``headrace keygen``: pairs that fit, private files, and no file overwritten."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import zmq

from headrace_proto.keys import parse_public, parse_secret
from headrace_server.cli import main
from headrace_server.cli.keygen import make_pair


def files(directory: Path) -> list[str]:
    return sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())


def test_the_servers_pair_and_a_directory_for_its_trainers_are_made(tmp_path: Path):
    secret, public = make_pair(tmp_path / "a" / "keys", None)
    assert files(tmp_path / "a" / "keys") == ["server.public", "server.secret"]
    assert (tmp_path / "a" / "keys" / "trainers").is_dir()
    own = parse_secret(secret.read_text(), "").text
    assert zmq.curve_public(own.encode()).decode() == parse_public(public.read_text(), "")
    assert own not in public.read_text()


def test_all_that_is_made_is_its_users_only(tmp_path: Path):
    old = os.umask(0)
    try:
        make_pair(tmp_path / "keys", None)
        make_pair(tmp_path / "keys", "alice")
    finally:
        os.umask(old)
    for path in [tmp_path / "keys", *(tmp_path / "keys").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_trainers_pair_stays_together_and_beside_the_server_it_is_let_in_at_once(tmp_path: Path):
    make_pair(tmp_path / "mine", "alice")
    assert files(tmp_path / "mine") == ["alice.public", "alice.secret"]
    make_pair(tmp_path / "keys", None)
    make_pair(tmp_path / "keys", "bob")
    assert files(tmp_path / "keys") == [
        *("bob.secret", "server.public", "server.secret", "trainers/bob.public")
    ]


@pytest.mark.parametrize("name", [None, "alice"])
def test_nothing_is_written_over(tmp_path: Path, name: str | None):
    paths = make_pair(tmp_path, name)
    before = [path.read_text() for path in paths]
    with pytest.raises(FileExistsError, match="not written over"):
        make_pair(tmp_path, name)
    paths[0].unlink()
    with pytest.raises(FileExistsError, match="not written over"):
        make_pair(tmp_path, name)
    assert not paths[0].exists() and paths[1].read_text() == before[1]


@pytest.mark.parametrize("shared", ["keys", "."])
def test_no_key_goes_where_everybody_can_exchange_it(tmp_path: Path, shared: str):
    (tmp_path / "keys").mkdir()
    (tmp_path / shared).chmod(0o777)
    with pytest.raises(PermissionError, match=r"everybody can write to .* \(mode 0777\)"):
        make_pair(tmp_path / "keys", "alice")
    assert files(tmp_path) == []


def test_the_command_says_where_the_keys_are_and_what_comes_next_and_shows_no_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert main(["keygen", "keys"]) == 0
    assert main(["keygen", "keys", "--name", "alice"]) == 0
    assert main(["keygen", "away", "--name", "bob"]) == 0
    said = capsys.readouterr().out
    for words in ("--keys keys", "alice.public lies in trainers/", "bob.secret and server.public"):
        assert words in said
    for path in tmp_path.rglob("*.secret"):
        assert parse_secret(path.read_text(), "").text not in said
    assert main(["keygen", "keys"]) == 2
    assert "not written over" in capsys.readouterr().err
    assert main(["keygen", "keys", "--name", "../x"]) == 2
