"""Keys as text: written keys are read back, other texts are refused, and no secret shows itself.

Of a trainer's keys (``headrace.keys``) too: which files are taken, and why others are not.
"""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import pytest

from headrace_proto.credentials import load_keys
from headrace_proto.keys import (
    fault_of_mode,
    parse_public,
    parse_secret,
    public_text,
    secret_text,
)
from headrace_server.cli.keygen import make_pair

KEY = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"


@pytest.mark.parametrize("owner", ["server", "alice"])
def test_a_key_is_read_as_it_was_written(owner: str):
    assert parse_secret(secret_text(owner, KEY), "f").text == KEY
    assert parse_public(public_text(owner, KEY), "f") == KEY


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "holds 0 lines curve-secret"),
        (public_text("alice", KEY), "holds a curve-public, where a curve-secret is expected"),
        (secret_text("alice", KEY) * 2, "holds 2 lines"),
        (secret_text("alice", KEY[:-1]), "no key of 40"),
        (secret_text("alice", KEY[:-1] + "~"), "no key of 40"),
        (f"{KEY}\n", "neither a comment nor"),
        ("curve-secret " + KEY, "neither a comment nor"),
    ],
)
def test_the_error_of_an_invalid_key_has_its_path_and_none_of_its_bytes(text: str, told: str):
    with pytest.raises(ValueError, match=r"/k/alice\.secret.*" + told) as caught:
        parse_secret(text, "/k/alice.secret")
    assert KEY[5:15] not in str(caught.value)


def test_a_secret_shows_itself_in_no_text_and_is_not_pickled():
    secret = parse_secret(secret_text("alice", KEY), "f")
    assert KEY not in f"{secret} {secret!r} {[secret]} {vars(type(secret))}"
    with pytest.raises(TypeError):
        pickle.dumps(secret)


def test_secrets_that_everybody_reads_and_files_that_everybody_writes_are_faults():
    assert fault_of_mode(0o100600, secret=True) == ""
    assert fault_of_mode(0o100440, secret=True) == ""  # as orchestrators mount it
    assert "read by everybody (mode 0644)" in fault_of_mode(0o100644, secret=True)
    assert "written by its group" in fault_of_mode(0o100620, secret=True)
    assert fault_of_mode(0o100664, secret=False) == ""
    assert "written by everybody" in fault_of_mode(0o100666, secret=False)


# A trainer's


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """The keys of a trainer called alice, and the public key of a server."""
    make_pair(tmp_path / "server", None)
    make_pair(tmp_path / "alice", "alice")
    shutil.copy(tmp_path / "server" / "server.public", tmp_path / "alice")
    return tmp_path / "alice"


def test_a_directory_and_its_secret_file_name_the_same_keys(keys: Path):
    found = load_keys(keys)
    again = load_keys(str(keys / "alice.secret"))
    assert found.name == "alice"
    assert found.public == parse_public((keys / "alice.public").read_text(), "")
    assert found.server == parse_public((keys / "server.public").read_text(), "")
    assert (again.public, again.server) == (found.public, found.server)
    assert found.secret.text not in repr(found)


def test_the_environment_names_keys_where_the_argument_does_not(
    keys: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HEADRACE_KEYS", str(keys))
    assert load_keys(None).name == "alice"
    monkeypatch.setenv("HEADRACE_KEYS", str(keys / "none"))
    with pytest.raises(ValueError, match=r"HEADRACE_KEYS=.*neither a directory nor a file"):
        load_keys(None)


def test_one_of_several_secrets_must_be_named(keys: Path):
    make_pair(keys, "bob")
    with pytest.raises(ValueError, match=r"'alice\.secret', 'bob\.secret'\]: name the file of one"):
        load_keys(keys)
    assert load_keys(keys / "bob.secret").name == "bob"


def test_a_secret_that_others_read_and_a_server_that_is_not_known_are_refused(keys: Path):
    os.chmod(keys / "alice.secret", 0o644)
    with pytest.raises(ValueError, match=r"chmod 600 .*alice\.secret"):
        load_keys(keys)
    os.chmod(keys / "alice.secret", 0o600)
    (keys / "server.public").chmod(0o666)
    with pytest.raises(ValueError, match=r"server\.public can be written by everybody"):
        load_keys(keys)
    (keys / "server.public").unlink()
    with pytest.raises(ValueError, match=r"there is no server\.public: copy"):
        load_keys(keys)
