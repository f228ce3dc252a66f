"""Several workers own the partitions of a feed: each serves trainers itself, and one dies alone."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

import headrace
import headrace_server as hs
from tests.patience import PATIENCE_S

from .segment_streams import Ledger, cells_of, chained, of_counts, save_all, train
from .serving import connect
from .test_faults import eventually
from .test_watching import inspected

_OWNERS = 3


def run(ledger: Ledger, partitions: int = 4, **options: Any) -> hs.Server:
    return hs.run(
        chained(ledger.examples, batch_size=3), workers=_OWNERS, partitions=partitions, **options
    )


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(of_counts([1 + i % 5 for i in range(60)]))


def committed(server: hs.Server) -> int:
    """Return the number of commits that all trainers have answers to."""
    return sum(trainer["committed"] for trainer in server.stats()["default"]["trainers"])


def test_the_supervisor_gathers_what_owners_answer(ledger: Ledger):
    with (
        run(ledger, http="127.0.0.1:0") as server,
        connect(server, prefetch=0) as one,
        connect(server) as two,
    ):
        train(one, ledger, 5)
        eventually(lambda: committed(server) == 5)  # their answers follow the commits
        told = server.stats()["default"]
        assert told["batches"] == 5
        assert [at["partition"] for at in told["partitions"]] == [0, 1, 2, 3]
        assert [at["worker"] for at in told["partitions"]] == [0, 1, 2, 0]
        assert len(told["trainers"]) == 2
        batch = next(one)
        for key, segment in cells_of(batch):
            found = [(at["where"], at["segment"]) for at in inspected(server, key)]
            assert found == [("leased", segment)]
        save_all(batch, ledger.check(batch))
        two.close()
        train(one, ledger)
    ledger.assert_complete()


def _train_all(feed: headrace.Feed) -> None:
    for batch in feed:
        batch.save_state("s", batch.state("s"))


@pytest.mark.parametrize("most", [5, 6])
def test_bad_examples_of_all_owners_count_against_one_bound(most: int):
    """Six examples are bad, two at each owner."""
    examples = [{"key": f"k{n}", "x": [1.0] * (n % 5)} for n in range(30)]
    source = hs.from_examples(
        examples, {"key": hs.scalar("string"), "x": hs.sequence("float32")}
    ).options(on_bad_example="skip", max_bad_examples=most)
    pipeline = source.batch_sequences_with_states(
        input_key="key",
        input_sequences=["x"],
        input_context=[],
        initial_states={"s": hs.zeros((1,), "float32")},
        num_unroll=2,
        batch_size=3,
    )
    with hs.run(pipeline, workers=_OWNERS, partitions=3) as server:
        if most == 6:
            with connect(server) as feed:
                _train_all(feed)
            assert server.wait(PATIENCE_S)
            assert sum(server.stats()["default"]["dropped"].values()) == 6
        else:  # the feed may fail before the trainer joins, or after its last batch
            with suppress(headrace.DataError), connect(server) as feed:
                _train_all(feed)
            assert server.wait(PATIENCE_S)
            assert "max_bad_examples=5" in server.failed_feeds()["default"]
