"""The locator's answer while its server stops: a moment too short to meet with whole servers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import zmq

import headrace_server as hs
from headrace_proto import limits
from headrace_proto.messages import FROM_SERVER, FROM_TRAINER, Hello, Refused, ServedShare
from headrace_server.process.config import FeedConfig, RunConfig
from headrace_server.server.locator import Locator
from tests.patience import eventually


@pytest.mark.parametrize("durable", [True, False])
def test_a_stopping_server_refuses_trainers_only_where_no_other_goes_on(durable, tmp_path):
    pipeline = hs.from_examples([{"i": 1}]).batch(1)
    feed = FeedConfig("f", pipeline.declaration(), (), 1)
    state = str(tmp_path) if durable else None
    config = RunConfig((feed,), str(tmp_path), ("tcp://127.0.0.1:*",), state_directory=state)
    pipe: Any = SimpleNamespace()
    locator = Locator(config, pipe, None)
    (address,) = locator.bind()
    locator._orders["located"](worker=0, places={"": "tcp://127.0.0.1:1"})
    locator._orders["stop"](unended=[0])

    def answered() -> bool:
        locator._socket.update(0.0)
        locator._receive()
        return bool(trainer.poll(1))

    with zmq.Context() as context, context.socket(zmq.DEALER) as trainer:
        trainer.connect(address)
        trainer.send(FROM_TRAINER.encode(Hello(limits.PROTOCOL, "0", "f", bytes(16), shares=0)))
        eventually(answered)
        answer = FROM_SERVER.decode(trainer.recv())
    locator.close()
    assert isinstance(answer, ServedShare if durable else Refused)
