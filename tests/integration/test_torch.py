"""Feeds in loops of other libraries: DataLoader, StatefulDataLoader, Accelerate, several processes.

A run that is killed at any step and goes on from its checkpoint gives the losses, bit for bit, of
a run that nobody killed.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace_server as hs
from tests.nursery import warm_run
from tests.patience import TRAINING_PATIENCE_S

from .processes import Process
from .serving import dataset_of, serving

TRAINING = Path(__file__).with_name("training.py")
#: Modules of each loop that take seconds to import.
NEEDS = {
    "stateful": ["torch", "torchdata.stateful_dataloader"],
    "accelerate": ["torch", "accelerate"],
    "lightning": ["torch", "lightning"],
    "transformers": ["torch", "transformers.trainer"],
}


def plain() -> hs.Pipeline:
    rng = np.random.default_rng(1)
    rows = [{"x": rng.normal(size=2).astype("f4"), "labels": np.float32(i % 3)} for i in range(24)]
    return hs.from_examples(rows).shuffle(seed=5).repeat(2, across_batches=False).batch(4)


def sequences(count: int) -> hs.Pipeline:
    rng = np.random.default_rng(2)
    sizes = [2 + i % 7 for i in range(count)]
    return hs.from_examples(
        [
            {"key": b"%d" % i, "x": rng.normal(size=(n, 2)).astype("f4"), "labels": np.float32(i)}
            for i, n in enumerate(sizes)
        ]
    )


STATES: dict[str, Any] = {
    "input_key": "key",
    "input_sequences": ["x"],
    "input_context": ["labels"],
    "initial_states": {"h": hs.zeros((3,))},
    "num_unroll": 3,
    "batch_size": 4,
}


def segments() -> hs.Pipeline:
    twice = sequences(12).repeat(2, across_batches=False)
    return twice.batch_sequences_with_states(**STATES)


def lanes() -> hs.Pipeline:
    """States stay in the memory of the process that is killed."""
    twice = sequences(12).repeat(2, across_batches=False)
    return twice.batch_sequences_with_states(**STATES, order="lanes", state_placement="trainer")


FEEDS = {"plain": plain, "segments": segments, "lanes": lanes}


def losses(
    loop: str,
    address: str,
    feed: str,
    directory: Path,
    kill: int = 0,
    *,
    ends: int | None = None,
    **environment: str,
) -> dict[int, str]:
    """Train, and return the loss of each step; ``ends``: the exit code."""
    directory.mkdir(exist_ok=True)
    done = warm_run(
        *(TRAINING, loop, address, feed, directory, *([str(kill)] if kill else [])),
        cwd=directory,
        imports=NEEDS.get(loop, ["torch"]),
        **environment,
    )
    ends = (-9 if kill else 0) if ends is None else ends
    assert done.returncode == ends, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"step"')]
    return {line["step"]: line["loss"] for line in lines}


def _tools(*case: object) -> object:
    return pytest.param(*case, marks=pytest.mark.tools)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("feed", "kills", "loop"),
    [
        ("plain", [3], "stateful"),
        *(_tools("plain", [3, 6], loop) for loop in ("accelerate", "lightning", "transformers")),
        *(_tools("segments", [4], loop) for loop in NEEDS),
        _tools("lanes", [7], "lightning"),
    ],
)
def test_a_killed_run_goes_on_to_the_same_losses(feed, kills, loop, tmp_path):
    for name in NEEDS[loop]:
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            pytest.skip(f"no {name}")
    feeds = {f"{feed}-{kill}": FEEDS[feed]() for kill in (0, *kills)}
    with serving(feeds, state_dir=tmp_path / "state") as server:
        whole = losses(loop, server.address, f"{feed}-0", tmp_path / "whole")
        assert sorted(whole) == list(range(1, len(whole) + 1)) and len(whole) >= 12
        for kill in kills:
            where = loop, server.address, f"{feed}-{kill}", tmp_path / str(kill)
            before = losses(*where, kill)
            after = losses(*where)
            assert max(before) == kill and min(after) == (kill - 1) // 2 * 2 + 1
            assert list(after) == list(whole)[min(after) - 1 :]
            for trained in (before, after):
                assert trained == {step: whole[step] for step in trained}


# In this process


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture
def server(torch: Any, tmp_path: Path) -> Iterator[hs.Server]:
    rows = hs.from_examples([{"i": i} for i in range(12)])
    with serving({"a": rows.batch(2), "b": rows.batch(4)}, state_dir=tmp_path) as server:
        yield server


def rows_of(batches: Any) -> list[list[int]]:
    return [batch["i"].tolist() for batch in batches]


def test_a_dataset_goes_on_from_a_position_and_leaves_nothing_open(server):
    with dataset_of(server, "a") as dataset:
        assert "tcp://" in repr(dataset)
        batches = iter(dataset)
        first = rows_of(next(batches) for _ in range(2))
        position = dataset.state_dict()
        rest = rows_of(batches)
        assert first == [[0, 1], [2, 3]] and len(rest) == 4
        dataset.load_state_dict(position)
        assert rows_of(dataset) == rest
        other = dataset_of(server, "b")
        other.load_state_dict(position)
        with pytest.raises(ValueError, match="of feed 'a', and feed='b'"):
            iter(other)
        dataset.close()
        with pytest.warns(UserWarning, match=r"feed 'a' has no batch: .* \.repeat\(n, across_bat"):
            assert rows_of(dataset) == []  # it has connected again, to a feed that has ended
        assert rows_of(dataset) == []  # it warns once
        assert "'a'" in repr(dataset)


def test_a_dataset_restarts_its_feed_but_once_and_not_before_a_position(server):
    with dataset_of(server, "a", restart=True) as dataset:
        batches = iter(dataset)
        next(batches)
        position = dataset.state_dict()
        dataset.close()
        assert rows_of(dataset)[0] == [2, 3]
    with dataset_of(server, "a", restart=True) as dataset:
        assert rows_of(dataset)[0] == [0, 1]
    with dataset_of(server, "a", restart=True) as dataset:
        dataset.load_state_dict(position)
        assert rows_of(dataset)[0] == [2, 3]


def test_what_was_trained_is_committed_and_what_was_fetched_ahead_is_not(server):
    with dataset_of(server, "a", commit="explicit") as dataset:
        batches = iter(dataset)
        taken = [next(batches) for _ in range(4)]
        dataset.trained(taken[1])
        dataset.trained(taken[0].to("cpu"))
        position = dataset.state_dict()
        dataset.trained()
    with dataset_of(server, "a") as dataset:
        dataset.load_state_dict(position)
        assert rows_of(dataset)[0] == [4, 5]


@pytest.mark.tools
def test_workers_of_a_loader_are_refused(torch):
    from headrace.torch import FeedDataset

    dataset = FeedDataset("tcp://127.0.0.1:1")
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1)
    with pytest.raises(ValueError, match="num_workers=1: the workers of the server read"):
        next(iter(loader))


@pytest.mark.slow
def test_torchrun_starts_all_ranks_again_after_a_death_and_the_feed_ends():
    """Each attempt is a run of its own: what the one before had not committed is dealt anew.

    By default torchrun keeps its store, in which gloo then finds the addresses of dead ranks.
    """
    pipeline = hs.from_examples([{"i": k} for k in range(96)]).shuffle(seed=1).batch(4)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = [str(Path(__file__).with_name("torch_rank.py"))]
    with (
        hs.run(pipeline, workers=2) as server,
        Process(
            *torchrun,
            *["--max-restarts", "1"],
            *script,
            server.address,
            warm=False,
            TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
        ) as launched,
    ):
        assert launched.finish(240) == 0, launched.output()
        stats = server.stats()["default"]
    every, last = launched.events, [one for one in launched.events if one["attempt"] == 1]
    assert {event["attempt"] for event in every} == {0, 1}
    # a rank that died may have committed one batch more or less than the other of a partition
    left = stats["dropped"].get("incomplete_round", 0)
    assert stats["rows"] + left == 96 and left <= 16
    assert len({row for event in every for row in event["rows"]}) >= stats["rows"]
    rounds = max(event["step"] for event in last) + 1
    assert len(last) == 2 * rounds, "both ranks have all rounds of the last attempt"
    assert len({row for event in last for row in event["rows"]}) == 8 * rounds


def odd(row: Any) -> Any:
    if row["i"] == 9:
        raise ValueError("row 9 is odd")
    return row


@pytest.mark.usefixtures("torch")
def test_all_processes_of_a_group_get_the_batches_of_one(tmp_path):
    """Ragged rows and strings; states at the server, and at each process; an error of the feed."""
    x = hs.sequence("float32")
    rows = [{"i": k, "x": np.arange(k % 5, dtype="f4"), "s": f"row {k}"} for k in range(22)]
    declared = {"i": hs.scalar("int64"), "x": x, "s": hs.scalar("bytes")}
    source = hs.from_examples(rows, declared)
    long = [{"key": b"%d" % k, "x": np.full(2 + k % 7, k, "f4")} for k in range(20)]
    segments = functools.partial(
        hs.from_examples(long).batch_sequences_with_states,
        input_key="key",
        input_sequences=["x"],
        input_context=[],
        initial_states={"sum": hs.zeros(())},
        num_unroll=3,
        batch_size=4,
        allow_small_batch=True,
    )
    feeds = {
        "rows": source.batch(4, ragged=True, allow_smaller_final_batch=True),
        "arrival": segments(),
        "lanes": segments(order="lanes", state_placement="trainer"),
        "odd": source.map(odd).batch(4, ragged=True),
    }
    script = [str(Path(__file__).with_name("torch_group.py"))]
    imports = ["torch.distributed", "headrace.torch"]
    with hs.run(feeds) as server, contextlib.ExitStack() as stack:
        command = [*script, server.address, str(tmp_path / "meeting")]
        first, second = (
            stack.enter_context(Process(*command, rank, "2", *feeds, imports=imports))
            for rank in "01"
        )
        for each in (first, second):
            assert each.finish(TRAINING_PATIENCE_S) == 0, each.output()
    assert second.events == first.events
    events = {name: [one for one in first.events if one["feed"] == name] for name in feeds}
    shown = [event["shown"] for event in events["rows"][:-1]]
    assert [i for i, *_ in shown] == [[*range(k, min(k + 4, 22))] for k in range(0, 22, 4)]
    texts = [f"row {k}" for k in range(4, 8)]
    assert shown[1][1:] == [[0, 1, 2, 3, 0, 0, 1], [0, 4, 4, 5, 7], texts]
    for name in ("arrival", "lanes"):
        batches = [event["shown"] for event in events[name][:-1]]
        assert sum(sum(last) for _, _, last in batches) == 20, "each sequence ends once"
        for keys, states, _ in batches:
            parts = [key.replace("_of_", ":").split(":") for key in keys]
            assert states == [3 * int(number) * int(k) for number, _, k in parts]
    assert [events[name][-1]["event"] for name in feeds] == ["end", "end", "end", "error"]
    error = events["odd"][-1]
    assert error["kind"] == "DataError" and "row 9 is odd" in error["text"]
