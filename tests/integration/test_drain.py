"""A trainer closes a feed's input: rows already read are handed out, and no more are read."""

from __future__ import annotations

import contextlib
import logging
import threading
from pathlib import Path

import pytest

import headrace
import headrace_server as hs
from tests.patience import PATIENCE_S, eventually

from .serving import connect
from .user_functions import fail_at_5900


def endless(batch_size: int = 4, **options: bool) -> hs.Pipeline:
    examples = hs.from_examples([{"i": k} for k in range(10)])
    return examples.repeat().batch(batch_size, **options)


def test_a_second_drain_is_harmless_and_other_trainers_end_too():
    with hs.run(endless(), partitions=3, workers=2) as server:
        with connect(server) as one, connect(server) as other:
            next(one), next(other)
            one.drain()
            one.drain()
            other.drain(cancel=True)
            other.close()
            for _ in one:
                pass
        with connect(server) as late:
            assert list(late) == []
        assert server.wait(PATIENCE_S)


def test_a_stop_waits_for_no_batch_that_only_came_ahead(tmp_path: Path) -> None:
    """Two trainers have batches of one worker; before these comes one that the other worker keeps.

    They return them, and the next server hands them out.
    """
    examples = hs.from_examples([{"i": k} for k in range(6000)])
    pipeline = examples.batch(4)
    seen: list[int] = []

    def train(address: str) -> None:
        with (
            contextlib.suppress(headrace.ConnectionLost),
            headrace.connect(address, timeout=PATIENCE_S) as feed,
        ):
            for batch in feed:
                seen.extend(batch["i"].tolist())

    for ends in (False, False, False, True):
        before = len(seen)
        with hs.run(pipeline, partitions=4, workers=2, state_dir=tmp_path) as server:
            trainers = [threading.Thread(target=train, args=(server.address,)) for _ in range(2)]
            for trainer in trainers:
                trainer.start()
            if ends:
                assert server.wait(PATIENCE_S)
            else:
                eventually(lambda start=before: len(seen) > start + 200)
                assert server.drain(PATIENCE_S)
        for trainer in trainers:
            trainer.join(PATIENCE_S)
    assert sorted(seen) == list(range(6000))


def test_a_stop_does_not_wait_for_a_feed_that_has_failed() -> None:
    """Batches in hand at the failure can not be committed any more."""
    pipeline = hs.from_examples([{"i": k} for k in range(6_000)]).map(fail_at_5900).batch(4)
    with hs.run(pipeline, partitions=4, workers=2) as server:
        with pytest.raises(headrace.DataError, match="5900"), connect(server) as feed:
            for _ in feed:
                pass
        assert server.drain(PATIENCE_S)


@pytest.mark.parametrize("committed", [True, False])
def test_a_drain_says_which_trainer_it_waits_for_and_that_it_holds_no_more(
    committed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace.server")
    with hs.run(endless()) as server, connect(server, commit="explicit") as feed:
        batch = next(feed)
        drain = threading.Thread(target=server.drain, args=(PATIENCE_S,))
        drain.start()
        said = "waits for commits: batches of feed 'default' in trainers' hands: 1 (trainer 1 at "
        eventually(lambda: said in caplog.text)
        batch.commit() if committed else feed.close()
        drain.join(PATIENCE_S)
        assert not drain.is_alive()
    assert "the drain has ended: no trainer holds a batch any more" in caplog.text
