"""Strangers hold connections open at a server with few descriptors: trainers do not notice."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import psutil
import pytest

import headrace
from headrace.credentials import load_keys
from headrace_server.cli.keygen import make_pair
from tests.located import workers_at
from tests.patience import PATIENCE_S, eventually
from tests.trials.held import flood, opening

from .honest import honest_trainer
from .processes import serve

FILES = 256
LIMITED = ["sh", "-c", f'ulimit -n {FILES}; exec "$0" "$@"']
ROWS = 12_000
FEEDS = f"""
import headrace_server as hs


def feed():
    return hs.from_examples([{{"i": k}} for k in range({ROWS})]).batch(10)
"""


@pytest.mark.parametrize("place", ["supervisor.locator", "worker.worker"])
@pytest.mark.parametrize("keys", [False, True], ids=["open", "keys"])
def test_trainers_get_in_and_go_on_while_strangers_hold_more_than_a_process_can_open(
    keys: bool, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over_tcp: None
) -> None:
    (tmp_path / "feeds.py").write_text(FEEDS)
    if keys:
        make_pair(tmp_path / "keys", None)
        make_pair(tmp_path / "keys", "trainer")
        monkeypatch.setenv("HEADRACE_KEYS", str(tmp_path / "keys"))
    process, address = serve(
        tmp_path, "feeds.py:feed", "--http", "127.0.0.1:0", "--workers", "1", before=LIMITED
    )
    with process:
        page = (process.next_line() or "").split()[-1]

        def refused() -> int:
            with urllib.request.urlopen(f"{page}/status.json", timeout=PATIENCE_S) as answer:
                return int(json.load(answer)["access"]["refused"].get("connections", 0))

        children = psutil.Process(process.pid).children(recursive=True)
        held = next(c for c in children if f"headrace_server.{place}" in c.cmdline())
        found = load_keys(str(tmp_path / "keys")) if keys else None
        (worker,) = workers_at(address, found)
        port = urlsplit(address if place == "supervisor.locator" else worker).port
        assert port is not None
        with (
            honest_trainer(SimpleNamespace(address=address), ROWS),  # type: ignore[arg-type]
            flood(port, opening("silent", keys), 10**6, 300, 300),
            flood(port, opening("greeted", keys), 10**6, 300, 300),
        ):
            eventually(
                refused
            )  # from now on strangers hold all the connections that the server allows them
            for _ in range(3):
                with headrace.connect(address, commit="explicit", timeout=PATIENCE_S) as newcomer:
                    assert next(newcomer).rows == 10
        assert held.num_fds() < FILES


def test_the_log_says_how_many_trainers_the_limit_of_open_files_allows(tmp_path: Path) -> None:
    (tmp_path / "feeds.py").write_text(FEEDS)
    process, _ = serve(tmp_path, "feeds.py:feed", "--workers", "2", before=LIMITED)
    with process:
        eventually(lambda: "with a worker: the limit of open files (256" in process.output())
