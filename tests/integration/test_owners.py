"""Workers own feeds: each serves trainers itself, also those of other hosts, and one dies alone."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import headrace
import headrace_server as hs
from tests.patience import PATIENCE_S, eventually
from tests.waiting import waits_end_with

from .segment_streams import Ledger, cells_of, chained, of_counts, save_all, train
from .serving import connect, in_segments, kill_worker, trainers_of
from .test_watching import inspected


def gated(place: Path, function: str = "passes_the_gate") -> hs.Pipeline:
    """A feed whose function waits at its sixth example until the gate is opened."""
    examples = [
        {"key": f"k{n}", "x": [1.0, 2.0, 3.0], "n": n, "place": str(place)} for n in range(9)
    ]
    source = hs.from_examples(
        examples,
        {
            "key": hs.scalar("string"),
            "x": hs.sequence("float32"),
            "n": hs.scalar("int64"),
            "place": hs.scalar("string"),
        },
    )
    source = source.filter(f"tests.integration.user_functions_hang:{function}")
    return in_segments(source, batch_size=3)


def started(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def trained(feed: headrace.Feed) -> int:
    """Train to the end; return the number of segments."""
    segments = 0
    for batch in feed:
        segments += batch.rows
        batch.save_state("s", batch.state("s"))
    return segments


def test_trainers_and_the_supervisor_are_answered_while_a_function_takes_long(tmp_path):
    """1. A trainer waits for its first batch, and a function for the gate.
    2. The server tells how it is, and lets another trainer in.
    3. The gate is opened, and both train to the end.
    """
    counts: list[int] = []
    with hs.run(gated(tmp_path)) as server, connect(server) as first:
        waiting = started(lambda: counts.append(trained(first)))
        eventually((tmp_path / "inside").exists)
        eventually(lambda: [t["local"] for t in trainers_of(server)] == [True])
        with connect(server) as second:
            assert second.local
            assert len(trainers_of(server)) == 2
            (tmp_path / "open").touch()
            counts.append(trained(second))
        waiting.join(PATIENCE_S)
        assert sum(counts) == 18


def test_a_deadline_names_the_function_in_which_a_worker_is(tmp_path):
    with hs.run(gated(tmp_path)) as server:
        with connect(server) as feed:
            waiting = started(lambda: trained(feed))
            eventually((tmp_path / "inside").exists)

            told = "worker 0 has been in `passes_the_gate` for "
            with connect(server) as late, waits_end_with(told):
                with pytest.raises(headrace.DeadlineExceeded, match=told):
                    next(late)
            (tmp_path / "open").touch()
            waiting.join(PATIENCE_S)


def test_a_deadline_names_a_function_that_lets_no_other_thread_run(tmp_path):
    """The worker can not answer, so the locator does."""

    def told(server: hs.Server) -> bool:
        try:
            with headrace.connect(server.address, timeout=2):
                return False
        except headrace.HeadraceError as error:
            return "worker 0 has been in `holds_the_interpreter` for " in str(error)

    with (tmp_path / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        counts: list[int] = []
        with hs.run(gated(tmp_path, "holds_the_interpreter")) as server, connect(server) as feed:
            waiting = started(lambda: counts.append(trained(feed)))
            try:
                eventually((tmp_path / "inside").exists)
                eventually(lambda: told(server))
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)
            waiting.join(PATIENCE_S)
            assert counts == [18]


def test_a_stop_does_not_wait_for_a_function_and_its_trainers_are_told(tmp_path):
    failures: list[Exception] = []

    def train_on(feed: headrace.Feed) -> None:
        try:
            trained(feed)
        except headrace.HeadraceError as error:
            failures.append(error)

    server = hs.run(gated(tmp_path))
    with server, connect(server) as feed:
        waiting = started(lambda: train_on(feed))
        eventually((tmp_path / "inside").exists)
        server.close()
        waiting.join(PATIENCE_S)
    assert [type(failure) for failure in failures] == [headrace.ConnectionLost]
    assert "the server was stopped" in str(failures[0])


def test_a_feed_whose_owner_dies_again_and_again_is_given_up_and_trainers_are_told(tmp_path):
    ledger = Ledger(of_counts([30] * 6))
    with hs.run(chained(ledger.examples), state_dir=tmp_path / "state") as server:
        with connect(server, prefetch=0) as feed:
            for life in range(4):
                batch = next(feed)
                kill_worker(server, life=life)
                save_all(batch, ledger.check(batch))
            with pytest.raises(headrace.ServerError, match="died 4 times within 60 s"):
                train(feed, ledger)
        with pytest.raises(headrace.ServerError, match="is given up"):
            server.wait(PATIENCE_S)


_OWNERS = 3


def run(ledger: Ledger, partitions: int = 4, **options: Any) -> hs.Server:
    return hs.run(
        chained(ledger.examples, batch_size=3), workers=_OWNERS, partitions=partitions, **options
    )


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(of_counts([1 + i % 5 for i in range(60)]))


def committed(server: hs.Server) -> int:
    """Return the number of commits that all trainers have answers to."""
    return sum(trainer["committed"] for trainer in server.stats()["default"]["trainers"])


def test_the_supervisor_gathers_what_owners_answer(ledger):
    with (
        run(ledger, http="127.0.0.1:0") as server,
        connect(server, prefetch=0) as one,
        connect(server) as two,
    ):
        train(one, ledger, 5)
        eventually(lambda: committed(server) == 5)  # their answers follow the commits
        told = server.stats()["default"]
        assert told["batches"] == 5
        assert [at["partition"] for at in told["partitions"]] == [0, 1, 2, 3]
        assert [at["worker"] for at in told["partitions"]] == [0, 1, 2, 0]
        assert len(told["trainers"]) == 2
        batch = next(one)
        for key, segment in cells_of(batch):
            found = [(at["where"], at["segment"]) for at in inspected(server, key)]
            assert found == [("leased", segment)]
        save_all(batch, ledger.check(batch))
        two.close()
        train(one, ledger)
    ledger.assert_complete()


@pytest.mark.parametrize("most", [5, 6])
def test_bad_examples_of_all_owners_count_against_one_bound(most):
    """Six examples are bad, two at each owner."""
    examples = [{"key": f"k{n}", "x": [1.0] * (n % 5)} for n in range(30)]
    source = hs.from_examples(
        examples, {"key": hs.scalar("string"), "x": hs.sequence("float32")}
    ).options(on_bad_example="skip", max_bad_examples=most)
    with hs.run(in_segments(source, batch_size=3), workers=_OWNERS, partitions=3) as server:
        if most == 6:
            with connect(server) as feed:
                trained(feed)
            assert server.wait(PATIENCE_S)
            assert sum(server.stats()["default"]["dropped"].values()) == 6
        else:  # the feed may fail before the trainer joins, or after its last batch
            with suppress(headrace.DataError), connect(server) as feed:
                trained(feed)
            assert server.wait(PATIENCE_S)
            assert "max_bad_examples=5" in server.failed_feeds()["default"]
