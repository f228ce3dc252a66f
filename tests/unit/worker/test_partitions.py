"""The partitions of a worker at work, without the rest of the worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace_server as hs
from headrace_proto.messages import Handed
from headrace_server.core.dispatch_effects import Claim, Want
from headrace_server.files.manifest import resolve
from headrace_server.pipeline.declaration import Declaration
from headrace_server.process.config import FeedConfig, RunConfig
from headrace_server.process.worker_diary import Diary, DiaryFile
from headrace_server.reading.intake import Intake
from headrace_server.worker import partitions as working
from headrace_server.worker.desk import Desk
from headrace_server.worker.partition_opening import Life
from headrace_server.worker.partitions import Partitions
from tests.patience import PATIENCE_S


def opened(
    declaration: Declaration, directory: Path, life: int = 0
) -> tuple[Partitions, list[Any]]:
    """The only partition of a feed, and the events that it sends."""
    feed = FeedConfig("f", declaration, resolve(declaration.source.paths), 1)
    sent: list[Any] = []
    begun = Life(
        config=RunConfig((feed,), str(directory), ()),
        worker=0,
        number=life,
        diary=Diary(DiaryFile(directory / "diary").path),
        marks={"f": {"left_out": [], "suspects": []}},
    )
    partitions = Partitions(begun, sent.append)
    partitions.open("f", 0)
    assert [event[1] for event in sent] == [Desk.on_opened]
    return partitions, sent


@pytest.mark.parametrize(("order", "together"), [("lanes", [2, 1]), ("arrival", [1, 1, 1])])
def test_two_batches_of_lanes_are_announced_at_once_where_several_are_wanted(
    order: Any, together: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One message to their trainer, and one back, serve both."""
    monkeypatch.setattr("headrace_server.worker.partitions._GATHER_S", PATIENCE_S)
    examples = [{"k": b"%d" % i, "x": np.zeros((20, 2), np.float32)} for i in range(6)]
    features = {"k": hs.scalar("bytes"), "x": hs.sequence("float32", (2,))}
    pipeline = hs.from_examples(examples, features).batch_sequences_with_states(
        *("k", ["x"], [], None, {"s": hs.zeros((1,), "float32")}, 2, 2),
        order=order,
        state_placement="trainer" if order == "lanes" else "server",
    )
    partitions, sent = opened(pipeline.declaration(), tmp_path)
    partitions.want("f", Want(0, 3, 1 if order == "lanes" else 0))
    made: list[int] = []
    while sum(made) < 3:
        sent.clear()
        turn = partitions.turn()
        assert turn is not None
        partitions.work(turn)
        made.append(sum(event[1] is Desk.on_made for event in sent))
    assert [count for count in made if count] == together
    partitions.stores.close()


def test_a_read_that_fails_while_a_claim_is_judged_ends_its_feed(tmp_path: Path):
    """The claimed example has to be read first, and the source has become unreadable."""
    empty = hs.from_examples(
        [{"k": b"a", "x": np.zeros((0, 2), np.float32)}],
        {"k": hs.scalar("bytes"), "x": hs.sequence("float32", (2,))},
    ).batch_sequences_with_states("k", ["x"], [], None, {"s": hs.zeros((1,), "float32")}, 2, 1)
    partitions, sent = opened(empty.declaration(), tmp_path)
    partitions.claim("f", Claim(0, Handed(5, 0, 3, 1, bytes(12))))
    feed_of, call, code, text = sent[-1]
    assert (feed_of, call, code) == ("f", Desk.fail, "data") and "has no steps" in text
    assert partitions.turn() is None
    partitions.stores.close()


def test_the_place_of_a_close_that_waits_for_a_claimed_batch_is_stored_before_later_batches_go_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """1. A trainer holds batch 12 of an earlier life, and the feed is closed; 2. batches up to the
    last go out, and the life ends before any commit; 3. the next one, with larger reads, makes
    the same ones: a batch that a trainer claims of it has the same rows.
    """
    monkeypatch.setattr(Intake, "limit", lambda self, most: 64)
    examples = [{"i": i} for i in range(1000)]
    declaration = hs.from_examples(examples).batch(10).declaration()
    partitions, sent = opened(declaration, tmp_path)
    partitions.claim("f", Claim(0, Handed(5, 0, 12, 10, b"")))
    partitions.close("f", cancel=False)
    first = made(partitions, sent)
    assert 13 <= len(first) < 100
    monkeypatch.setattr(Intake, "limit", lambda self, most: 640)
    again, sent = opened(declaration, tmp_path, life=1)
    assert made(again, sent) == first
    partitions.stores.close()
    again.stores.close()


def made(partitions: Partitions, sent: list[Any]) -> list[tuple[int, int]]:
    """Let a partition make all batches that it can; return number and rows of each."""
    while (name := partitions.turn()) is not None:
        partitions.work(name)
    batches = [event[2] for event in sent if event[1] is Desk.on_made]
    return [(batch.number, batch.filled) for batch in batches]


def test_batches_gather_up_to_a_number_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of four batches of 8 kB two are as many bytes as may gather."""
    monkeypatch.setattr(working, "_GATHER_S", PATIENCE_S)
    monkeypatch.setattr(working, "_GATHER_BYTES", 16 << 10)
    rows = [{"x": np.full(1024, i, np.float32)} for i in range(8)]
    pipeline = hs.from_examples(rows, {"x": hs.fixed("float32", (1024,))}).batch(2)
    partitions, sent = opened(pipeline.declaration(), tmp_path)
    made = []
    for _ in range(20):
        before = len(sent)
        partitions.work(("f", 0))
        made.append(sum(event[1] is Desk.on_made for event in sent[before:]))
        if sum(made) == 4:
            break
    assert [count for count in made if count] == [2, 2]
    partitions.stores.close()


def test_an_endless_partition_that_ends_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Where stages drop every example, its trainers only see that their loops end."""
    rows = hs.from_examples([{"i": i} for i in range(4)]).repeat()
    partitions, sent = opened(rows.rejection_sample(0.0, 2).declaration(), tmp_path)
    assert made(partitions, sent) == []
    (text,) = caplog.messages
    assert text.startswith("partition 0 of feed 'f' ends: 1000 epochs in a row made no batch")
    partitions.stores.close()
