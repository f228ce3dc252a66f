"""Feeds of a log that are not required: retention passes them by, and counts what they lose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from tests.patience import PATIENCE_S, eventually

from .serving import connect, kill_worker
from .test_live import FEATURES, SCHEMA, live, produce, segments

#: Bytes of an example, and of what feeds may be behind.
EXAMPLE, MOST = 1 << 14, 1 << 20
#: An example of a file that is mixed with a log.
FILE = {"x": [0.0], "key": b"-2"}


def optional(**options: Any) -> hs.Pipeline:
    return live(max_backlog=MOST, required=False, **options)


def plain(source: hs.Pipeline) -> hs.Pipeline:
    return source.batch(1, dynamic_pad=True)


#: Feeds that retention may pass by.
KINDS: dict[str, Callable[[], hs.Pipeline]] = {
    "batch": lambda: plain(optional()),
    "stages": lambda: plain(optional().map(dict, schema=SCHEMA).shuffle(seed=1, window=3)),
    "mix": lambda: plain(
        hs.mix(
            {"live": optional(), "file": hs.from_examples([FILE] * 3, FEATURES)},
            weights={"live": 1, "file": 1},
        )
    ),
    "states": lambda: segments(optional(), batch_size=1, capacity=4, num_unroll=EXAMPLE),
    "lanes": lambda: segments(
        optional(), batch_size=1, capacity=4, num_unroll=EXAMPLE, order="lanes"
    ),
    "no states": lambda: segments(
        optional(), batch_size=1, capacity=4, num_unroll=EXAMPLE, order="lanes", initial_states={}
    ),
}


def push(out: headrace.Producer, numbers: range, partitions: int = 1) -> None:
    """Push examples of that many bytes; all of them are durable then.

    Some are whole ones, unless these are to be in several partitions.
    """
    x = np.zeros(EXAMPLE // 4, np.float32)
    for number in numbers:
        if number % 3 and partitions == 1:
            out.append({"x": x, "key": str(number)})
        else:
            sequence = out.open(str(number), {"key": str(number)})
            sequence.extend({"x": x})
            sequence.end()
    out.flush()


def keys_of(batch: Any, states: bool = False) -> list[int]:
    if isinstance(batch, headrace.Batch):
        return [int(key) for key in batch["key"]]
    if states:
        batch.save_state("sum", batch.state("sum"))
    return [int(key) for key in batch.context["key"][batch.valid]]


def train(server: hs.Server, feed: str, most: int = 1 << 30, **options: Any) -> list[int]:
    """Train a feed to its end, or some batches; return the keys that are not of a file."""
    found = list[int]()
    with connect(server, feed=feed, prefetch=1, **options) as batches:
        for _, batch in zip(range(most), batches, strict=False):
            found += keys_of(batch, bool(batches.states))
    return [key for key in found if key != -2]


def lost(server: hs.Server, feed: str = "extra") -> int:
    return int(server.stats()[feed]["log"]["lost"])


@pytest.mark.parametrize(
    ("kind", "partitions"), [(kind, 1 + n % 2) for n, kind in enumerate(KINDS)]
)
def test_an_absent_feed_holds_up_nobody_and_loses_what_is_counted(kind: str, partitions: int):
    """It trains each sequence once or loses it; the required feed loses nothing."""
    feeds = {"main": plain(live(max_backlog=MOST)), "extra": KINDS[kind]()}
    total = 240 * partitions
    with hs.run(feeds, partitions=partitions, workers=partitions) as server:
        with produce(server) as out, ThreadPoolExecutor(1) as pool:
            main = pool.submit(train, server, "main")
            push(out, range(16), partitions)
            early = train(server, "extra", most=1)  # it has read some, and goes away
            push(out, range(16, total // 2), partitions)
            assert eventually(lambda: lost(server) > 0)
            before = lost(server)
            kill_worker(server)
            push(out, range(total // 2, total), partitions)
            assert eventually(lambda: lost(server) > before)
            out.close_log()
            late = train(server, "extra")
            assert Counter(main.result(PATIENCE_S)) == Counter(range(total))
        assert max(Counter(early + late).values()) == 1
        missing = total - len(early + late)
        assert missing
        if kind in ("batch", "stages", "mix"):
            assert lost(server) == missing
        else:  # batches that were made before have whole sequences of which the log has no more
            assert missing <= lost(server) <= missing + 8 * partitions
        assert server.stats()["main"]["log"]["lost"] == 0


@pytest.mark.parametrize("kind", ["batch", "states", "lanes"])
def test_ranks_of_an_absent_feed_go_on_together_after_what_it_lost(kind: str):
    feeds = {"main": plain(live(max_backlog=MOST)), "extra": KINDS[kind]()}

    def ranks(run: int, most: int = 1 << 30) -> list[int]:
        given = {"feed": "extra", "most": most, "world_size": 2, "run": run}
        trained = [pool.submit(train, server, rank=rank, **given) for rank in (0, 1)]
        return [key for one in trained for key in one.result(PATIENCE_S)]

    with hs.run(feeds) as server, produce(server) as out, ThreadPoolExecutor(3) as pool:
        main = pool.submit(train, server, "main")
        push(out, range(16))
        early = ranks(1, most=1)
        push(out, range(16, 160))
        assert eventually(lambda: lost(server) > 0)
        kill_worker(server)
        push(out, range(160, 200))
        out.close_log()
        late = ranks(2)
        assert Counter(main.result(PATIENCE_S)) == Counter(range(200))
        assert max(Counter(early + late).values()) == 1 and early and late
        missing = 200 - len(early + late)  # the last round of a batch may be left out
        assert 0 < missing <= lost(server) + 1 and lost(server) <= missing + 8


def test_a_snapshot_of_a_feed_that_was_passed_by_gives_the_same_batches_again(tmp_path: Path):
    feeds = {"main": plain(live(max_backlog=MOST)), "extra": KINDS["batch"]()}
    with hs.run(feeds, state_dir=tmp_path) as server:
        with produce(server) as out, ThreadPoolExecutor(1) as pool:
            main = pool.submit(train, server, "main")
            push(out, range(4))
            early = train(server, "extra", most=1)
            still = out.open("still", {"key": "-1"})  # lost, and ends later
            push(out, range(4, 160))
            assert eventually(lambda: lost(server) > 0)
            still.end()
            with connect(server, feed="extra", prefetch=1) as feed:
                early += [key for _ in range(2) for key in keys_of(next(feed))]
                before = lost(server)
                token = feed.snapshot()
                first = [keys_of(batch) for _, batch in zip(range(4), feed, strict=False)]
            after = lost(server)
            kill_worker(server)
            out.close_log()
            with connect(server, feed="extra", resume=token) as feed:
                again = [keys_of(batch) for batch in feed]
            assert again[: len(first)] == first and [-1] not in again
            whole = early + [key for keys in again for key in keys]
            assert max(Counter(whole).values()) == 1
            # Retention may delete sequences after the snapshot, which holds them for this feed.
            assert len(whole) + lost(server) == 161 and 0 < before <= lost(server) <= after
            assert len(main.result(PATIENCE_S)) == 161


def test_a_failed_feed_holds_no_file_and_goes_on_without_what_it_lost(tmp_path: Path):
    """It cuts sequences before they end, so one is open, and partly trained, when it fails."""
    broken, x = tmp_path / "broken", np.zeros(EXAMPLE // 4, np.float32)

    def check(sequences: dict[str, Any], context: object) -> dict[str, Any]:
        if broken.exists():
            raise ValueError("this function is broken")
        return sequences

    extra = segments(optional(), batch_size=1, capacity=4, num_unroll=EXAMPLE // 4)
    made = {"x": hs.fixed("float32", x.shape)}
    feeds = {"main": plain(live(max_backlog=MOST)), "extra": extra.map_segments(check, schema=made)}
    given: dict[str, Any] = {"state_dir": tmp_path / "state"}
    with hs.run(feeds, **given) as server, produce(server) as out, ThreadPoolExecutor(1) as pool:
        main = pool.submit(train, server, "main", 320)
        out.open("-1", {"key": "-1"}).extend({"x": x})
        out.flush()
        assert train(server, "extra", most=1) == [-1]
        broken.touch()
        push(out, range(1))
        with pytest.raises(headrace.DataError, match="this function is broken"):
            train(server, "extra")
        push(out, range(1, 160))
        assert eventually(lambda: lost(server) > 0)
        before = lost(server)
        kill_worker(server)
        push(out, range(160, 320))
        assert eventually(lambda: lost(server) > before)
        broken.unlink()
        assert main.result(PATIENCE_S) == [*range(320)]
    with hs.run(feeds, **given) as server, produce(server) as out:
        still = out.open("-1", {"key": "-1"})
        still.extend({"x": x})
        still.end()
        push(out, range(320, 330))
        out.close_log()
        late = train(server, "extra")
        assert late[-10:] == [*range(320, 330)] and -1 not in late
        assert len({*late}) == len(late) == 331 - lost(server)
        assert train(server, "main") == [-1, *range(320, 330)]
