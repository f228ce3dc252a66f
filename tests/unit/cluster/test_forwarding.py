"""The forwarder gives each store the directory's answer, and asks once for all waiting stores."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace_server.cluster.forwarding import Forwarder, Message
from headrace_server.state.mirror import Mirror
from tests.patience import PATIENCE_S


def test_records_that_wait_go_together_and_each_store_gets_its_answer(tmp_path: Path) -> None:
    asked: list[list[Message]] = []
    goes_on = threading.Event()

    def keep(messages: Sequence[Message]) -> list[bool]:
        asked.append([*messages])
        assert goes_on.wait(PATIENCE_S)
        return [whole for _, whole, _ in messages]

    forwarder = Forwarder(str(tmp_path / "m"), keep, failed=lambda error: None)
    mirrors = [Mirror(forwarder.path, ("numbers", k), lambda: [b"a", b"b"]) for k in range(3)]
    threads = [threading.Thread(target=mirror.send, args=(b"r",)) for mirror in mirrors]
    for thread in threads:
        thread.start()
    goes_on.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    for mirror in mirrors:
        mirror.close()
    forwarder.close()
    sent = sorted(message for messages in asked for message in messages)
    assert sent == sorted(
        (("numbers", k), whole, records)
        for k in range(3)
        for whole, records in ((False, [b"r"]), (True, [b"a", b"b"]))
    )


def test_an_error_of_the_directory_is_reported_and_no_store_is_answered(tmp_path: Path) -> None:
    failed: list[BaseException] = []

    def keep(messages: Sequence[Message]) -> list[bool]:
        raise ValueError("superseded")

    forwarder = Forwarder(str(tmp_path / "m"), keep, failed.append)
    mirror = Mirror(forwarder.path, ("numbers", 0), list)
    with pytest.raises(ConnectionResetError, match="the server that mirrors it has ended"):
        mirror.send(b"r")
    mirror.close()
    forwarder.close()
    assert [str(error) for error in failed] == ["superseded"]
