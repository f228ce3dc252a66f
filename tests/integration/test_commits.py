"""Explicit commits: a checkpoint has exactly the trained rows, however far a loop has fetched."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

import headrace
import headrace_server as hs
from headrace.connection.link import Link
from headrace.machine.trainer import Trainer
from tests.patience import PATIENCE_S
from tests.waiting import waits_end_after

from .serving import connect, serving


def plain(rows: int = 60) -> hs.Pipeline:
    return hs.from_examples([{"i": i} for i in range(rows)]).shuffle(seed=3).batch(3)


def rows_of(batches: Any) -> list[int]:
    return [int(i) for batch in batches for i in batch["i"]]


def joined(server: hs.Server, feed: str, **options: Any) -> headrace.Feed:
    named = {"feed": feed, "commit": "explicit", "timeout": PATIENCE_S, **options}
    return headrace.connect(server.address, **named)


def test_uncommitted_batches_outlive_their_lease_and_too_many_of_them_are_named():
    with (
        serving(plain(), partitions=2, lease_ttl_s=1.0, max_credits=4) as server,
        joined(server, "default") as feed,
    ):
        held = [next(feed) for _ in range(4)]
        with waits_end_after(2.5), pytest.raises(headrace.DeadlineExceeded) as error:
            next(feed)
        assert (
            "this trainer holds 4 batches, as many as the server's max_credits=4 allows.  It has "
            "taken 4 of them and committed none of these, the first is batch 0/0"
        ) in str(error.value)
        feed.commit(held)
        counts = server.stats()["default"]
        assert (counts["batches"], counts["expired"], counts["stale"]) == (4, 0, 0)
        assert next(feed).number == 2


def test_a_snapshot_up_to_a_batch_leaves_out_what_was_fetched_after_it(tmp_path):
    with serving(plain(), state_dir=tmp_path) as server:
        with connect(server) as feed:
            batch = next(feed)
            feed.snapshot()
            following = next(feed)  # and the one before is still in hand
            exact = feed.snapshot(upto=batch)
            next(feed)
            with pytest.raises(ValueError, match="is committed already by asking for the next one"):
                feed.snapshot(upto=batch)
        with headrace.connect(
            server.address, resume=exact, commit="explicit", timeout=PATIENCE_S
        ) as feed:
            again = next(feed)
            assert again["i"].tolist() == following["i"].tolist()
            feed.load_state_dict(exact)
            with pytest.raises(ValueError, match="before the feed was taken back to a snapshot"):
                again.commit()
            again = next(feed)
            again.commit()
            assert again["i"].tolist() == following["i"].tolist()
            assert rows_of([next(feed)]) != rows_of([again])


def test_a_snapshot_up_to_a_batch_commits_those_that_were_taken_before_it(tmp_path):
    """Tokens of two workers are in another order than the batches that the loop takes."""
    shared = {"state_dir": tmp_path, "partitions": 2, "workers": 2}
    with hs.run(plain(), **shared) as server, joined(server, "default") as feed:
        taken = [next(feed) for _ in range(6)]
        assert [batch.token for batch in taken] != sorted(batch.token for batch in taken)
        feed.snapshot()  # commits nothing
        assert server.stats()["default"]["batches"] == 0
        for _ in range(2):
            feed.snapshot(upto=taken[2])
            assert server.stats()["default"]["batches"] == 3
        feed.commit(taken[4].token)
        with pytest.raises(ValueError, match=r"taken after token=\d+, is committed already$"):
            feed.snapshot(upto=taken[3])
        feed.close()
        with connect(server) as other:
            assert sum(batch.rows for batch in other) == 60 - 4 * 3


def test_a_batch_is_committed_at_the_feed_that_it_came_from_only(tmp_path):
    """With a state directory the first batches of two feeds have the same token."""
    with (
        serving({"a": plain(), "b": plain()}, state_dir=tmp_path) as server,
        joined(server, "a") as a,
        joined(server, "b") as b,
    ):
        of_a, of_b = next(a), next(b)
        assert of_a.token == of_b.token
        for wrong in (lambda: b.commit(of_a), lambda: b.snapshot(upto=of_a)):
            with pytest.raises(ValueError, match=r"=<Batch 0/0 .* from another feed"):
                wrong()
        assert server.stats()["b"]["batches"] == 0
        of_b.commit()
        assert server.stats()["b"]["batches"] == 1


@pytest.mark.parametrize("when", ["commit", "take"])
def test_a_batch_that_ctrl_c_takes_from_a_loop_amid_a_call_goes_to_a_trainer(when, monkeypatch):
    """1. Ctrl-C comes before a commit reaches the session, or after a batch has left it.
    2. The loop goes on, and the feed ends: nobody holds a batch for ever.
    """
    called, calls = getattr(Link, when), 0

    def interrupted(link: Link, *given: Any) -> Any:
        nonlocal calls
        calls += 1
        found = called(link, *given) if when == "take" or calls != 3 else None
        if calls == 3:
            raise KeyboardInterrupt
        return found

    pipeline = hs.from_examples([{"i": i} for i in range(40)]).batch(4)
    with hs.run(pipeline) as server:
        with headrace.connect(server.address, timeout=PATIENCE_S) as feed:
            monkeypatch.setattr(Link, when, interrupted)
            seen = [*next(feed)["i"].tolist(), *next(feed)["i"].tolist()]
            with contextlib.suppress(KeyboardInterrupt):
                for batch in feed:
                    seen += batch["i"].tolist()
            assert calls == 3
            seen += [i for batch in feed for i in batch["i"].tolist()]
        assert server.wait(PATIENCE_S)
    assert sorted(seen) == list(range(40))


#: Methods that change a trainer's machine, which others only read.
CHANGING = (
    "take",
    "untake",
    "commit",
    "give_back",
    "let_go",
    "set_prefetch",
    "greeting",
    "welcome",
    "lost",
    "give",
    "idle",
    "over",
    "answer",
    "outgoing",
    "_pump",
)


@pytest.mark.parametrize("order", ["feed", "any"])
def test_a_trainer_s_machine_is_changed_only_under_the_lock_of_its_link(order, monkeypatch):
    """Else its loop and the thread that keeps its leases would ask for batches at once."""
    unlocked: list[str] = []
    with (
        serving(plain(), partitions=3, workers=2) as server,
        joined(server, "default", order=order) as feed,
    ):
        lock = feed._link.lock

        def watched(name: str) -> Any:
            method = getattr(Trainer, name)

            def call(*arguments: Any, **options: Any) -> Any:
                if not lock._is_owned():  # type: ignore[attr-defined]
                    unlocked.append(name)
                return method(*arguments, **options)

            return call

        for name in CHANGING:
            monkeypatch.setattr(Trainer, name, watched(name))
        for batch in feed:
            feed.commit(batch)
        assert not unlocked
