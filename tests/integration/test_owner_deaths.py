"""An owner of feeds without states is killed amid its trainers' work: each row is done once."""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace
import headrace_server as hs
from headrace_server.journal.state_directory import StateDirectory
from headrace_server.server import crew
from tests.patience import PATIENCE_S

from .segment_streams import at_once
from .serving import connect, kill_worker, serving

_ROWS = 2400


def examples(n: int = _ROWS) -> hs.Pipeline:
    return hs.from_examples([{"i": i, "len": 1 + i * 13 % 40, "label": i % 3} for i in range(n)])


def stratified(rows: int = _ROWS) -> hs.Pipeline:
    return (
        examples(rows)
        .shuffle(3)
        .stratified_sample("label", [0.5, 0.3, 0.2], batch_size=4, init_probs=[1 / 3] * 3)
    )


PIPELINES: dict[str, Callable[[], hs.Pipeline]] = {
    "plain": lambda: examples().shuffle(3).batch(4),
    "buckets": lambda: examples().shuffle(3).bucket_by_sequence_length("len", 4, [10, 20, 30]),
    "stratified": stratified,
    "stream": lambda: hs.from_function(
        "tests.integration.user_functions:numbered", _ROWS, 4, features={"i": hs.scalar("int64")}
    ).batch(4),
}


class Owner:
    """A server whose owner is killed whenever its trainers have done enough."""

    def __init__(self, server: hs.Server) -> None:
        self.server = server
        self._lock = threading.Lock()
        self.done: list[Any] = []
        self._kill_at = [100, 220, 340]

    def did(self, what: Any) -> None:
        """Note that a trainer has finished a batch."""
        with self._lock:
            self.done.append(what)
            if self._kill_at and len(self.done) >= self._kill_at[0]:
                del self._kill_at[0]
                kill_worker(self.server, life=2 - len(self._kill_at))

    @property
    def was_killed(self) -> bool:
        """Whether the owner has died as often as it should."""
        return not self._kill_at


def undisturbed(pipeline: hs.Pipeline, partitions: int) -> Counter[int]:
    with serving(pipeline, partitions=partitions) as server:
        with connect(server) as feed:
            return Counter(i for batch in feed for i in batch["i"].tolist())


@pytest.mark.parametrize(
    ("kind", "durable"),
    [*((kind, False) for kind in PIPELINES), ("plain", True), ("stratified", True)],
)
def test_every_row_is_done_once_whenever_the_owner_is_killed(
    kind: str, durable: bool, tmp_path: Path
):
    """Of three trainers one commits explicitly, and another has few batches in hand."""
    pipeline = PIPELINES[kind]()
    partitions = 1 if kind == "stream" else 2
    wanted = undisturbed(pipeline, partitions)
    options: dict[str, Any] = {"state_dir": tmp_path / "state"} if durable else {}
    with hs.run(pipeline, partitions=partitions, **options) as server:
        owner = Owner(server)

        def train(**about: Any) -> None:
            with connect(server, **about) as feed:
                for batch in feed:
                    rows = batch["i"].tolist()
                    if "commit" in about:
                        feed.commit(batch)
                    owner.did(rows)

        at_once(
            [
                lambda: train(prefetch=0),
                lambda: train(prefetch=5),
                lambda: train(prefetch=2, commit="explicit"),
            ]
        )
        assert owner.was_killed
        assert server.wait(PATIENCE_S)
        assert server.stats()["default"]["batches"] == len(owner.done)
    assert Counter(i for rows in owner.done for i in rows) == wanted


def test_a_feed_with_a_changed_target_is_the_same_one_after_deaths_of_its_owner():
    """The target is changed amid the feed, and the owner killed soon after and later."""
    pipeline = stratified(6000)

    def stream(kill_at: tuple[int, ...]) -> tuple[list[list[int]], dict[int, int], Any]:
        got, since = [], dict[int, int]()
        with hs.run(pipeline) as server:
            with connect(server, prefetch=0) as feed:
                for batch in feed:
                    got.append(batch["i"].tolist())
                    if len(got) == 100:
                        since = feed.set_target_probs([0.1, 0.2, 0.7])
                    if len(got) in kill_at:
                        kill_worker(server, life=kill_at.index(len(got)))
                classes = server.stats()["default"]["classes"]
        return got, since, classes

    got, since, classes = stream((100, 110, 300))
    rows = [i for one in got for i in one]
    assert len(rows) == len(set(rows))
    (first,) = since.values()
    assert [change[0] for change in classes["changes"][0]] == [0, first]
    late = Counter(i % 3 for one in got[first + 20 :] for i in one)
    assert late[2] > late[0] + late[1]


def test_a_feed_that_has_ended_is_over_for_the_next_owner_too():
    with hs.run({"short": examples(8).batch(4), "long": examples(40).batch(4)}) as server:
        with headrace.connect(server.address, feed="short", timeout=PATIENCE_S) as feed:
            assert len(list(feed)) == 2
        with headrace.connect(server.address, feed="long", timeout=PATIENCE_S) as feed:
            next(feed)
            kill_worker(server)
            assert sum(1 for _ in feed) == 9
        with headrace.connect(server.address, feed="short", timeout=PATIENCE_S) as feed:
            assert list(feed) == []
        assert server.wait(PATIENCE_S)
        assert {name: told["batches"] for name, told in server.stats().items()} == {
            "short": 2,
            "long": 10,
        }


def test_a_server_counts_what_was_committed_since_its_start_also_after_the_death_of_its_owner(
    tmp_path: Path,
):
    for batches, killed in ((3, False), (7, True)):
        with (
            hs.run(examples(40).batch(4), state_dir=tmp_path) as server,
            connect(server, commit="explicit") as feed,
        ):
            for step in range(batches):
                next(feed).commit()
                if killed and step == 4:
                    kill_worker(server)
            told = server.stats()["default"]
            assert (told["batches"], told["rows"]) == (batches, 4 * batches)


def test_a_snapshot_of_a_feed_in_memory_is_refused_without_a_word_before():
    """It recovers from the death of its owner, but nothing of it outlives the server."""
    with hs.run(examples().batch(4)) as server:
        with connect(server) as feed:
            next(feed)
            with pytest.raises(headrace.ServerError, match="has no state directory"):
                feed.snapshot()


@pytest.mark.parametrize("full", [3, 1000], ids=["for a while", "to the end"])
def test_an_owner_that_dies_while_the_disk_is_full_goes_on_when_there_is_room(
    full: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The full disk can not store its term; this does not use up the owner's restarts."""
    raise_term, tried = StateDirectory.raise_term, threading.Semaphore(0)
    refusals = [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) for _ in range(full)]

    def raised(state: StateDirectory, *more: int) -> int:
        tried.release()
        if refusals:
            raise refusals.pop()
        return raise_term(state, *more)

    monkeypatch.setattr(crew, "_RETRY_S", 0.05)
    with hs.run(examples(400).batch(4), state_dir=tmp_path, partitions=2, workers=2) as server:
        monkeypatch.setattr(StateDirectory, "raise_term", raised)
        with connect(server) as feed:
            rows = next(feed)["i"].tolist()
            kill_worker(server, 1)
            for _ in range(4):
                assert tried.acquire(timeout=PATIENCE_S)
            if full > 3:
                server.check()
                return
            for batch in feed:
                rows += batch["i"].tolist()
        assert sorted(rows) == list(range(400)) and not refusals
