"""Operators see several servers of a feed as one, and give orders to all of them at once."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
import headrace_server as hs
from headrace_proto.errors import ServerError
from headrace_server.cli import main
from tests.patience import PATIENCE_S
from tests.ports import free_port

from .segment_streams import Ledger, chained, save_all
from .test_near import list_of
from .test_shares import _SERVERS, connect, ledger, numbers, rows

__all__ = ["ledger"]


@contextlib.contextmanager
def watched(pipeline: Any = None, **options: Any) -> Iterator[list[hs.Server]]:
    """Two servers that know each other's HTTP addresses."""
    peers = [f"127.0.0.1:{free_port()}" for _ in range(_SERVERS)]
    with contextlib.ExitStack() as running:
        options |= {"partitions": 5, "peers": peers}
        yield [
            running.enter_context(
                hs.run(pipeline or numbers(), share=(i, _SERVERS), http=peers[i], **options)
            )
            for i in range(_SERVERS)
        ]


def test_any_server_shows_all_and_the_one_that_is_away(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("headrace_server.server.watch._FRESH_S", 0.0)

    def status(server: hs.Server, *more: str) -> tuple[int, str]:
        code = main(["status", "--all", "--http", str(server.http_address), *more])
        return code, capsys.readouterr().out

    with watched() as servers:
        away = str(servers[1].http_address)
        with connect(servers) as feed:
            for _ in range(7):
                next(feed)
            for server in servers:
                code, text = status(server, "--json")
                (whole,) = json.loads(text)["feeds"].values()
                assert code == 0 and [one["share"] for one in whole["shares"]] == ["0/2", "1/2"]
                assert len(whole["partitions"]) == 5 and whole["batches"] <= 7
                (trainer,) = whole["trainers"]
                assert trainer["batches"] >= 7 and trainer["awaited_s"].keys() == {"0/2", "1/2"}
            code, text = status(servers[0])
            assert code == 0 and f"1/2    {away}  open" in text
            assert main(["status", "--all", "--http", away]) == 0
            assert "0/2" in capsys.readouterr().out
            with urllib.request.urlopen(f"{away}/metrics?all=1") as answer:
                assert 'headrace_share_up{feed="default",share="0/2"} 1' in answer.read().decode()
        servers[1].close()
        code, text = status(servers[0])
        assert code == 1 and f"Share 1/2 at {away} is away: no server answers at {away}" in text
        assert main(["status", "--all", "--http", f"{servers[0].http_address},{away}"]) == 1
        assert "Share 1/2" in capsys.readouterr().out


def test_a_server_that_knows_no_peers_shows_itself_alone(capsys: pytest.CaptureFixture[str]):
    with hs.run(numbers(), partitions=5, share=(0, 2), http="127.0.0.1:0") as server:
        assert main(["status", "--http", str(server.http_address)]) == 0
        assert main(["status", "--all", "--http", str(server.http_address)]) == 1
        assert "start all of them with peers=" in capsys.readouterr().err


def test_the_counters_of_any_server_are_those_of_all(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace_server.server.watch._FRESH_S", 0.0)
    with watched() as servers:
        with connect(servers) as feed:
            assert len(rows(feed)) == 120
        for server in servers:
            whole = server.stats(every=True)["default"]
            mine = server.stats()["default"]
            assert whole["rows"] == 120 and len(whole["partitions"]) == 5
            assert 0 < mine["rows"] < 120 and len(mine["partitions"]) < 5
    with hs.run(numbers()) as alone:
        assert alone.stats(every=True).keys() == alone.stats().keys() == {"default"}
        with pytest.raises(TypeError, match="every='yes'"):
            alone.stats(every="yes")  # type: ignore[arg-type]
    with hs.run(numbers(), partitions=5, share=(0, 2)) as one:
        with pytest.raises(ServerError, match="this server has share 0/2 of its feeds, and knows"):
            one.stats(every=True)


def test_a_server_restarts_the_feed_of_all_and_ends_it():
    endless = hs.from_examples([{"i": k} for k in range(40)]).repeat().batch(4)
    with watched(endless) as servers:
        with connect(servers) as feed:
            first = [next(feed)["i"].tolist() for _ in range(7)]
            with pytest.raises(headrace.FeedInUse):
                servers[1].restart()
        servers[1].restart()
        with connect(servers) as feed:
            assert [next(feed)["i"].tolist() for _ in range(7)] == first
            servers[0].end(cancel=True)
            for _ in feed:
                pass
        assert all(server.wait(PATIENCE_S) for server in servers)


@pytest.mark.parametrize("way", ["a server", "the command"])
def test_an_operator_takes_a_snapshot_of_all_servers(
    tmp_path: Path, way: str, capsys: pytest.CaptureFixture[str]
):
    with contextlib.ExitStack() as running:
        peers = [f"127.0.0.1:{free_port()}" for _ in range(_SERVERS)]
        servers = [
            running.enter_context(
                hs.run(
                    numbers(),
                    partitions=5,
                    share=(index, _SERVERS),
                    state_dir=tmp_path / str(index),
                    durability="process",
                    http=peers[index],
                    peers=peers if way == "a server" else None,
                )
            )
            for index in range(_SERVERS)
        ]
        with connect(servers) as feed:
            for _ in range(7):
                next(feed)
        if way == "a server":
            token = servers[1].snapshot()
        else:
            assert main(["snapshot", "--http", ",".join(peers)]) == 0
            token = json.loads(capsys.readouterr().out)
        with connect(servers) as feed:
            rest = rows(feed)
        with connect(servers, resume=token) as feed:
            assert rows(feed) == rest and len(rest) == 92


def test_commands_find_a_sequence_at_its_server_and_drain_all(
    ledger: Ledger, capsys: pytest.CaptureFixture[str]
):
    pipeline = chained(list_of(ledger), batch_size=3)
    with watched(pipeline) as servers, connect(servers, prefetch=0) as feed:
        http = ",".join(str(server.http_address) for server in servers)
        batches = [next(feed) for _ in range(2)]
        assert {batch.partition % _SERVERS for batch in batches} == {0, 1}
        for batch in batches:
            key = bytes(batch.key[0]).decode().partition(":")[2]
            assert main(["inspect", key, "--json", "--http", http]) == 0
            (found,) = json.loads(capsys.readouterr().out)["found"]
            assert (found["where"], found["partition"]) == ("leased", batch.partition)
        assert main(["drain", "--wait", "0.1", "--http", http]) == 1
        assert capsys.readouterr().out.count("in trainers' hands: 1 (trainer 1 at ") == 2
        for batch in batches:
            save_all(batch, ledger.check(batch))
        assert main(["drain", "--http", http]) == 0
        assert all(server.draining for server in servers)
        assert main(["status", "--all", "--http", str(servers[0].http_address)]) == 0
        assert capsys.readouterr().out.splitlines()[1].startswith("draining")
