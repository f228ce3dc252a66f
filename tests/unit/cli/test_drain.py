"""``headrace drain`` waits for what is out, and says when there is nothing left."""

from __future__ import annotations

import pytest

from headrace_server.cli import main

from ..watch.statuses import feed
from .served import Served, served

__all__ = ["served"]


def out(leased: int, saving: int = 0) -> dict[str, int]:
    return {"ready": 3, "returned": 0, "leased": leased, "saving": saving}


def test_it_is_done_when_trainers_have_committed_all(
    served: Served, capsys: pytest.CaptureFixture[str]
):
    looks = iter([out(2), out(1, 1), out(0, 1), out(0), out(0)])
    look = served.look

    def later(timeout_s: float) -> object:
        served.feeds = {"a": feed(standing=next(looks))}
        return look(timeout_s)

    served.look = later  # type: ignore[method-assign,assignment]
    assert main(["drain", "--http", served.address]) == 0
    assert served.draining and capsys.readouterr().out == "drained: nothing is out\n"


def test_what_is_still_out_after_the_wait_makes_the_exit_code_1(
    served: Served, capsys: pytest.CaptureFixture[str]
):
    served.feeds = {"a": feed(standing=out(2, 1)), "b": feed(standing=out(1))}
    assert main(["drain", "--wait", "0", "--http", served.address]) == 1
    assert capsys.readouterr().out == "draining: 4 batches are still out\n"


def test_a_server_that_ends_meanwhile_is_drained(
    served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    from headrace_proto.errors import ConnectionLost
    from headrace_server.cli.asking import Asker

    def gone(self: Asker, path: str) -> object:
        raise ConnectionLost("no server answers")

    monkeypatch.setattr(Asker, "get", gone)
    assert main(["drain", "--http", served.address]) == 0
    assert capsys.readouterr().out == "drained: the server has ended\n"


def test_without_a_server_nothing_is_drained(capsys: pytest.CaptureFixture[str]):
    assert main(["drain", "--http", "127.0.0.1:1"]) == 1
    assert "no server answers" in capsys.readouterr().err
