"""Servers of ``hs.on_ray`` in one process, with a stand-in for Ray: nothing is lost with a node.

To lose a server, the stand-in starts another one on a node without its files.  test_ray.py does the
same with Ray's own processes.
"""

from __future__ import annotations

import importlib
import itertools
import os
import random
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import headrace
import headrace_server as hs
from headrace import driver
from headrace_server.journal.state_directory import term_by_clock
from headrace_server.process.child import Child
from tests.patience import PATIENCE_S, eventually

from .ray_stand_in import Call, Handle, RayStandIn, ray_stand_in

_LESS = {"partitions": 4, "insecure": True}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[RayStandIn]:
    with ray_stand_in(monkeypatch) as cluster:
        # With "from … import" it would be the module of the test before, which the package has.
        share_server = importlib.import_module("headrace_server.server.share_server")
        monkeypatch.setattr(share_server, "_BEAT_S", 0.02)
        monkeypatch.setattr(driver, "_ASK_S", 0.05)
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


def states(temporary: Path) -> list[Path]:
    """Return the state directories of servers, by node and share."""
    return [*temporary.glob(f"headrace-ray-{os.getuid()}/*/*/*-of-*")]


def connect(address: str, **options: Any) -> headrace.Feed:
    return headrace.connect(address, timeout=PATIENCE_S, **options)


def test_a_trainer_gets_the_stream_of_one_server(cluster: RayStandIn) -> None:
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


@pytest.mark.parametrize("seed", range(2))
def test_a_feed_goes_on_exactly_from_a_state_directory_that_all_nodes_share(
    cluster: RayStandIn, tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(seed)
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
def test_the_partitions_of_a_lost_node_go_back_to_the_last_snapshot(
    cluster: RayStandIn, tmp_path: Path, back: str
) -> None:
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
    cluster: RayStandIn, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_a_feed_that_is_served_already_is_refused(cluster: RayStandIn) -> None:
    with hs.on_ray({"numbers": numbers()}, servers=1, **_LESS):
        with pytest.raises(ValueError, match=r"another hs\.on_ray serves feed 'numbers'"):
            hs.on_ray({"others": numbers(), "numbers": numbers()}, servers=1, **_LESS)


def test_an_error_of_a_server_is_raised_where_it_was_started(cluster: RayStandIn) -> None:
    missing = hs.read_jsonl("no/such/file.jsonl").batch(2)
    with pytest.raises(headrace.FilesMissing, match=r"no/such/file\.jsonl"):
        hs.on_ray({"numbers": missing}, servers=2, **_LESS)
    assert not cluster.named


def test_servers_that_do_not_start_in_time_are_named_and_leave_nothing(
    cluster: RayStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray: Any = sys.modules["ray"]
    groups: list[object] = []
    monkeypatch.setattr(ray.util, "remove_placement_group", groups.append)
    slow = ray.exceptions.GetTimeoutError()
    answer = Call.remote
    monkeypatch.setattr(
        Call, "remote", lambda self, *of: slow if self._name == "started" else answer(self, *of)
    )
    with pytest.raises(headrace.ServerError, match=r"start_timeout_s=120: not all 2 servers"):
        hs.on_ray({"numbers": numbers()}, servers=2, **_LESS)
    assert len(groups) == 1 and not cluster.named
    for server in cluster.servers:
        server.object.close()


def test_a_directory_that_can_not_start_leaves_no_placement_group(
    cluster: RayStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[object] = []
    monkeypatch.setattr(sys.modules["ray.util"], "remove_placement_group", groups.append)
    share_server = importlib.import_module("headrace_server.server.share_server")
    monkeypatch.setattr(share_server, "Directory", None)  # as where another actor has its name
    with pytest.raises(TypeError):
        hs.on_ray({"numbers": numbers()}, servers=2, **_LESS)
    assert len(groups) == 1


def test_an_actor_beside_which_servers_should_run_and_that_is_silent_is_named(
    cluster: RayStandIn,
) -> None:
    ray: Any = sys.modules["ray"]
    silent = types.SimpleNamespace(remote=lambda _: ray.exceptions.GetTimeoutError())
    actor = types.SimpleNamespace(__ray_call__=silent)
    with pytest.raises(headrace.ServerError, match=r"actor namespace.* of beside= does not answer"):
        hs.on_ray({"numbers": numbers()}, servers=2, beside=[actor], **_LESS)


def test_servers_of_one_node_remove_their_own_state_alone(
    cluster: RayStandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cluster.nodes = itertools.repeat(0)  # type: ignore[assignment]
    with hs.on_ray({"numbers": numbers()}, servers=2, state_dir=None, **_LESS):
        assert {state.name for state in states(tmp_path)} == {"0-of-2", "1-of-2"}
        cluster.servers[0].object.close()
        assert [state.name for state in states(tmp_path)] == ["1-of-2"]
    assert not any(tmp_path.glob("headrace-ray-*/*"))


@pytest.mark.parametrize("other", ["open", "file", "link", "owner"])
def test_states_lie_in_a_directory_of_this_user_alone(
    cluster: RayStandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, other: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = tmp_path / f"headrace-ray-{os.getuid()}"
    if other == "link":
        place.symlink_to(tmp_path / "elsewhere")
        (tmp_path / "elsewhere").mkdir(mode=0o700)
    elif other == "file":
        place.touch(mode=0o700)
    else:
        place.mkdir(mode=0o755 if other == "open" else 0o700)
    if other == "owner":
        another = os.getuid() + 1
        monkeypatch.setattr(os, "getuid", lambda: another)
        place.rename(place.with_name(f"headrace-ray-{os.getuid()}"))
    with pytest.raises(headrace.ServerError, match=r"headrace-ray-\d+ has mode .* and owner \d+;"):
        hs.on_ray({"numbers": numbers()}, servers=1, **_LESS)
    if other == "open":
        place.chmod(0o700)
        with hs.on_ray({"numbers": numbers()}, servers=1, **_LESS):
            assert len(states(tmp_path)) == len([*place.iterdir()]) == 1


def test_servers_that_are_not_there_are_waited_for_and_named(cluster: RayStandIn) -> None:
    with pytest.raises(headrace.ConnectionLost, match=r"'speech' on this Ray.*no hs.on_ray serves"):
        headrace.connect("ray://speech", timeout=0.1)


@pytest.mark.parametrize("given", ["name", "handle"])
def test_servers_run_beside_actors_that_are_named(cluster: RayStandIn, given: str) -> None:
    class Trainer:
        pass

    trainers: list[Any] = []
    for number in range(2):
        cluster.remote(Trainer).options(name=f"t{number}", namespace="").remote()
        trainers.append(f"t{number}" if given == "name" else cluster.named["", f"t{number}"])
    with hs.on_ray({"numbers": numbers()}, servers=3, beside=trainers, **_LESS):
        assert cluster.affinities[:3] == ["node0", "node1", "node0"]


def test_without_ray_an_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "headrace.ray", raising=False)
    with pytest.raises(ImportError, match=r"hs\.on_ray needs ray .*pip install '\.\[ray\]'"):
        hs.on_ray({"numbers": numbers()}, servers=2)
    with pytest.raises(ImportError, match=r"ray://FEED needs Ray: pip install ray"):
        headrace.connect("ray://numbers")


def test_trainers_have_the_keys_of_their_servers(
    cluster: RayStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"servers": 0}, ValueError, "servers=0 does not lie in 1 … 4096"),
        ({"servers": 2.0}, TypeError, "servers=2.0 is not an integer"),
        ({"servers": 3, "partitions": 2}, ValueError, "partitions=2: each of the 3 servers owns"),
        ({"resources": {}}, TypeError, "resources={} is not like {'CPU': 4}"),
        ({"resources": {"CPU": -1}}, ValueError, "resources: 'CPU' has the amount -1"),
        ({"beside": "trainer"}, TypeError, "beside='trainer' is not a list of actors"),
        ({"runtime_env": "."}, TypeError, "runtime_env='.' is not a dict"),
        ({"insecure": 1}, TypeError, "insecure=1 is not true or false"),
        ({"bind": "tcp://0.0.0.0:1"}, TypeError, "sets bind of each server itself"),
        ({"share": (0, 2)}, TypeError, "sets share of each server itself"),
        ({"durability": "off"}, ValueError, "durability='off'"),
        ({"workers": -1}, ValueError, "workers=-1"),
        ({"workers": "2"}, TypeError, "workers='2'"),
        ({"nonsense": 1}, TypeError, "nonsense"),
        ({"pipelines": {"a b": None}}, ValueError, "feed name 'a b'"),
    ],
)
def test_an_argument_that_can_not_be_is_refused_before_ray_is_loaded(arguments, kind, text) -> None:
    given = {"pipelines": numbers(), "servers": 2} | arguments
    with pytest.raises(kind, match=text):
        hs.on_ray(given.pop("pipelines"), **given)
