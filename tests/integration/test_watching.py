"""The status of a running server agrees with its trainers' observations."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

import headrace
import headrace_server as hs
from tests import patience
from tests.patience import PATIENCE_S

from .serving import connect

ROWS = 240


def bucketed(epochs: int | None = 1) -> hs.Pipeline:
    examples = [{"i": i, "x": np.ones(i % 6 + 1, "float32")} for i in range(ROWS)]
    pipeline = hs.from_examples(examples).filter("tests.integration.test_watching:wanted")
    return pipeline.repeat(epochs).bucket_by_sequence_length("x", 4, [4], dynamic_pad=True)


def wanted(example: dict[str, Any]) -> bool:
    return bool(example["i"] % 10)


def get(server: hs.Server, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    assert server.http_address is not None
    connection = http.client.HTTPConnection(
        urlsplit(server.http_address).netloc, timeout=PATIENCE_S
    )
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def status(server: hs.Server) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(get(server, "/status.json")[1])
    return found


def metrics(server: hs.Server) -> dict[tuple[str, ...], float]:
    """Return metrics by name and the values of their labels, in the order of the labels' names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in parse(get(server, "/metrics")[1].decode())
        for sample in family.samples
    }


def eventually(server: hs.Server, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait until a status is so, and return it."""
    return patience.eventually(lambda: holds(seen := status(server)) and seen)


@pytest.fixture(scope="module")
def ended() -> Iterator[tuple[hs.Server, list[headrace.Batch]]]:
    """Read the feed of a server to its end; yield the server and the batches."""
    with hs.run(bucketed(), partitions=2, workers=2, http="127.0.0.1:0") as server:
        with connect(server) as feed:
            batches = list(feed)
            eventually(server, lambda s: bool(s["feeds"]["default"]["read"] == ROWS))
            yield server, batches


def test_the_figures_of_a_feed_are_those_of_its_batches(ended):
    server, batches = ended
    found = metrics(server)
    rows = sum(batch.rows for batch in batches)
    assert found["headrace_batches_committed_total", "default"] == len(batches)
    assert found["headrace_rows_committed_total", "default"] == rows
    assert found["headrace_rows_made_total", "default"] == rows
    assert found["headrace_rows_read_total", "default"] == ROWS
    assert found["headrace_rows_dropped_total", "default", "filtered"] == ROWS / 10
    for bucket in (0, 1):
        of_it = [b for b in batches if b.bucket == bucket]
        padded, real = sum(b["x"].size for b in of_it), sum(int(b.length.sum()) for b in of_it)
        assert found["headrace_padding_elements_total", str(bucket), "default", "padded"] == padded
        assert found["headrace_padding_elements_total", str(bucket), "default", "real"] == real
    assert found["headrace_feed_state", "default", "ended"] == 1


def test_a_trainer_is_told_of_until_it_leaves(ended):
    server, batches = ended
    (trainer,) = status(server)["feeds"]["default"]["trainers"]
    assert trainer["batches"] == trainer["committed"] == len(batches)
    assert trainer["host"] == f"{socket.gethostname()}:{os.getpid()}" and trainer["local"]
    with connect(server):
        eventually(server, lambda s: len(s["feeds"]["default"]["trainers"]) == 2)
    eventually(server, lambda s: len(s["feeds"]["default"]["trainers"]) == 1)
    assert metrics(server)["headrace_trainers", "default"] == 1


def slowly(example: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.01)
    return example


def inspected(server: hs.Server, key: bytes) -> list[dict[str, Any]]:
    code, body = get(server, f"/inspect?key={quote(key)}")
    assert code == 200, body
    found: list[dict[str, Any]] = json.loads(body)["found"]
    return found


def test_a_worker_that_died_is_counted_with_its_last_words():
    with hs.run(bucketed(None), http="127.0.0.1:0") as server:
        with connect(server) as feed:
            next(feed)
            before = eventually(server, lambda s: s["feeds"]["default"]["read"] > 0)
            pid = before["workers"][0]["pid"]
            os.kill(pid, signal.SIGKILL)
            seen = eventually(server, lambda s: s["workers"][0]["pid"] not in (None, pid))
            assert seen["workers"][0]["restarts"] == 1
            (event,) = seen["events"]
            assert event["kind"] == "worker died" and "was killed by SIGKILL" in event["text"]
            next(feed)
            assert metrics(server)["headrace_worker_restarts_total", "0"] == 1


def test_when_the_front_is_dead_health_says_so():
    with hs.run(bucketed(None), http="127.0.0.1:0") as server:
        assert get(server, "/healthz")[0] == 200
        os.kill(server.pids["locator"], signal.SIGKILL)
        seen = eventually(server, lambda s: s["state"] == "failed")
        assert "locator was killed by SIGKILL" in seen["why"]
        assert get(server, "/healthz")[0] == 503 and get(server, "/readyz")[0] == 503
        assert metrics(server)["headrace_up",] == 0


def test_the_status_names_the_stage_that_takes_the_time_of_the_workers():
    pipeline = hs.from_examples([{"i": i} for i in range(64)]).map(slowly).batch(4)
    with hs.run(pipeline, http="127.0.0.1:0") as server, connect(server) as feed:
        assert sum(batch.rows for batch in feed) == 64

        def are_there(seen: dict[str, Any]) -> bool:  # a report is up to a second old
            return len(seen["feeds"]["default"].get("seconds", {})) == 2

        seconds = eventually(server, are_there)["feeds"]["default"]["seconds"]
        slowest = max(seconds, key=seconds.__getitem__)
        assert slowest.startswith("map function ") and slowest.endswith("slowly")
