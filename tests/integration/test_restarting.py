"""A feed starts again from its beginning in three ways, with and without a state directory."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
import headrace_server as hs
from headrace_server.cli import main
from tests.patience import PATIENCE_S

from .processes import trainer
from .serving import in_segments, serving

ROWS = list(range(40))


def numbers() -> Any:
    return hs.from_examples([{"i": i} for i in ROWS]).batch(4)


def segments() -> Any:
    examples = [{"key": f"{k}", "x": [1.0] * 6} for k in range(8)]
    return in_segments(hs.from_examples(examples), num_unroll=3, batch_size=4)


@pytest.fixture(params=["memory", "state directory"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[hs.Server]:
    state = tmp_path / "state" if request.param == "state directory" else None
    feeds = {"a": numbers(), "b": numbers(), "s": segments()}
    with hs.run(
        feeds, partitions=2, workers=2, state_dir=state, http="127.0.0.1:0", lease_ttl_s=20
    ) as server:
        yield server


def joined(server: hs.Server, feed: str, **options: Any) -> headrace.Feed:
    return headrace.connect(server.address, feed=feed, **{"timeout": PATIENCE_S, **options})


def rest(feed: headrace.Feed) -> list[int]:
    return [i for batch in feed for i in batch["i"].tolist()]


def trained(feed: headrace.Feed) -> list[float]:
    """Return the last states of the sequences of a feed of segments."""
    ends: list[float] = []
    for batch in feed:
        state = batch.state("s") + batch.sequences["x"].sum(axis=1, dtype="float32")
        ends += state[batch.last].tolist()
        batch.save_state("s", state)
    return ends


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [r.getMessage() for r in caplog.records if r.name == "headrace"]
    caplog.clear()
    return found


def test_a_feed_starts_again_by_the_server_the_command_and_a_trainer(server, caplog, capsys):
    caplog.set_level(logging.WARNING, "headrace")
    locator = server.pids["locator"]
    beside = joined(server, "b", prefetch=0)
    of_b = next(beside)["i"].tolist()

    # Warnings for a partly used and a finished feed, none for a fresh feed and one at work.
    with joined(server, "a", prefetch=0) as feed:
        first = next(feed)["i"].tolist()
        joined(server, "a", prefetch=0).close()
    assert warnings(caplog) == []
    with joined(server, "a", restart=False) as feed:
        (told,) = warnings(caplog)
        assert "goes on where others left it (committed batches: 1)" in told
        assert "connect(restart=True) or headrace restart a" in told
        assert sorted(first + rest(feed)) == ROWS
    with joined(server, "a") as feed:
        assert rest(feed) == []
        (told,) = warnings(caplog)
        assert "feed 'a'" in told and "has no more batches (committed batches: 10)" in told

    # The server.  What had ended goes on, in the same order.
    with joined(server, "a") as feed:
        warnings(caplog)
        assert rest(feed) == []
        server.restart("a")  # a trainer that knows of the end does not use the feed any more
    with joined(server, "a", prefetch=0) as feed:
        batch = next(feed)
        assert warnings(caplog) == [] and batch["i"].tolist() == first

        # It is refused while the feed is used, unless it is forced.
        with pytest.raises(headrace.FeedInUse, match=r"it is used by trainer \d+ at \S+\.  Close"):
            server.restart("a")
        at = ["--address", server.address]
        assert main(["restart", "a", *at]) == 1
        assert "it is used by trainer" in capsys.readouterr().err
        assert main(["restart", "a", "--force", *at]) == 0
        with pytest.raises(headrace.FeedRewound, match="started again from its beginning"):
            rest(feed)
    with trainer(server.address, "--feed", "a", "--hold", "1", "--timeout", "60") as other:
        assert other.wait_for("batch")["rows"] == first
        other.wait_for("holding")
        mine = joined(server, "a", prefetch=0)  # so that something is committed
        next(mine)
        assert next(mine).token > batch.token
        mine.commit()

        # A trainer: refused while others use the feed, not for the own process.
        with pytest.raises(headrace.FeedInUse, match="other trainers use it"):
            joined(server, "a", restart=True)
        other.kill()
    with joined(server, "a", restart=True, prefetch=0) as feed:
        assert next(feed)["i"].tolist() == first
        with pytest.raises(headrace.FeedRewound):
            rest(mine)
        joined(server, "a", restart=True).close()  # nothing was committed: it is joined
        rows = first + rest(feed)
    mine.close()
    assert sorted(rows) == ROWS

    # Other feeds have each row once, and the locator has stayed.
    assert server.pids["locator"] == locator
    of_b += rest(beside)
    beside.close()
    assert sorted(of_b) == ROWS
    for _ in range(2):
        with joined(server, "s", restart=True) as feed:
            assert trained(feed) == [6.0] * 8
    with pytest.raises(headrace.UnknownFeed):
        server.restart("x")


def test_states_in_memory_are_not_lost_by_the_restart_of_another_feed():
    with serving({"a": numbers(), "s": segments()}) as server:
        with joined(server, "a") as feed:
            rest(feed)
        with joined(server, "s", prefetch=0) as feed:
            batch = next(feed)
            batch.save_state("s", batch.state("s") + 3)
            feed.commit()
            server.restart("a")
            with joined(server, "a", restart=True) as other:
                assert sorted(rest(other)) == ROWS
            assert trained(feed) == [6.0] * 8
        with joined(server, "s", restart=True) as feed:
            assert trained(feed) == [6.0] * 8, "nothing of the journal before"


def test_journals_that_were_interchanged_are_refused_by_name(tmp_path):
    feeds = {"a": numbers(), "b": numbers()}
    with hs.run(feeds, partitions=2, state_dir=tmp_path) as server:
        for name in feeds:
            with joined(server, name, prefetch=0) as feed:
                next(feed)
                feed.commit()
    directory = tmp_path / "feeds"
    for other in (directory / "a/1.journal", directory / "b/0.journal"):
        swap(directory / "a/0.journal", other)
        with pytest.raises(headrace.ServerError, match=r"is the journal of partition \d of feed"):
            hs.run(feeds, partitions=2, state_dir=tmp_path)
        swap(directory / "a/0.journal", other)
    with hs.run(feeds, partitions=2, state_dir=tmp_path) as server, joined(server, "a") as feed:
        assert len(rest(feed)) == len(ROWS) - 4


def swap(one: Path, other: Path) -> None:
    aside = one.with_suffix(".aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
