"""One feed on several servers: one stream, nothing lost or twice, servers that go and return."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
import headrace_server as hs
from headrace.connection.batch_memory import Attachment
from tests.patience import PATIENCE_S

from .segment_streams import Ledger, chained, of_counts, train
from .serving import greeted, kill_all

_SERVERS = 2


def numbers(count: int = 120) -> hs.Pipeline:
    return hs.from_examples([{"i": k} for k in range(count)]).shuffle(seed=3).batch(4)


@contextlib.contextmanager
def shared(
    pipeline: Any, servers: int = _SERVERS, state: Path | None = None, **options: Any
) -> Iterator[list[hs.Server]]:
    """Servers with a share each; ``state``: the directory of their state directories."""
    with contextlib.ExitStack() as running:
        options |= {"partitions": 5, "durability": state and "process"}
        yield [
            running.enter_context(
                hs.run(
                    pipeline,
                    share=(index, servers),
                    state_dir=state and state / f"{index}-of-{servers}",
                    **options,
                )
            )
            for index in range(servers)
        ]


def connect(servers: list[hs.Server], **options: Any) -> headrace.Feed:
    options.setdefault("timeout", PATIENCE_S)
    return headrace.connect([server.address for server in servers], **options)


def rows(feed: headrace.Feed) -> list[int]:
    return [i for batch in feed for i in batch["i"].tolist()]


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(of_counts([1 + i % 5 for i in range(60)]))


def test_a_drain_and_other_proportions_reach_all_servers():
    examples = [{"c": k % 2, "k": k} for k in range(400)]
    pipeline = (
        hs.from_examples(examples)
        .repeat()
        .stratified_sample("c", [0.5, 0.5], 4, init_probs=[0.5, 0.5], seed=1)
    )
    with shared(pipeline) as servers, connect(servers) as feed:
        next(feed)
        since = feed.set_target_probs([1.0, 0.0])
        assert sorted(since) == [0, 1, 2, 3, 4]
        feed.drain()
        last = {batch.partition: batch["c"].tolist() for batch in feed}
        assert set(last) <= set(range(5))
        assert all(server.wait(PATIENCE_S) for server in servers)


def test_a_name_that_stands_for_several_addresses_is_all_servers(monkeypatch):
    """The second server is started when the trainer waits for it already."""
    real, looks = socket.getaddrinfo, []
    with contextlib.ExitStack() as running:
        options = {"partitions": 5}
        one = running.enter_context(hs.run(numbers(), share=(0, 2), **options))
        port = one.address.rpartition(":")[2]

        def looked_up(host: str, *rest: Any) -> Any:
            looks.append(host)
            found = real("127.0.0.1", *rest)
            if len(looks) > 1:
                if len(looks) == 2:
                    bind = f"tcp://127.0.0.2:{port}"
                    running.enter_context(hs.run(numbers(), share=(1, 2), bind=bind, **options))
                found += real("127.0.0.2", *rest)
            return found

        monkeypatch.setattr("headrace.connection.places.sockets.getaddrinfo", looked_up)
        monkeypatch.setattr("headrace.connection.finding._LOOK_UP_S", 0.05)
        with headrace.connect(f"tcp://localhost:{port}", timeout=PATIENCE_S) as feed:
            assert sorted(rows(feed)) == list(range(120))


def test_a_snapshot_goes_on_at_another_number_of_servers(tmp_path, ledger):
    """Where it was taken, too."""
    pipeline = chained(ledger.examples, batch_size=3)
    far = {"snapshots": str(tmp_path / "far")}
    with (
        shared(pipeline, 3, tmp_path / "state", **far) as servers,
        connect(servers, prefetch=0) as feed,
    ):
        train(feed, ledger, 9)
        token = feed.snapshot()
        before, at = list(ledger.seen), len(ledger.batches)
        train(feed, ledger, 5)
        ledger.seen[:], ledger.batches[at:] = before, []
        feed.load_state_dict(token)
        train(feed, ledger)
        ledger.assert_complete()
        rest = ledger.batches[at:]
    ledger.seen[:], at = before, len(ledger.batches)
    with shared(pipeline, 2, tmp_path / "state", **far, resume=token) as servers:
        with connect(servers, prefetch=0, resume=token) as feed:
            train(feed, ledger)
    ledger.assert_complete()
    assert sorted(ledger.batches[at:]) == sorted(rest)


def test_in_any_order_a_trainer_goes_on_with_the_servers_that_are_there(tmp_path, ledger):
    def start(index: int) -> hs.Server:
        return hs.run(
            chained(ledger.examples, batch_size=3),
            share=(index, _SERVERS),
            partitions=5,
            bind=f"ipc://{tmp_path}/{index}.feed",
            state_dir=tmp_path / str(index),
            durability="process",
        )

    with start(0) as first, start(1) as second:
        with connect([first, second], prefetch=0, order="any") as feed:
            train(feed, ledger, 5)
            kill_all(second)
            second.close()
            assert train(feed, ledger, 8) == 8 and "the server is away" in repr(feed)
            with start(1):
                train(feed, ledger)
    ledger.assert_complete()


def hosts_apart(monkeypatch: pytest.MonkeyPatch, servers: list[hs.Server], here: int) -> None:
    """Let trainers that connect from now on see the memory of one of these servers only."""
    with greeted(servers[here], share=here, shares=_SERVERS) as welcome:
        near = welcome.directory

    def attach(directory: str, session_file: str) -> Any:
        if directory != near:
            raise FileNotFoundError(session_file)
        return Attachment(directory, session_file)

    monkeypatch.setattr("headrace.connection.connection.Attachment", attach)


def sent(server: hs.Server) -> tuple[int, int]:
    """Return how many batches a server sent through shared memory, and over the network."""
    counts = server.stats()["default"]["sent"]
    assert [bool(counts["bytes"][way]) for way in ("shm", "wire")] == [
        bool(counts["batches"][way]) for way in ("shm", "wire")
    ]
    return counts["batches"]["shm"], counts["batches"]["wire"]


def test_the_share_of_a_trainers_own_host_comes_through_shared_memory(monkeypatch):
    with hs.run(numbers(), partitions=5) as server:
        with headrace.connect(server.address, timeout=PATIENCE_S) as feed:
            wanted = rows(feed)
    with shared(numbers()) as servers:
        hosts_apart(monkeypatch, servers, 1)
        with connect(servers) as feed:
            assert rows(feed) == wanted and not feed.local
            trainer = servers[1].stats()["default"]["trainers"][0]
            assert (trainer["batches"], trainer["wire_batches"]) == (12, 0)
        assert [sent(server) for server in servers] == [(0, 18), (12, 0)]
