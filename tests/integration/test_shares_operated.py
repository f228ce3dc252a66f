"""Operators see several servers of a feed as one, and give orders to all of them at once."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import headrace_server as hs
from headrace_server.cli import main
from tests.patience import PATIENCE_S

from .segment_streams import chained, save_all
from .test_shares import _SERVERS, connect, ledger, numbers, rows, shared

__all__ = ["ledger"]


def watched(pipeline: Any = None, state: Path | None = None) -> Any:
    """Two servers of a feed."""
    return shared(pipeline or numbers(), state=state)


def named(servers: list[hs.Server]) -> str:
    return ",".join(server.address for server in servers)


def test_status_shows_all_servers_and_names_the_one_that_is_away(capsys, monkeypatch):
    monkeypatch.setattr("headrace_server.watch.watch._FRESH_S", 0.0)

    def status(*more: str) -> tuple[int, str]:
        code = main(["status", "--address", at, *more])
        return code, capsys.readouterr().out

    with watched() as servers:
        at, away = named(servers), servers[1].address
        with connect(servers) as feed:
            for _ in range(7):
                next(feed)
            code, text = status("--json")
            shown = json.loads(text)
            assert code == 0 and [one["share"] for one in shown.values()] == [[0, 2], [1, 2]]
            feeds = [one["feeds"]["default"] for one in shown.values()]
            assert sum(len(one["partitions"]) for one in feeds) == 5
            assert sum(one["trainers"][0]["batches"] for one in feeds) >= 7
            code, text = status()
            assert code == 0 and text.count("serving  up ") == 2 and f"{away}\nserving" in text
        servers[1].close()
        code, text = status()
        assert code == 1 and f"{away}\nno server answers at {away}" in text


def test_commands_restart_the_feed_of_all_servers_and_end_it(capsys):
    endless = hs.from_examples([{"i": k} for k in range(40)]).repeat().batch(4)
    with watched(endless) as servers:
        with connect(servers) as feed:
            first = [next(feed)["i"].tolist() for _ in range(7)]
            assert main(["restart", "default", "--address", named(servers)]) == 1
            assert "is used by" in capsys.readouterr().err
        assert main(["restart", "default", "--address", named(servers)]) == 0
        with connect(servers) as feed:
            assert [next(feed)["i"].tolist() for _ in range(7)] == first
            assert main(["end", "default", "--cancel", "--address", named(servers)]) == 0
            for _ in feed:
                pass
        assert all(server.wait(PATIENCE_S) for server in servers)


def test_the_command_takes_a_snapshot_of_all_servers(tmp_path, capsys):
    with watched(state=tmp_path) as servers:
        with connect(servers) as feed:
            for _ in range(7):
                next(feed)
        assert main(["snapshot", "--address", named(servers)]) == 0
        token = json.loads(capsys.readouterr().out)
        with connect(servers) as feed:
            rest = rows(feed)
        with connect(servers, resume=token) as feed:
            assert rows(feed) == rest and len(rest) == 92


def test_commands_find_a_sequence_at_its_server_and_drain_all(ledger, capsys):
    pipeline = chained(ledger.examples, batch_size=3)
    with watched(pipeline) as servers, connect(servers, prefetch=0) as feed:
        at = named(servers)
        batches = [next(feed) for _ in range(2)]
        assert {batch.partition % _SERVERS for batch in batches} == {0, 1}
        for batch in batches:
            key = bytes(batch.key[0]).decode().partition(":")[2]
            assert main(["inspect", key, "--address", at]) == 0
            (found,) = json.loads(capsys.readouterr().out)["found"]
            assert (found["where"], found["partition"]) == ("leased", batch.partition)
            assert found["host"] == f"{socket.gethostname()}:{os.getpid()}"
        assert main(["drain", "--wait", "0.1", "--address", at]) == 1
        assert capsys.readouterr().out.count("in trainers' hands: 1 (trainer 1 at ") == 2
        for batch in batches:
            save_all(batch, ledger.check(batch))
        assert main(["drain", "--address", at]) == 0
        assert all(server.draining for server in servers)
        assert main(["status", "--address", at]) == 0
        assert capsys.readouterr().out.count("\ndraining ") == 2
