"""A worker that owns its feeds serves their trainers itself, also those of other hosts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

import headrace
import headrace_server as hs
from headrace_proto import limits
from headrace_proto.messages import (
    FROM_SERVER,
    FROM_TRAINER,
    Get,
    Give,
    Hello,
    Renew,
    Step,
    Unknown,
    Welcome,
)
from tests.located import workers_at
from tests.patience import PATIENCE_S, eventually
from tests.waiting import waits_end_with

from .segment_streams import Ledger, at_once, chained, of_counts, save_all, train
from .serving import connect, kill_worker, serving
from .test_locks import make_keys
from .test_near import list_of


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
    return source.filter(
        f"tests.integration.user_functions_hang:{function}"
    ).batch_sequences_with_states(
        input_key="key",
        input_sequences=["x"],
        input_context=[],
        initial_states={"s": hs.zeros((1,), "float32")},
        num_unroll=2,
        batch_size=3,
    )


def trainers_of(server: hs.Server) -> list[Any]:
    return list(server.stats()["default"]["trainers"])


def started(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@contextlib.contextmanager
def talking(server: hs.Server) -> Iterator[tuple[Callable[[Any], object], Callable[[Any], Any]]]:
    """Connect to a worker by ZeroMQ; yield how to send a message, and to await one of a kind."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.linger, peer.rcvtimeo = 0, int(1000 * PATIENCE_S)
        peer.connect(workers_at(server.address)[0])

        def heard(kind: Any, again: Any = None) -> Any:
            """``again``: a message that is sent again and again until its answer comes."""
            while again is not None and not peer.poll(500):
                peer.send(FROM_TRAINER.encode(again))
            while not isinstance(got := FROM_SERVER.decode(peer.recv_multipart()[0]), kind):
                pass
            return got

        yield lambda message: peer.send(FROM_TRAINER.encode(message)), heard


def trained(feed: headrace.Feed) -> int:
    """Train to the end; return the number of segments."""
    segments = 0
    for batch in feed:
        segments += batch.rows
        batch.save_state("s", batch.state("s"))
    return segments


def test_trainers_and_the_supervisor_are_answered_while_a_function_takes_long(tmp_path: Path):
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


def test_a_deadline_names_the_function_in_which_a_worker_is(tmp_path: Path):
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


def test_a_deadline_names_a_function_that_lets_no_other_thread_run(tmp_path: Path):
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


def test_a_stop_does_not_wait_for_a_function_and_its_trainers_are_told(tmp_path: Path):
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


@pytest.mark.parametrize("durable", [True, False])
def test_trainers_elsewhere_are_served_by_the_worker_itself(
    tmp_path: Path, over_tcp: None, durable: bool
):
    """With a state directory the owner is killed twice amid the loops of two trainers.

    Neither holds a batch that it does not train: the other may wait for its states.
    """
    ledger = Ledger(of_counts([1 + i % 5 for i in range(60)]))
    options: dict[str, Any] = {"state_dir": tmp_path / "state"} if durable else {}
    with hs.run(chained(list_of(ledger), batch_size=3), **options) as server:
        with connect(server, prefetch=0) as one, connect(server, prefetch=0) as two:
            assert not one.local and not two.local
            for life in range(2 if durable else 0):
                at_once([lambda f=f: train(f, ledger, 6) for f in (one, two)])
                kill_worker(server, life=life)
            at_once([lambda f=f: train(f, ledger) for f in (one, two)])
    ledger.assert_complete()


def test_who_has_a_key_is_let_in_as_long_as_the_key_is_known(tmp_path: Path, over_tcp: None):
    make_keys(tmp_path)
    ledger = Ledger(of_counts([30] * 6))
    with serving(chained(list_of(ledger)), keys=tmp_path / "server") as server:
        with connect(server, keys=tmp_path / "alice", prefetch=0) as feed:
            train(feed, ledger, 3)
            (tmp_path / "server" / "trainers" / "alice.public").unlink()
            eventually(lambda: not trainers_of(server))
            with pytest.raises(headrace.NotAllowed, match="no longer"):
                train(feed, ledger)
        assert server.access()["refused"]["revoked"] == 1
        with pytest.raises(headrace.NotAllowed):
            connect(server, keys=tmp_path / "bob")
        eventually(lambda: server.access()["refused"].get("unknown_key", 0) >= 1)


def test_a_greeting_that_is_sent_twice_to_the_next_life_of_an_owner_counts_nothing_of_the_last():
    """1. A trainer receives a batch, and its owner dies.
    2. It greets the next life, and again before the answer comes: both name the session before.
    3. It gets as many batches as it asks for.
    """
    pipeline = hs.from_examples([{"i": k} for k in range(40)]).batch(2)
    with hs.run(pipeline) as server:
        with talking(server) as (say, heard):
            nonce = os.urandom(8)
            say(Hello(limits.PROTOCOL, "t", "", nonce, 1))
            before = heard(Welcome)
            say(Step(before.session, gets=(Get(1, 0),)))
            (first,) = heard(Give).items
            kill_worker(server)
            heard(Unknown, again=Renew(before.session, 0))
            for connection, resumed in ((2, False), (3, True)):
                again = {"gets": (2, 0, 0), "known": before.session_file}
                say(Hello(limits.PROTOCOL, "t", "", nonce, connection, **again))
                now = heard(Welcome)
                assert now.resumed == resumed and now.session_file != before.session_file
                assert now.connection == connection
            say(Renew(now.session, 0))
            (second,) = heard(Give).items
            assert (second.request, second.number) == (2, first.number)


def test_a_feed_whose_owner_dies_again_and_again_is_given_up_and_trainers_are_told(tmp_path: Path):
    ledger = Ledger(of_counts([30] * 6))
    with hs.run(chained(list_of(ledger)), state_dir=tmp_path / "state") as server:
        with connect(server, prefetch=0) as feed:
            for life in range(4):
                batch = next(feed)
                kill_worker(server, life=life)
                save_all(batch, ledger.check(batch))
            with pytest.raises(headrace.ServerError, match="died 4 times within 60 s"):
                train(feed, ledger)
        with pytest.raises(headrace.ServerError, match="is given up"):
            server.wait(PATIENCE_S)
