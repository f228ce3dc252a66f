"""Commands ask a server at its public address; an error names it, and no answer moves a cursor."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from headrace_proto.credentials import load_keys
from headrace_proto.errors import DeadlineExceeded, NotAllowed
from headrace_proto.token import SNAPSHOT
from headrace_server.cli import main
from headrace_server.cli.asking import ServerAt, snapshot_of_all
from tests.patience import PATIENCE_S

from .served import served

__all__ = ["served"]


def test_a_server_that_breaks_connections_off_or_does_not_answer_is_told(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"tcp://127.0.0.1:{listening.getsockname()[1]}"

        def hang_up() -> None:
            while True:
                try:
                    listening.accept()[0].close()
                except OSError:
                    return

        thread = threading.Thread(target=hang_up)
        thread.start()
        assert main(["keygen", str(tmp_path / "keys")]) == 0
        assert main(["keygen", str(tmp_path / "keys"), "--name", "me"]) == 0
        for keys, says in (
            (None, r"it asks for keys: give those of a trainer by keys= \(--keys\) or"),
            (load_keys(tmp_path / "keys"), "it has no keys, or its key is not server.public of"),
        ):
            with pytest.raises(NotAllowed, match=says):
                ServerAt(address, keys).status()
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(DeadlineExceeded, match=r"within 0\.2 s, and what was asked for may still"),
    ):
        ServerAt(f"tcp://127.0.0.1:{silent.getsockname()[1]}").ask("drain", 0.2)


def test_all_servers_keep_a_snapshot_under_one_name_before_any_settles_it():
    """They do so at the same time."""
    asked: list[Any] = []
    together = threading.Barrier(2)

    def taking(server: int) -> Callable[..., Any]:
        def snapshot(feed: str, timeout_s: float, name: str = "", whole: bool = False) -> Any:
            if name:
                together.wait(PATIENCE_S)
            asked.append((server, name, whole))
            return {"snapshot": name}

        return snapshot

    token = snapshot_of_all([taking(0), taking(1)], "f", 1.0)
    name = token["snapshot"]
    assert SNAPSHOT.fullmatch(name)
    assert sorted(asked[:2]) == [(0, name, False), (1, name, False)]
    assert sorted(asked[2:]) == [(0, name, True), (1, name, True)]
    asked.clear()
    snapshot_of_all([taking(0)], "f", 1.0)
    assert asked == [(0, "", False)]


@pytest.mark.parametrize("named", [{"name": "../x"}, {"whole": True}])
def test_a_snapshot_is_named_as_snapshots_are(served, named):
    with pytest.raises(Exception, match="no name of a snapshot"):
        ServerAt(served.address).ask("snapshot", **named)
    assert not served.asked


def test_a_command_of_another_release_is_refused(served):
    with pytest.raises(Exception, match=r"Command\.what: 'dance' is none of this release"):
        ServerAt(served.address).ask("dance")
