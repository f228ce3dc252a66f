"""Trainers wait for a stopped server that will be back, and learn of the end of a feed."""

from __future__ import annotations

import queue
import signal
from pathlib import Path

import pytest

import headrace
import headrace_server as hs
from tests.chaos.proxy import proxy_of
from tests.patience import PATIENCE_S
from tests.ports import free_port

from .processes import serve, trainer

FEEDS = """
import numpy as np
import headrace_server as hs

few = hs.from_examples([{"i": i} for i in range(8)]).batch(4)
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "feeds.py").write_text(FEEDS)
    return tmp_path


def test_the_program_of_an_embedded_server_is_told_its_end_at_once_and_others_wait(here):
    pipeline = hs.from_examples([{"i": i} for i in range(40)]).batch(4)
    address = f"tcp://127.0.0.1:{free_port()}"
    with hs.run(pipeline, state_dir=here / "s", bind=address):
        mine = headrace.connect(address, prefetch=0, timeout=600)
        rows = next(mine)["i"].tolist()
        other = trainer(address, "--pause", "0.05", "--prefetch", "0", "--timeout", "60")
        other.wait_for("batch")
    with pytest.raises(headrace.ConnectionLost, match="the server was stopped"):
        next(mine)
    mine.close()
    with other, hs.run(pipeline, state_dir=here / "s", bind=address) as server:
        assert other.finish(PATIENCE_S) == 0 and server.wait(PATIENCE_S)
        rows += [row for some in other.rows() for row in some]
    assert set(rows) == set(range(40)) and len(rows) <= 44


def test_exit_when_done_waits_for_those_who_have_not_heard_of_the_end(over_tcp, here):
    """One trainer's connection is cut and another is stopped while others finish the feed."""
    server, address = serve(here, "feeds.py:few", "--exit-when-done")
    proxy = proxy_of(address)
    one, two = (headrace.connect(address, prefetch=0, timeout=PATIENCE_S) for _ in range(2))
    rows = next(one)["i"].tolist() + next(two)["i"].tolist()
    with server, trainer(address, "--prefetch", "0", "--timeout", "60") as late:
        late.wait_for("joined")
        cut = headrace.connect(proxy.address, prefetch=0, timeout=PATIENCE_S)
        proxy.drop("down")
        late.signal(signal.SIGSTOP)
        one.close()
        assert list(two) == [] and sorted(rows) == list(range(8))
        two.close()
        with pytest.raises(queue.Empty):
            server.finish(0.5)
        proxy.heal()
        assert list(cut) == []
        cut.close()
        with pytest.raises(queue.Empty):
            server.finish(0.5)
        late.signal(signal.SIGCONT)
        assert late.finish() == 0 and server.finish() == 0
    proxy.close()
