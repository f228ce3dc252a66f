"""Generators that write their rows slowly: what is there is handed out, and a wait is no hang."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
import headrace_server as hs
from tests.waiting import waits_end_with

from .serving import connect, drained, kill_worker

ROWS = 600
FEATURES = {"i": hs.scalar("int64")}


def on_word(words: str, n: int) -> Iterator[dict[str, Any]]:
    """Yield row i once there is a file named i."""
    for i in range(n):
        while not Path(words, str(i)).exists():
            time.sleep(0.005)
        yield {"i": i}


def paced(seed: int, pauses: int) -> Iterator[dict[str, Any]]:
    """Yield rows, with short pauses at random."""
    draws = random.Random(seed)
    after = {draws.randrange(ROWS) for _ in range(pauses)}
    for i in range(ROWS):
        yield {"i": i}
        if i in after:
            time.sleep(0.07)


def queued(counter: str) -> Iterator[dict[str, Any]]:
    """Yield each example once, in whatever call, as a queue does."""
    while True:
        taken = int(Path(counter).read_text())
        part = Path(f"{counter}.part")
        part.write_text(str(taken + 1))
        part.replace(counter)  # whole, whenever the worker is killed
        yield {"i": taken}


def slower_later(seen: str, n: int) -> Iterator[dict[str, Any]]:
    """Yield the same rows in every call, slowly in all calls but the first."""
    again = Path(seen).exists()
    Path(seen).touch()
    for i in range(n):
        if again:
            time.sleep(0.01)
        yield {"i": i, "x": [float(i)] * 3}


def pausing() -> Iterator[dict[str, Any]]:
    yield {"i": 0}
    time.sleep(3)
    yield {"i": 1}


@pytest.mark.parametrize("partitions", [1, 2])
def test_rows_of_a_generator_are_handed_out_as_they_come(tmp_path, partitions):
    """The next row is written once the trainer has the one before it."""
    n = 8
    source = hs.from_function(on_word, str(tmp_path), n, features=FEATURES)
    got = []
    with hs.run(source.batch(1), partitions=partitions) as server, connect(server) as feed:
        for i in range(n):
            for row in range(i + partitions):  # each partition looks at one row in two
                (tmp_path / str(row)).touch()
            got += next(feed)["i"].tolist()
        assert next(feed, None) is None
    assert got == list(range(n))


def test_a_wait_for_a_source_is_told_as_such_and_is_no_hang(tmp_path):
    pipelines = {
        "silent": hs.from_function(on_word, str(tmp_path), 1, features=FEATURES).batch(1),
        "pausing": hs.from_function(pausing, features=FEATURES).batch(1),
    }
    with hs.run(pipelines, worker_timeout_s=2) as server:
        text = r"it waits for its source tests.integration.test_generators:on_word"
        with connect(server, feed="silent") as feed, waits_end_with(text):
            with pytest.raises(headrace.DeadlineExceeded, match=text):
                next(feed)
        assert [batch["i"].tolist() for batch in drained(server, "pausing")] == [[0], [1]]
        assert "worker-0-0" in server.pids


def in_segments(source: hs.Pipeline) -> hs.Pipeline:
    return source.batch_sequences_with_states(
        "i", ["x"], [], initial_states={}, num_unroll=2, batch_size=4, order="lanes"
    )


def test_a_queue_is_refused_where_its_examples_were_lost_before(tmp_path):
    """The examples that the next worker would throw away are others than those read before."""
    counter = tmp_path / "counter"
    counter.write_text("0")
    source = hs.from_function(queued, str(counter), features=FEATURES)
    with hs.run(source.batch(8)) as server, connect(server) as feed:
        for _ in range(50):
            next(feed)
        kill_worker(server)
        text = "queued was called again, .* gives other examples than before: its first .*to files"
        with pytest.raises(headrace.DataError, match=text):
            for _ in feed:
                pass


@pytest.mark.parametrize("shaped", [lambda source: source.batch(4), in_segments])
def test_a_slow_replay_is_told_as_such(tmp_path, shaped):
    features = {**FEATURES, "x": hs.sequence("float32")}
    source = hs.from_function(slower_later, str(tmp_path / "seen"), 3000, features=features)
    with hs.run(shaped(source), workers=1) as server, connect(server) as feed:
        for _ in range(300):
            next(feed)
        kill_worker(server)
        text = r"worker 0 has been in `slower_later` for .*, replaying [\d,]+ of [\d,]+ examples"
        with waits_end_with(text), pytest.raises(headrace.DeadlineExceeded, match=text):
            for _ in feed:
                pass


@pytest.mark.parametrize(
    "shaped",
    [
        lambda source: source.shuffle(seed=3, window=50).batch(7, allow_smaller_final_batch=True),
        lambda source: source.repeat(2).bucket(
            lambda row: row["i"] % 3, 5, num_buckets=3, allow_smaller_final_batch=True
        ),
    ],
    ids=["windows", "buckets"],
)
def test_batches_do_not_depend_on_when_rows_come(shaped):
    """A feed that pauses, and whose worker is killed, gives the batches of one that does not."""

    def served(pauses: int, kill_after: int) -> list[tuple[int, list[int]]]:
        source = hs.from_function(paced, 1, pauses, features=FEATURES)
        got = []
        with hs.run(shaped(source)) as server, connect(server) as feed:
            for batch in feed:
                got.append((batch.number, batch["i"].tolist()))
                if len(got) == kill_after:
                    kill_worker(server)
        return got

    quick = served(0, 0)
    assert served(12, 20) == quick
