"""A fault in one feed ends this feed, and no other of its worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import headrace_server as hs
from headrace_proto.messages import Handed
from headrace_server.core.dispatch_effects import Claim
from headrace_server.files.manifest import resolve
from headrace_server.process.config import FeedConfig, RunConfig
from headrace_server.process.worker_diary import Diary, DiaryFile
from headrace_server.worker.desk import Desk
from headrace_server.worker.partition_opening import Life
from headrace_server.worker.partitions import Partitions


def test_a_read_that_fails_while_a_claim_is_judged_ends_its_feed(tmp_path: Path):
    """The claimed example has to be read first, and the source has become unreadable."""
    empty = hs.from_examples(
        [{"k": b"a", "x": np.zeros((0, 2), np.float32)}],
        {"k": hs.scalar("bytes"), "x": hs.sequence("float32", (2,))},
    ).batch_sequences_with_states("k", ["x"], [], None, {"s": hs.zeros((1,), "float32")}, 2, 1)
    declaration = empty.declaration()
    feed = FeedConfig("f", declaration, resolve(declaration.source.paths), 1)
    config = RunConfig((feed,), str(tmp_path), ())
    sent: list[Any] = []
    life = Life(
        config=config,
        worker=0,
        number=0,
        diary=Diary(DiaryFile(tmp_path / "diary").path),
        marks={},
        passed=lambda feed, rows: None,
        functions=lambda feed, functions: None,
    )
    partitions = Partitions(life, sent.append)
    partitions.open("f", 0)
    assert [event[1] for event in sent] == [Desk.on_opened]
    partitions.claim("f", Claim(0, Handed(5, 0, 3, 1, bytes(12))))
    feed_of, call, code, text = sent[-1]
    assert (feed_of, call, code) == ("f", Desk.fail, "data") and "has no steps" in text
    assert partitions.turn() is None
    partitions.end()
