"""Servers of ``hs.on_ray`` in one process, with a stand-in for Ray: nothing is lost with a node.

To lose a server, the stand-in starts another one on a node without its files.  test_ray.py does the
same with Ray's own processes.
"""

from __future__ import annotations

import importlib
import itertools
import os
import random
import shutil
import sys
import tempfile
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import headrace
import headrace_server as hs
from headrace import address_lookup
from headrace_server.cluster.directory import Directory
from headrace_server.process.child import Child
from tests.patience import PATIENCE_S, eventually

from .ray_stand_in import Call, Handle, RayStandIn, ray_stand_in
from .serving import await_next_term

_LESS = {"workers": 0, "partitions": 4, "insecure": True}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[RayStandIn]:
    with ray_stand_in(monkeypatch) as cluster:
        # With "from … import" it would be the module of the test before, which the package has.
        share_server = importlib.import_module("headrace_server.cluster.share_server")
        monkeypatch.setattr(share_server, "_BEAT_S", 0.02)
        monkeypatch.setattr(address_lookup, "_ASK_S", 0.05)
        yield cluster


def numbers(count: int = 48) -> hs.Pipeline:
    return hs.from_examples([{"x": i} for i in range(count)]).shuffle(seed=7).batch(2)


def sums() -> hs.Pipeline:
    """Sequences whose state is the sum so far."""
    examples = [{"key": f"k{i}", "x": [i] * (1 + i % 5)} for i in range(12)]
    return hs.from_examples(
        examples, {"key": hs.scalar("string"), "x": hs.sequence("int64", ())}
    ).batch_sequences_with_states(
        input_key="key",
        input_sequences=["x"],
        input_context=[],
        input_length=None,
        initial_states={"sum": hs.zeros((), "int64")},
        num_unroll=1,
        batch_size=2,
        capacity=4,
        allow_small_batch=True,
    )


def lose(server: Handle) -> None:
    """Lose a server with its node; Ray starts it on another one."""
    with mock.patch.object(Child, "order", lambda child, **order: child.kill()):
        server.object.close()
    server.start()


def states(temporary: Path) -> list[Path]:
    """Return the state directories of servers, by node and share."""
    return [*temporary.glob(f"headrace-ray-{os.getuid()}/*/*/*-of-*")]


def connect(address: str, **options: Any) -> headrace.Feed:
    return headrace.connect(address, timeout=PATIENCE_S, **options)


def test_a_trainer_gets_the_stream_of_one_server(cluster: RayStandIn) -> None:
    with hs.run(numbers(), partitions=4, workers=0) as one, connect(one.address) as feed:
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
def test_a_feed_goes_on_exactly_whenever_a_node_is_lost(cluster: RayStandIn, seed: int) -> None:
    chance = random.Random(seed)
    losses = {chance.randrange(20): chance.randrange(2) for _ in range(3)}
    rows: list[int] = []
    with (
        hs.on_ray({"numbers": numbers()}, servers=2, **_LESS) as servers,
        connect(servers.address, commit="explicit") as feed,
    ):
        for taken, batch in enumerate(feed):
            rows += batch["x"].tolist()
            batch.commit()
            if taken in losses:
                lose(cluster.servers[losses[taken]])
    assert sorted(rows) == list(range(48))


def test_a_trainer_that_comes_after_the_loss_gets_only_what_is_not_committed(
    cluster: RayStandIn,
) -> None:
    with hs.on_ray({"numbers": numbers()}, servers=2, **_LESS) as servers:
        with connect(servers.address) as feed:
            rows = [x for _ in range(7) for x in next(feed)["x"].tolist()]
        for server in cluster.servers:
            lose(server)
        with connect(servers.address) as feed:
            rows += [x for batch in feed for x in batch["x"].tolist()]
    assert sorted(rows) == list(range(48))


def test_feeds_with_states_go_back_to_the_last_snapshot_of_all_servers(
    cluster: RayStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, reported = Directory.here, dict[str, str]()

    def noted(directory: Directory, *report: Any) -> Any:
        answer = here(directory, *report)
        reported.update(report[4])  # snapshots by feed
        return answer

    monkeypatch.setattr(Directory, "here", noted)
    with hs.on_ray(
        {"sums": sums()}, servers=2, snapshots=str(tmp_path / "snapshots"), **_LESS
    ) as servers:

        def step(feed: headrace.Feed) -> list[tuple[bytes, int]]:
            batch = next(feed)
            state = batch.state("sum")
            batch.save_state("sum", state + batch.sequences["x"][:, 0])
            return list(zip(batch.key, state.tolist(), strict=True))

        def rest(feed: headrace.Feed) -> list[list[tuple[bytes, int]]]:
            found = []
            while True:
                try:
                    found.append(step(feed))
                except StopIteration:
                    return found

        with connect(servers.address, prefetch=0) as feed:
            before = [step(feed) for _ in range(3)]
            feed.snapshot()
            eventually(lambda: "sums" in reported)
            step(feed)
            lose(cluster.servers[1])
            with pytest.raises(headrace.FeedRewound, match="was taken back to snapshot"):
                rest(feed)
        with connect(servers.address, prefetch=0) as feed:
            again = rest(feed)
        directory = cluster.named["headrace", "sums"]
        cluster.reconstructed = True
        directory.start()
        eventually(lambda: len(directory.object.addresses()[0]) == 2)
    seen = [(key.partition(b":")[2], state) for batch in before + again for key, state in batch]
    whole = [(b"k%d" % i, i * j) for i in range(12) for j in range(1 + i % 5)]
    assert sorted(seen) == sorted(whole)


def test_a_trainer_learns_that_an_older_state_directory_is_all_that_is_left(
    cluster: RayStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A server leaves its state on a node, and another goes on elsewhere from the mirror.
    2. That one and the directory are lost together, and the next one starts on the first node.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with (
        hs.on_ray({"numbers": numbers()}, servers=1, **_LESS) as servers,
        connect(servers.address, commit="explicit") as feed,
    ):
        (server,), directory = cluster.servers, cluster.named["headrace", "numbers"]
        (first,), node = states(tmp_path), int(server.node.removeprefix("node"))
        next(feed).commit()
        shutil.copytree(first, tmp_path / "left")
        lose(server)
        next(feed).commit()
        (second,) = states(tmp_path)
        shutil.copytree(tmp_path / "left", first)
        await_next_term(second)
        cluster.reconstructed, cluster.nodes = True, itertools.count(node)
        directory.object = Directory(1, [], restarted=True)
        lose(server)
        with pytest.raises(headrace.FeedRewound, match=r"state directory .* was put back"):
            list(feed)


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
    share_server = importlib.import_module("headrace_server.cluster.share_server")
    monkeypatch.setattr(share_server, "DirectoryActor", None)  # as where another actor has its name
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


def test_a_directory_that_ends_before_it_gives_keys_is_a_lost_connection(
    cluster: RayStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray: Any = sys.modules["ray"]

    def restarts(self: Directory) -> None:
        raise ray.exceptions.RayError("it restarts")

    with hs.on_ray({"numbers": numbers()}, servers=1, **_LESS) as servers:
        headrace.connect(servers.address).close()  # the servers are up
        monkeypatch.setattr(Directory, "trainer_keys", restarts)
        with pytest.raises(headrace.ConnectionLost, match=r"'numbers' .* not answer: it restarts"):
            headrace.connect(servers.address, timeout=0.1)


def test_a_directory_that_fails_or_is_silent_is_logged_once_for_each_kind(
    cluster: RayStandIn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that ends while the directory is silent waits no longer for its answer."""
    ray: Any = sys.modules["ray"]
    raised: list[Exception] = []

    def logged() -> list[str]:
        return [r.message for r in caplog.records if "directory does not answer" in r.message]

    with hs.on_ray({"numbers": numbers()}, servers=1, **_LESS):
        for error in (ray.exceptions.RayError("a fault"), ray.exceptions.GetTimeoutError("late")):
            raised.clear()

            def get(found: Any, timeout: float, error: Exception = error) -> Any:
                if threading.current_thread().name != "headrace-beats":
                    return cluster.get(found)
                raised.append(error)
                raise error

            monkeypatch.setattr(ray, "get", get)
            eventually(lambda: len(raised) > 4)
        fault, late = logged()
        assert "a fault" in fault and "late" in late


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
    with pytest.raises(ImportError, match=r"hs\.on_ray needs ray .*pip install 'headrace\[ray\]'"):
        hs.on_ray({"numbers": numbers()}, servers=2)
    with pytest.raises(ImportError, match=r'ray://FEED needs Ray: pip install "headrace\[ray\]"'):
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
