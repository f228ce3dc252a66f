"""A fault of the front at one message costs that message's sender its connection, and no more."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zmq

from headrace_proto import limits
from headrace_proto.messages import FROM_SERVER, FROM_TRAINER, Hello, Pulse, Refused
from headrace_server.front.front import Front
from headrace_server.process.config import RunConfig


def test_a_fault_at_a_message_is_logged_and_counted_and_the_next_sender_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = RunConfig(feeds=(), directory=str(tmp_path), binds=("tcp://127.0.0.1:*",), workers=1)
    front = Front(config, SimpleNamespace(check_parent=lambda: None), None)  # type: ignore[arg-type]
    with zmq.Context() as context:
        (address,) = front.bind()

        def asks() -> Any:
            with context.socket(zmq.DEALER) as peer:
                peer.linger = 0
                peer.connect(address)
                peer.send(FROM_TRAINER.encode(Hello(limits.PROTOCOL, "t", "", b"n")))
                while not peer.poll(10):
                    front._hear_trainers()
                    front._tick(0.0)
                return FROM_SERVER.decode(peer.recv())

        try:
            with monkeypatch.context() as planted:
                planted.setattr(front, "_hear_stranger", lambda *_: 1 // 0)
                refused = asks()
            assert isinstance(refused, Refused) and refused.code == "server"
            assert "ZeroDivisionError" in refused.text
            assert front._gate.access()["refused"] == {"fault": 1}
            assert caplog.text.count("Traceback") == 1
            assert isinstance(asks(), Pulse)
        finally:
            front.close()
