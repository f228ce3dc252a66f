"""The flight of a feed: recorded through kills, listed, replayed, and parts of it left out."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from headrace_proto.errors import ServerError, UnknownFeed
from headrace_server.cli import main
from headrace_server.flight.feed_record import FeedRecord
from tests.children import children_of
from tests.nursery import WarmPopen, environment
from tests.patience import PATIENCE_S

from .processes import serve, trainer
from .segment_streams import at_once
from .serving import connect, kill_worker, serving

FEEDS = """\
import headrace_server as hs

def flat():
    return hs.from_examples([{"i": i} for i in range(120)]).shuffle(seed=3).batch(6)
"""
STATE = "h"


def flat(n: int = 120, seed: int = 3, epochs: int = 1) -> hs.Pipeline:
    return hs.from_examples([{"i": i} for i in range(n)]).shuffle(seed=seed).repeat(epochs).batch(6)


def bucketed() -> hs.Pipeline:
    """Return a feed with a sampler that has a state and repeats rows."""
    examples = [
        {"i": i, "w": 1.0 + i % 3, "x": np.full(1 + i * 7 % 11, i, np.float32)} for i in range(150)
    ]
    drawn = hs.from_examples(examples).shuffle(seed=5).weighted_resample("w", 1.2, seed=2)
    return drawn.bucket_by_sequence_length(
        "x",
        batch_size=4,
        bucket_boundaries=[4, 8],
        allow_smaller_final_batch=True,
        dynamic_pad=True,
    )


def segments(**options: Any) -> hs.Pipeline:
    examples = [
        {"key": f"k{i}", "x": np.arange(2 + i * 5 % 13, dtype=np.float32) + 100 * i, "c": i}
        for i in range(24)
    ]
    return hs.from_examples(examples).batch_sequences_with_states(
        input_key="key",
        input_sequences=["x"],
        input_context=["c"],
        input_length=None,
        initial_states={STATE: np.full(2, 0.5, np.float32)},
        num_unroll=3,
        batch_size=4,
        capacity=8,
        allow_small_batch=True,
        pad=True,
        **options,
    )


def seen(batch: Any) -> tuple[Any, ...]:
    """Return all that a trainer sees of a batch, as bytes."""
    names = (
        list(batch)
        if not hasattr(batch, "sequences")
        else [
            *(
                "@key",
                "@sequence",
                "@sequence_count",
                "@length",
                "@total_length",
                "@insertion_index",
            ),
            *("sequences:x", "context:c", "state:" + STATE),
        ]
    )
    if not hasattr(batch, "sequences") and "x" in names:
        names += ["@length", "@rate"]
    columns = [(name, batch.array(name)) for name in names]
    plain = [(n, a.shape, a.tolist() if a.dtype == object else a.tobytes()) for n, a in columns]
    bucket = batch.meta.get("bucket")
    return (bucket, *plain)


def train(server: hs.Server, upto: int | None = None, prefetch: int = 1) -> list[Any]:
    """Return every batch, with its rows and states."""
    out = []
    with connect(server, prefetch=prefetch) as feed:
        for batch in feed:
            out.append(((batch.partition, batch.number), batch.replayed, seen(batch)))
            if hasattr(batch, "sequences"):
                batch.save_state(STATE, batch.state(STATE) * 2 + batch.sequences["x"].sum())
            if len(out) == upto:
                break
    return out


def flight(state: Path, *arguments: str, capsys: Any) -> list[dict[str, Any]]:
    assert main(["flight", str(state), "--json", *arguments]) == 0
    flown: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["flown"]
    return flown


def contents(directory: Path) -> dict[str, str]:
    """Return bytes and time of every file of a directory."""
    return {
        str(path): f"{path.stat().st_mtime_ns} {hashlib.sha256(path.read_bytes()).hexdigest()}"
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_after_kill_9_of_everything_the_record_says_whom_each_batch_went_to(
    tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "feeds.py").write_text(FEEDS)
    state = tmp_path / "state"
    server, address = serve(tmp_path, "feeds.py:flat", "--state-dir", str(state))
    with server, trainer(address, "--hold", "9", "--prefetch", "2") as one:
        one.wait_for("holding")
        beside = flight(state, "--trainer", "1", capsys=capsys)  # while the server runs
        for pid in (*children_of(server.pid), server.pid):
            os.kill(pid, signal.SIGKILL)
        server.finish()
    flown = flight(state, "--trainer", "1", capsys=capsys)
    assert [batch["lease"]["fate"] for batch in beside[:8]] == ["committed"] * 8
    given = [[row["example"] for row in batch["rows"]] for batch in flown]
    assert given[:9] == one.rows() and len(given) in (9, 10, 11)
    assert [batch["lease"]["step"] for batch in flown] == list(range(1, len(flown) + 1))
    assert {batch["lease"]["fate"] for batch in flown[8:]} == {"out"}
    assert flown[0]["lease"]["host"].endswith(f":{one.pid}")
    assert flown[0]["rows"][0]["file"] == "examples"
    # The next life goes on, and its batches stand beside.
    with hs.run({"flat": flat()}, state_dir=state) as again:
        rest = train(again)
    later = flight(state, "--last", str(len(rest)), capsys=capsys)
    assert {batch["life"] for batch in later} == {2}
    assert [(batch["partition"], batch["number"]) for batch in later] == [at for at, _, _ in rest]


def test_each_end_of_a_lease_is_told(tmp_path: Path, capsys: Any) -> None:
    with hs.run(flat(), state_dir=tmp_path, lease_ttl_s=1.0) as server:
        with trainer(server.address, "--hold", "1", "--prefetch", "0") as held:
            held.wait_for("holding")
            held.signal(signal.SIGSTOP)
            with connect(server, prefetch=0) as feed:
                rows = [batch["i"].tolist() for batch in feed]
            held.signal(signal.SIGCONT)
            held.kill()
    flown = flight(tmp_path, "--trainer", "1", capsys=capsys)
    fates = {fate for _, fate, _ in flown[0]["lease"]["events"]}
    assert fates & {"expired", "left"} and not fates & {"committed"}
    (first,) = held.rows()
    assert first in rows
    batch = flight(tmp_path, "--batch", f"0:{flown[0]['number']}", capsys=capsys)
    assert [one["lease"]["session"] for one in batch] == [1, 2]
    assert batch[1]["lease"]["fate"] == "committed"


def test_a_worker_that_is_killed_leaves_no_gap(tmp_path: Path, capsys: Any) -> None:
    with hs.run(flat(600), state_dir=tmp_path) as server:
        taken = []
        with connect(server) as feed:
            for batch in feed:
                taken.append(batch["i"].tolist())
                if len(taken) == 20:
                    kill_worker(server)
    flown = flight(tmp_path, "--last", "1000", capsys=capsys)
    used = [batch for batch in flown if batch["lease"]["fate"] != "lost"]  # some were on their way
    assert [[row["example"] for row in batch["rows"]] for batch in used] == taken
    assert [batch["lease"]["step"] for batch in used] == list(range(1, 101))
    assert {batch["lease"]["session"] for batch in flown} == {1}


KINDS = {
    "plain": (flat, {}),
    "buckets": (bucketed, {}),
    "segments": (segments, {"record": "states"}),
    "lanes": (lambda: segments(order="lanes"), {"record": "states"}),
    "kept": (
        lambda: segments(order="lanes", state_placement="trainer"),
        {"record": "states"},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [1, 3])
def test_a_replay_is_the_same_to_the_byte_and_in_the_same_order(
    workers: int, kind: str, tmp_path: Path
) -> None:
    pipeline, options = KINDS[kind]
    # Where states stay with the trainer, a replay has one trainer's lanes, which are of one.
    partitions = 1 if kind == "kept" and workers == 1 else 5 if workers > 1 else 2
    options = {**options, "workers": workers, "partitions": partitions}
    with hs.run(pipeline(), state_dir=tmp_path, **options) as server:
        was = train_kept(server) if kind == "kept" else train(server)
    before = contents(tmp_path)
    with hs.replay(tmp_path, pipeline()) as server:
        again = train_kept(server) if kind == "kept" else train(server)
    assert contents(tmp_path) == before
    first = {(p, n): (1 + p % workers, p, n) for p, n in (at for at, _, _ in was)}  # life of each
    given = [(first[at], what) for at, _, what in was]
    replayed = [(at, what) for _, at, what in again]
    if workers > 1 and kind in ("segments", "lanes", "kept"):  # in the order of the hand-out
        flown = [lease.batch for lease in FeedRecord(tmp_path, "default").leases]
        assert [at for at, _ in replayed] == [(b.life, b.partition, b.number) for b in flown]
        assert sorted(replayed) == sorted(given)
    else:
        assert replayed == given
    assert all(replayed is None for _, replayed, _ in was)


@pytest.mark.parametrize("kind", KINDS)
def test_what_two_trainers_of_several_workers_got_is_replayed_trainer_by_trainer(
    kind: str, tmp_path: Path
) -> None:
    pipeline, options = KINDS[kind]
    options = {**options, "workers": 2, "partitions": 4}
    got = train_kept if kind == "kept" else train
    with hs.run(pipeline(), state_dir=tmp_path, **options) as server:
        both = at_once([lambda: got(server) for _ in range(2)])
    trainers = {lease.trainer for lease in FeedRecord(tmp_path, "default").leases}
    assert 1 <= len(trainers) <= 2  # the first may have got all before the other came
    for one in trainers:
        chosen = "{}/{}".format(*one.sessions[0])
        with hs.replay(tmp_path, pipeline(), trainer=chosen, committed=True) as server:
            again = [(at, what) for _, at, what in got(server)]
        (was,) = [mine for mine in both if again[0][1] in [what for _, _, what in mine]]
        given = [((1 + at[0] % 2, *at), what) for at, _, what in was]
        assert again == given if kind in ("plain", "buckets") else sorted(again) == sorted(given)


def train_kept(server: hs.Server) -> list[Any]:
    """Train where states stay with the trainer; return its states in each batch."""
    out = []
    with connect(server, prefetch=0) as feed:
        for batch in feed:
            state = np.array(batch.state(STATE))
            x = batch.sequences["x"]
            what = batch.key.tolist(), state.tobytes(), x.tobytes(), batch.first.tolist()
            out.append(((batch.partition, batch.number), batch.replayed, what))
            batch.save_state(STATE, state * 0.5 + x.sum(axis=1)[:, None])
    return out


def test_one_trainer_of_two_and_some_of_its_steps_are_replayed(tmp_path: Path) -> None:
    with (
        serving(flat(), state_dir=tmp_path) as server,
        connect(server, prefetch=0) as one,
        connect(server, prefetch=0) as two,
    ):
        rows: dict[int, list[list[int]]] = {1: [], 2: []}
        for session, feed in [(1, one), (2, two)] * 5:
            rows[session].append(next(feed)["i"].tolist())
    with hs.replay(tmp_path, flat(), trainer=2) as server:
        again = replayed_rows(server)
    assert again[:5] == rows[2]
    with hs.replay(tmp_path, flat(), trainer=1, steps=(2, 4)) as server:
        assert replayed_rows(server) == rows[1][1:4]


def replayed_rows(server: hs.Server) -> list[list[int]]:
    with connect(server, prefetch=0) as feed:
        return [batch["i"].tolist() for batch in feed]


def test_a_replay_goes_on_when_its_worker_dies(tmp_path: Path) -> None:
    with hs.run(flat(600), state_dir=tmp_path) as server:
        was = replayed_rows(server)
    with hs.replay(tmp_path, flat(600)) as server:
        again = []
        with connect(server, prefetch=0) as feed:
            for batch in feed:
                again.append(batch["i"].tolist())
                if len(again) == 5:
                    kill_worker(server)
    assert again == was


@pytest.mark.parametrize("dies", [False, True])
def test_a_replay_that_was_ended_stays_ended_when_its_worker_dies(
    tmp_path: Path, dies: bool
) -> None:
    with hs.run(flat(6000), state_dir=tmp_path) as server:
        was = replayed_rows(server)
    with hs.replay(tmp_path, flat(6000)) as server, connect(server) as feed:
        again = [next(feed)["i"].tolist() for _ in range(5)]
        server.end()
        if dies:
            kill_worker(server)
        again += [batch["i"].tolist() for batch in feed]
    assert again == was[: len(again)] and 5 <= len(again) < len(was)


def test_a_replay_with_states_fails_with_a_reason_when_its_worker_dies(tmp_path: Path) -> None:
    with hs.run(segments(), state_dir=tmp_path, partitions=2, record="states") as server:
        train(server)
    with hs.replay(tmp_path, segments()) as server:
        with connect(server) as feed:
            next(feed)
            kill_worker(server)
            with pytest.raises(headrace.ServerError, match="went the place of the replay"):
                for _ in feed:
                    pass


def test_a_window_of_batches_is_replayed_by_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "feeds.py").write_text(FEEDS)
    state = tmp_path / "state"
    with hs.run({"flat": flat()}, state_dir=state, partitions=2) as server:
        was = {at: what for at, _, what in train(server)}
    command = [sys.executable, "-m", "headrace_server.cli", "replay", str(state), "feeds.py:flat"]
    window = ["--from", "1:2", "--to", "0:5", "--exit-when-done", "--bind", "tcp://127.0.0.1:*"]
    process = WarmPopen(
        [*command, *window], stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment()
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said.startswith("headrace replays at "), said
        with headrace.connect(said.split()[-1], timeout=PATIENCE_S) as feed:
            again = [(batch.replayed, seen(batch)) for batch in feed]
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.communicate()
    ids = [(1, 2), (0, 3), (1, 3), (0, 4), (1, 4), (0, 5)]
    assert again == [((1, *at), was[at]) for at in ids]


def test_initial_states_of_a_feed_that_has_none_are_refused(tmp_path: Path) -> None:
    with serving(flat(), state_dir=tmp_path) as server:
        train(server)
    with pytest.raises(ValueError, match="states='initial' needs a feed of segments"):
        hs.replay(tmp_path, flat(), states="initial")


def test_segments_without_recorded_states_are_refused_or_begin_anew(tmp_path: Path) -> None:
    with serving(segments(), state_dir=tmp_path) as server:
        was = train(server)
    with pytest.raises(ServerError, match=r"record='states' records them.*states='initial' starts"):
        hs.replay(tmp_path, segments())
    with hs.replay(tmp_path, segments(), states="initial") as server:
        again = train(server)
    assert [what[:-1] for _, _, what in again] == [what[:-1] for _, _, what in was]
    for _, _, what in again:
        assert set(np.frombuffer(what[-1][2], np.float32).tolist()) == {0.5}


def test_another_pipeline_and_another_choice_are_refused(tmp_path: Path) -> None:
    with serving(flat(), state_dir=tmp_path) as server:
        train(server, 4)
    with pytest.raises(ServerError, match=r"order\.seed was 3 and is 4"):
        hs.replay(tmp_path, flat(seed=4))
    with pytest.raises(ValueError, match="no record tells of a hand-out"):
        hs.replay(tmp_path, flat(), first="0:4000")
    with pytest.raises(ValueError, match="first=3 is not PARTITION:NUMBER"):
        hs.replay(tmp_path, flat(), first=3)  # type: ignore[arg-type]
    with pytest.raises(
        ServerError, match="no recorded hand-out of feed 'default' fits first, last"
    ):
        hs.replay(tmp_path, flat(), first="0:2", last="0:1")
    with pytest.raises(ValueError, match="first and last are of all trainers"):
        hs.replay(tmp_path, flat(), first="0:1", trainer=1)
    with pytest.raises(UnknownFeed, match="no flight of feed 'other'"):
        hs.replay(tmp_path, flat(), feed="other")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        hs.replay(tmp_path, flat(), beside=str(tmp_path / "nowhere"))


def test_a_source_that_was_changed_under_the_record_is_noticed(tmp_path: Path) -> None:
    with serving(flat(), state_dir=tmp_path) as server:
        train(server)
    with (
        hs.replay(tmp_path, flat(seed=4), allow_config_change=True) as server,
        pytest.raises(headrace.DataError, match=r"is not read any more|has changed since"),
    ):
        train(server)


def test_nothing_is_recorded_where_it_is_off_or_where_there_is_no_state(tmp_path: Path) -> None:
    with serving(flat(), state_dir=tmp_path, record="off") as server:
        train(server)
    assert not list(tmp_path.rglob("flight"))
    with pytest.raises(ValueError, match="record='rows' needs a state_dir"):
        serving(flat(), record="rows")
    with pytest.raises(ValueError, match="record='all' is not one of rows, states, off"):
        serving(flat(), state_dir=tmp_path, record="all")


def test_a_feed_goes_on_when_nothing_can_be_recorded(tmp_path: Path) -> None:
    (tmp_path / "feeds" / "default").mkdir(parents=True)
    (tmp_path / "feeds" / "default" / "flight").write_text("no directory")
    with serving(flat(), state_dir=tmp_path) as server:
        assert len(train(server)) == 20


def examples_of(batches: Iterable[Any]) -> list[int]:
    columns = [{n: v for n, _, v in what[1:]} for _, _, what in batches]
    return [i for one in columns for i in np.frombuffer(one["i"], np.int64).tolist()]


def test_a_skipped_batch_is_passed_over_and_its_examples_are_out_of_later_epochs(
    tmp_path: Path, capsys: Any
) -> None:
    with serving(flat(epochs=2), state_dir=tmp_path / "whole") as server:
        whole = train(server)
    state = tmp_path / "state"
    with serving(flat(epochs=2), state_dir=state) as server:
        first = train(server, 5)
        token = server.snapshot()
        more = train(server, 4)
        with pytest.raises(ServerError, match="in use by another server"):
            main_raising("skip", str(state), "--batch", "0:7", "--reason", "a spike")
    poisoned = examples_of([more[2]])
    assert more[2][0] == (0, 7)
    assert main(["skip", str(state), "--batch", "0:7", "--reason", "a spike", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["examples"] == 6 and told["committed"] == ["1/0:7"]
    # As of the snapshot the batch was not committed: nothing moves, and it is not there.
    with serving(flat(epochs=2), state_dir=state, resume=token) as server:
        with headrace.connect(server.address) as feed, pytest.raises(TypeError, match="no length"):
            len(feed)
        rest = train(server)
        dropped = server.stats()["default"]["dropped"]
    numbers = [at[1] for at, _, _ in rest]
    assert numbers == [n for n in range(5, 39) if n != 7]
    known = {at: what for at, _, what in whole}
    assert all(what == known[at] for at, _, what in rest if at[1] < 20)
    assert not set(examples_of(rest)) & set(poisoned)
    counted = examples_of([*first, *rest])
    assert sorted(counted) == sorted([i for i in range(120) if i not in poisoned] * 2)
    assert dropped == {"skipped": 12}


def main_raising(*arguments: str) -> None:
    """Run the command, and raise the error that it would print."""
    from headrace_server.cli.frame import _read

    asked, options, _ = _read(list(arguments))
    asked.run(options)


def test_skipped_sequences_end_where_they_are_and_nothing_else_moves(
    tmp_path: Path, capsys: Any
) -> None:
    with serving(segments(), state_dir=tmp_path / "whole") as server:
        whole = train(server, prefetch=0)
    state = tmp_path / "state"
    with serving(segments(), state_dir=state) as server, connect(server, prefetch=0) as feed:
        first = [saved(next(feed)) for _ in range(5)]
        batch = next(feed)  # which is not saved, so its examples may not have begun
        gone = [*column(first[4], "@key"), *batch.array("@key").tolist()]
        assert (batch.array("@sequence") == 0).any()
    assert main(["skip", str(state), "--trainer", "1", "--steps", "5-6", "--reason", "NaN"]) == 0
    assert "have begun, and end where they are" in capsys.readouterr().out
    assert main(["skip", str(state), "--key", "k23", "--reason", "NaN"]) == 1
    assert "nothing of feed 'default' that is recorded" in capsys.readouterr().err
    key = gone[0].decode()
    assert main(["skip", str(state), "--key", key, "--reason", "NaN", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["known"] == 1
    with serving(segments(), state_dir=state) as server:
        rest = train(server, prefetch=0)
    cells = [cell for batch in (*first, *rest) for cell in cells_of(batch)]
    every = [cell for batch in whole for cell in cells_of(batch)]
    assert len(set(cells)) == len(cells)
    lost = {cell for cell in every if cell not in set(cells)}
    assert {key for key, *_ in lost} <= set(gone) and lost
    assert set(cells) <= set(every)  # keys, numbers, insertion indices


def saved(batch: Any) -> Any:
    batch.save_state(STATE, batch.state(STATE) + 1)
    return None, None, seen(batch)


def column(batch: Any, name: str) -> Any:
    return next(value for known, _, value in batch[2][1:] if known == name)


def cells_of(batch: Any) -> list[tuple[bytes, int, int]]:
    numbers = np.frombuffer(column(batch, "@sequence"), np.int32).tolist()
    indices = np.frombuffer(column(batch, "@insertion_index"), np.int64).tolist()
    return list(zip(column(batch, "@key"), numbers, indices, strict=True))
