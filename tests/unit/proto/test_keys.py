"""Keys as text: written keys are read back, other texts are refused, and no secret shows itself.

Of a trainer's keys (``headrace.keys``) too: which files are taken, and why others are not.
"""

from __future__ import annotations

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
def test_a_key_is_read_as_it_was_written(owner):
    assert parse_secret(secret_text(owner, KEY), "f").text == KEY
    assert parse_public(public_text(owner, KEY), "f") == KEY


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


def test_a_directory_and_its_secret_file_name_the_same_keys(keys):
    found = load_keys(keys)
    again = load_keys(str(keys / "alice.secret"))
    assert found.name == "alice"
    assert found.public == parse_public((keys / "alice.public").read_text(), "")
    assert found.server == parse_public((keys / "server.public").read_text(), "")
    assert (again.public, again.server) == (found.public, found.server)
    assert found.secret.text not in repr(found)
