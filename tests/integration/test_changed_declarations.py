"""A feed whose declaration was changed while no server ran gives each row once, or is refused.

Changes are drawn: shapes, batch sizes, epochs, order, partitions and stages.  Trainers commit some
batches of each server, in any order, and the last one takes the rest.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace
import headrace_server as hs
from tests.patience import PATIENCE_S

ROWS = 60
SHAPES = ("batch", "bucket", "pack", "segments", "lanes", "batch", "bucket")
#: Options of a drawn feed; all examples of one are in its batches, also at the end.
Options = dict[str, Any]


def keep(example: dict[str, Any]) -> bool:
    return bool(example["i"] % 7)


def same(example: dict[str, Any]) -> dict[str, Any]:
    return example


def numbers(of: Options) -> range:
    return range(1, of["rows"] + 1)  # 0 is padding


def declared(of: Options) -> hs.Pipeline:
    examples = [{"i": i, "k": b"%d" % i, "x": [1.0] * (1 + i % 5)} for i in numbers(of)]
    features = {
        "i": hs.scalar("int64"),
        "k": hs.scalar("bytes"),
        "x": hs.sequence("float32"),
    }
    feed = hs.from_examples(examples, features).shuffle(seed=of["seed"]).repeat(of["epochs"])
    if of["filtered"]:
        feed = feed.filter(keep)
    if of["mapped"]:
        feed = feed.map(same)
    if of["shape"] == "batch":
        return feed.select(["i"]).batch(of["batch_size"], allow_smaller_final_batch=True)
    if of["shape"] == "bucket":
        sizes = [of["batch_size"], of["batch_size"] + 1]
        return feed.bucket_by_sequence_length(
            "x", sizes, [3], allow_smaller_final_batch=True, dynamic_pad=True
        )
    if of["shape"] == "pack":
        return feed.select(["i", "x"]).pack(8, of["batch_size"], allow_smaller_final_batch=True)
    return feed.batch_sequences_with_states(
        input_key="k",
        input_sequences=["x"],
        input_context=["i"],
        input_length=None,
        initial_states={"s": hs.zeros((1,), "float32")},
        num_unroll=2,
        batch_size=of["batch_size"],
        capacity=of["capacity"],
        allow_small_batch=True,
        pad=True,
        order="lanes" if of["shape"] == "lanes" else "arrival",
    )


def first_options(draw: random.Random) -> Options:
    return {
        "rows": draw.choice([ROWS, 4 * ROWS]),
        "seed": 3,
        "epochs": draw.choice([1, 2]),
        "filtered": draw.random() < 0.3,
        "mapped": draw.random() < 0.3,
        "shape": draw.choice(SHAPES),
        "batch_size": draw.choice([1, 3, 5, 16]),
        "capacity": 32,
        "partitions": draw.choice([1, 2, 3]),
    }


CHANGES: dict[str, Callable[[random.Random, Options], Any]] = {
    "batch_size": lambda draw, of: draw.choice([1, 2, 5, 6, 16, 20]),
    "epochs": lambda draw, of: draw.choice([1, 2, 3]),
    "shape": lambda draw, of: draw.choice(SHAPES),
    "seed": lambda draw, of: draw.choice([3, 4]),
    "filtered": lambda draw, of: not of["filtered"],
    "mapped": lambda draw, of: not of["mapped"],
    "partitions": lambda draw, of: draw.choice([1, 2, 3]),
    "capacity": lambda draw, of: draw.choice([20, 32, 64]),
    "rows": lambda draw, of: draw.choice([of["rows"], ROWS + 5]),
}


def expected(of: Options) -> Counter[tuple[int, int]]:
    """Return how often each example comes, by its number and segment."""
    rows = [i for i in numbers(of) if keep({"i": i}) or not of["filtered"]]
    segmented = of["shape"] in ("segments", "lanes")
    counted = [(i, at) for i in rows for at in range((2 + i % 5) // 2 if segmented else 1)]
    return Counter(counted * of["epochs"])


def rows_of(batch: Any, shape: str) -> list[tuple[int, int]]:
    """Return the examples of a batch, each with the segment that is here."""
    if shape in ("segments", "lanes"):
        of_rows = (a.tolist() for a in (batch.context["i"], batch.sequence, batch.valid))
        return [(i, segment) for i, segment, valid in zip(*of_rows, strict=True) if valid]
    return [(i, 0) for i in batch["i"].reshape(-1).tolist() if i]


def commit(batch: Any, of: Options) -> list[tuple[int, int]]:
    if of["shape"] in ("segments", "lanes"):
        batch.save_state("s", batch.state("s"))  # which commits it
    else:
        batch.commit()
    return rows_of(batch, of["shape"])


def train(server: hs.Server, of: Options, draw: random.Random) -> list[tuple[int, int]]:
    """Take some batches and commit some of them, in any order; return the rows of these."""
    done = []
    with connect(server, prefetch=draw.choice([0, 2])) as feed:
        for _ in range(draw.randrange(1, 4)):
            taken = (next(feed, None) for _ in range(draw.randrange(1, 4)))
            held = [batch for batch in taken if batch is not None]
            if of["shape"] in ("batch", "bucket", "pack") and draw.random() < 0.2:
                with contextlib.suppress(ValueError):  # all batches were made before
                    feed.set_batch_size(draw.choice([2, 6]))
            draw.shuffle(held)
            for batch in held[: draw.choice([1, len(held)])]:
                done += commit(batch, of)
    if draw.random() < 0.2:
        os.kill(server.pids["worker-0-0"], signal.SIGKILL)
    return done


def connect(server: hs.Server, **options: Any) -> headrace.Feed:
    return headrace.connect(server.address, commit="explicit", timeout=PATIENCE_S, **options)


def run(of: Options, state: Path, changed: bool) -> hs.Server:
    return hs.run(
        declared(of),
        workers=1,
        partitions=of["partitions"],
        state_dir=state,
        durability="process",
        allow_config_change=changed,
    )


def started(of: Options, state: Path) -> tuple[hs.Server | None, str]:
    """Return the server of a changed feed, or why there is none."""
    try:
        return run(of, state, changed=True), ""
    except headrace.ServerError as error:
        return None, str(error)


def plain(batch_size: int, rows: int = 200) -> hs.Pipeline:
    examples = [{"i": i} for i in range(rows)]
    return hs.from_examples(examples).batch(batch_size, allow_smaller_final_batch=True)


@pytest.mark.parametrize(("was", "done", "becomes"), [(5, 7, 6), (6, 7, 5), (16, 3, 32), (4, 0, 6)])
def test_another_batch_size_holds_from_the_first_row_that_is_not_done(was, done, becomes, tmp_path):
    with hs.run(plain(was), state_dir=tmp_path) as server, connect(server) as feed:
        for _ in range(done):
            next(feed).commit()
    changed = {"state_dir": tmp_path, "allow_config_change": True}
    for _ in range(2):  # the second server finds a partition that had both sizes
        with hs.run(plain(becomes), **changed) as server, connect(server, prefetch=0) as feed:
            batch = next(feed)
            assert batch["i"].tolist() == [*range(was * done, was * done + becomes)]
    with hs.run(plain(becomes), state_dir=tmp_path) as server, connect(server) as feed:
        rows = []
        for batch in feed:
            assert batch.rows == becomes or was * done + len(rows) + batch.rows == 200
            rows += batch["i"].tolist()
            batch.commit()
    assert rows == [*range(was * done, 200)]


def test_a_size_that_a_trainer_has_set_may_be_declared(tmp_path):
    rows: list[list[int]] = []
    with hs.run(plain(5, 2000), state_dir=tmp_path) as server:
        with headrace.connect(server.address, prefetch=0, timeout=PATIENCE_S) as feed:
            rows.append(next(feed)["i"].tolist())
            ((_, first),) = feed.set_batch_size(6).items()
            rows += (next(feed)["i"].tolist() for _ in range(first))
    changed = {"state_dir": tmp_path, "allow_config_change": True}
    with hs.run(plain(6, 2000), **changed) as server:
        with headrace.connect(server.address, timeout=PATIENCE_S) as feed:
            rows += (batch["i"].tolist() for batch in feed)
    assert [i for batch in rows for i in batch] == [*range(2000)]
    assert {len(batch) for batch in rows[first:-1]} == {6}


def test_a_snapshot_is_gone_on_from_with_another_batch_size(tmp_path):
    with hs.run(plain(5), state_dir=tmp_path) as server, connect(server, prefetch=0) as feed:
        next(feed).commit()
        token = feed.snapshot()
        next(feed).commit()
    changed = {"state_dir": tmp_path, "resume": token, "allow_config_change": True}
    with hs.run(plain(8), **changed) as server, connect(server, prefetch=0) as feed:
        assert next(feed)["i"].tolist() == [*range(5, 13)]


@pytest.mark.parametrize("seed", range(int(os.environ.get("HEADRACE_CHANGES", "16"))))
def test_each_row_comes_once_whatever_was_changed_or_the_start_is_refused(seed, tmp_path):
    draw = random.Random(seed)
    of = first_options(draw)
    done: list[tuple[int, int]] = []
    history = [dict(of)]
    with run(of, tmp_path, changed=False) as server:
        done += train(server, of, draw)
    for _ in range(draw.randrange(1, 4)):
        name = draw.choice(["batch_size", draw.choice([*CHANGES])])
        changed = {**of, name: CHANGES[name](draw, of)}
        server, refusal = started(changed, tmp_path)
        if server is None:
            assert "feed 'default' can not go on from the state in" in refusal
            assert "Undo that or use another state_dir" in refusal
            history.append({"refused": refusal})
            continue
        of = changed
        history.append(dict(of))
        with server:
            done += train(server, of, draw)
    with run(of, tmp_path, changed=False) as server, connect(server, prefetch=0) as feed:
        for batch in feed:
            done += commit(batch, of)
    assert Counter(done) == expected(of), history
