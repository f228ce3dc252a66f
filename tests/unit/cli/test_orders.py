"""``headrace drain``, ``end``, ``restart`` and ``snapshot`` have a server do something."""

from __future__ import annotations

import pytest

from headrace_server.cli import main, remote

from ..watch.statuses import feed
from .served import Served, other, served

__all__ = ["other", "served"]


def test_a_feed_that_has_failed_makes_the_exit_code_of_status_1(
    served: Served, capsys: pytest.CaptureFixture[str]
):
    served.feeds = {"a": feed(state="failed", failure=["data", "row 7 is bad"])}
    assert main(["status", "--address", served.address]) == 1
    assert "row 7 is bad" in capsys.readouterr().out


def out(leased: int, saving: int = 0) -> dict[str, int]:
    return {"ready": 3, "returned": 0, "leased": leased, "saving": saving}


def test_a_server_that_ends_before_all_is_committed_makes_the_exit_code_1(
    served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    served.feeds = {"a": feed(standing=out(2, 1))}
    looks = iter([remote._out, lambda asker: None])
    monkeypatch.setattr(remote, "_out", lambda asker: next(looks)(asker))
    assert main(["drain", "--address", served.address]) == 1
    said = capsys.readouterr().out
    assert said == (
        "the server has ended before all batches were committed: batches of feed 'a' in trainers' "
        "hands: 2 (trainer 1 at there:1 has 2); batches of feed 'a' being stored: 1\n"
    )


def test_a_living_server_is_drained_and_the_dead_ones_are_named(
    served: Served, capsys: pytest.CaptureFixture[str]
):
    served.feeds = {"a": feed(standing=out(0))}
    assert (
        main(["drain", "--address", f"tcp://127.0.0.1:1,{served.address},tcp://127.0.0.1:2"]) == 1
    )
    said = capsys.readouterr()
    assert served.draining and said.out == "drained: nothing is out\n"
    for port in (1, 2):
        assert f"no server answers at tcp://127.0.0.1:{port}: " in said.err


def restarted(served: Served, *looks: dict[str, object]) -> int:
    """Restart a feed of which each look sees another status, and then always the last."""
    look, left = served.look, iter(looks)

    def later(timeout_s: float) -> object:
        if served.asked:
            served.feeds = {"a": feed(**next(left, looks[-1]))}
        return look(timeout_s)

    served.look = later  # type: ignore[method-assign,assignment]
    return main(["restart", "a", "--wait", "1", "--address", served.address])


@pytest.mark.parametrize(
    ("look", "says"),
    [
        ({"state": "opening"}, "feed 'a' is restarted, but not open after 1 s: it is opening"),
        ({"state": "failed", "failure": ["data", "row 7 is bad"]}, "has failed: row 7 is bad"),
    ],
)
def test_a_feed_that_does_not_open_makes_the_exit_code_1(
    served: Served, capsys: pytest.CaptureFixture[str], look: dict[str, object], says: str
):
    assert restarted(served, look) == 1
    said = capsys.readouterr()
    assert says in said.err and served.address in said.err and not said.out


def test_a_server_that_is_named_twice_is_no_two_shares(
    served: Served, other: Served, capsys: pytest.CaptureFixture[str]
):
    served.share = other.share = [0, 2]
    by_name = served.address.replace("127.0.0.1", "localhost")
    for both in (f"{served.address},{by_name}", f"{served.address},{other.address}"):
        assert main(["end", "a", "--address", both]) == 2
        assert "1 of the 2 servers of the feed" in capsys.readouterr().err
    assert not served.asked and not other.asked


@pytest.mark.parametrize("order", [("end", "a"), ("restart", "a"), ("snapshot",)])
def test_an_order_to_some_of_the_servers_of_a_feed_is_refused_and_nothing_is_done(
    served: Served, capsys: pytest.CaptureFixture[str], order: tuple[str, ...]
):
    served.share = [1, 3]
    assert main([*order, "--address", served.address]) == 2
    told = capsys.readouterr().err
    assert f"1 of the 3 servers of the feed ({served.address} has share 1/3)" in told
    assert served.asked == []
