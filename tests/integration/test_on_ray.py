"""Servers of ``hs.on_ray`` in one process, with a stand-in for Ray: nothing is lost with a node.

To lose a server, the stand-in starts another one on a node without its files.  test_ray.py does the
same with Ray's own processes.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

import headrace
import headrace_server as hs
from headrace.connection import finding
from headrace_server.journal.state_directory import term_by_clock
from headrace_server.process.child import Child
from tests.patience import PATIENCE_S, eventually

from .ray_stand_in import Handle, RayStandIn, ray_stand_in

_LESS = {"partitions": 4, "insecure": True}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[RayStandIn]:
    with ray_stand_in(monkeypatch) as cluster:
        # With "from … import" it would be the module of the test before, which the package has.
        share_server = importlib.import_module("headrace_server.server.share_server")
        monkeypatch.setattr(share_server, "_BEAT_S", 0.02)
        monkeypatch.setattr(finding, "_ASK_S", 0.05)
        yield cluster


def numbers(count: int = 48) -> hs.Pipeline:
    return hs.from_examples([{"x": i} for i in range(count)]).shuffle(seed=7).batch(2)


def lose(server: Handle) -> None:
    """Lose a server with its node; Ray starts it on another one."""
    with mock.patch.object(Child, "order", lambda child, **order: child.kill()):
        server.object.close()
    last = term_by_clock() + 2  # the least term of the next start: Ray takes longer than that
    eventually(lambda: term_by_clock() > last)
    server.start()


def connect(address: str, **options: Any) -> headrace.Feed:
    return headrace.connect(address, timeout=PATIENCE_S, **options)


def test_a_trainer_gets_the_stream_of_one_server(cluster):
    with hs.run(numbers(), partitions=4) as one, connect(one.address) as feed:
        whole = [batch["x"].tolist() for batch in feed]
    with hs.on_ray({"numbers": numbers()}, servers=2, **_LESS) as servers:
        assert servers.address == "ray://numbers"
        with connect(servers.address) as feed:
            assert [batch["x"].tolist() for batch in feed] == whole
        stats = servers.stats()["numbers"]
        assert (stats["rows"], sorted(stats["servers"])) == (48, [0, 1])
        assert [one["partition"] for one in stats["partitions"]] == [0, 1, 2, 3]
        assert servers.drain(PATIENCE_S)
    assert "closed" in repr(servers)


def test_a_feed_goes_on_exactly_from_a_state_directory_that_all_nodes_share(
    cluster, tmp_path, caplog
):
    chance = random.Random(1)
    losses = {chance.randrange(20): chance.randrange(2) for _ in range(3)}
    rows: list[int] = []
    with (
        hs.on_ray({"numbers": numbers()}, servers=2, state_dir=tmp_path, **_LESS) as servers,
        connect(servers.address, commit="explicit") as feed,
    ):
        for taken, batch in enumerate(feed):
            rows += batch["x"].tolist()
            batch.commit()
            if taken in losses:
                lose(cluster.servers[losses[taken]])
    assert sorted(rows) == list(range(48))
    assert "a lost node costs" not in caplog.text


def take(feed: headrace.Feed, count: int, rows: list[int] | None = None) -> list[int]:
    rows = [] if rows is None else rows
    for _ in range(count):
        batch = next(feed)
        rows += batch["x"].tolist()
        batch.commit()
    return rows


@pytest.mark.parametrize("back", ["all", "lost"])
def test_the_partitions_of_a_lost_node_go_back_to_the_last_snapshot(cluster, tmp_path, back):
    """A trainer takes all others back to it, too, by the token; or these go on where they are."""
    url = str(tmp_path / "snapshots")
    with hs.on_ray({"numbers": numbers()}, servers=2, snapshots=url, **_LESS) as servers:
        with connect(servers.address, commit="explicit", prefetch=0) as feed:
            before = take(feed, 6)
            token = feed.snapshot()
            since = take(feed, 6)
            lose(cluster.servers[1])
            with pytest.raises(headrace.FeedRewound):
                take(feed, 99, since)
        with connect(servers.address, resume=token if back == "all" else None) as feed:
            rest = [x for batch in feed for x in batch["x"].tolist()]
    assert {*before, *rest} | {*since} == {*range(48)} and not {*before} & {*rest}
    assert len(rest) == len({*rest})
    again = {*since} & {*rest}
    assert again == {*since} if back == "all" else len(again) == 6


def test_without_snapshots_the_partitions_of_a_lost_node_begin_anew_and_a_warning_says_so(
    cluster, caplog
):
    with hs.on_ray({"numbers": numbers()}, servers=2, **_LESS) as servers:
        assert caplog.text.count("a lost node costs the state of its partitions") == 1
        with connect(servers.address, commit="explicit", prefetch=0) as feed:
            before = take(feed, 8)
            lose(cluster.servers[1])
            with pytest.raises(headrace.FeedRewound):
                take(feed, 99, before)
        assert "share 1: its state went with its node; its part of feed 'numbers' begins anew" in (
            caplog.text
        )
        with connect(servers.address) as feed:
            rest = [x for batch in feed for x in batch["x"].tolist()]
    assert {*before, *rest} == {*range(48)}
    assert len({*before} & {*rest}) == 8  # of the lost two of four partitions


def test_a_feed_that_is_served_already_is_refused(cluster):
    with hs.on_ray({"numbers": numbers()}, servers=1, **_LESS):
        with pytest.raises(ValueError, match=r"another hs\.on_ray serves feed 'numbers'"):
            hs.on_ray({"others": numbers(), "numbers": numbers()}, servers=1, **_LESS)


def test_servers_that_are_not_there_are_waited_for_and_named(cluster):
    with pytest.raises(headrace.ConnectionLost, match=r"'speech' on this Ray.*no hs.on_ray serves"):
        headrace.connect("ray://speech", timeout=0.1)


def test_trainers_have_the_keys_of_their_servers(cluster, monkeypatch):
    """1. They are those of the cluster, whatever the environment says of other servers' keys.
    2. Other keys are refused, and so is a trainer without any.
    """
    options = {**_LESS, "insecure": False}
    with hs.on_ray({"numbers": numbers()}, servers=2, **options) as servers:
        with monkeypatch.context() as patch:
            patch.setenv("HEADRACE_KEYS", "/no/such/keys")
            with connect(servers.address) as feed:
                assert sum(batch.rows for batch in feed) == 48
        with pytest.raises(ValueError, match=r"keys= and address='ray://numbers': servers on Ray"):
            connect(servers.address, keys="keys")
        address = cluster.servers[0].object.started()
        with pytest.raises(headrace.NotAllowed, match="asks for keys"):
            headrace.connect([address, cluster.servers[1].object.started()])
