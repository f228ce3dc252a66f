"""A snapshot is all of a feed at one moment, and resumed trainers get exactly the same stream."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from tests.nursery import WarmPopen
from tests.patience import PATIENCE_S

from .serving import kill_worker, serving


def plain() -> Any:
    return hs.from_examples([{"x": i} for i in range(60)]).shuffle(seed=3).repeat(2).batch(4)


def bucketed() -> Any:
    lengths = [1 + i * 7 % 23 for i in range(80)]
    examples = [{"x": np.arange(n), "n": n, "i": i} for i, n in enumerate(lengths)]
    return (
        hs.from_examples(examples)
        .shuffle(seed=5)
        .bucket_by_sequence_length(
            "n", 4, [6, 12, 18], dynamic_pad=True, allow_smaller_final_batch=True
        )
    )


def taken(batch: Any) -> Any:
    """Do a step of training; return the batch, with states that only this step can have."""
    if isinstance(batch, headrace.Batch):
        return {name: batch[name].tolist() for name in batch}
    try:
        state = batch.state("s")
    except KeyError:  # of a feed without states
        return [list(batch.key), batch.sequences["v"].tolist()]
    rows = [batch.sequences["v"].tolist(), state.tolist(), batch.sequence.tolist()]
    batch.save_state("s", state + batch.sequences["v"].sum(axis=1)[:, None] + 1)
    return [list(batch.key), *rows]


def rest(feed: headrace.Feed) -> list[Any]:
    return [taken(batch) for batch in feed]


def joined(server: hs.Server, **options: Any) -> headrace.Feed:
    return headrace.connect(server.address, **{"prefetch": 0, "timeout": PATIENCE_S, **options})


def after_steps(feed: headrace.Feed, steps: int) -> Any:
    for _ in range(steps):
        taken(next(feed))
    return feed.snapshot()


def test_several_feeds_are_taken_back_at_one_start(tmp_path: Path):
    feeds = {"a": plain(), "b": plain()}
    tokens, expected = [], []
    with serving(feeds, state_dir=tmp_path) as server:
        for name in feeds:
            with joined(server, feed=name) as feed:
                tokens.append(after_steps(feed, 5))
                expected.append(rest(feed))
    with serving(feeds, state_dir=tmp_path, resume=tokens) as server:
        for name, one in zip(feeds, expected, strict=True):
            with joined(server, feed=name) as feed:
                assert rest(feed) == one


def test_other_numbers_of_workers_and_trainers_get_the_same_rows_once(tmp_path: Path):
    with serving(plain(), state_dir=tmp_path, partitions=3) as server:
        with joined(server, prefetch=3) as feed:
            token = after_steps(feed, 7)
            expected = sorted(x for batch in rest(feed) for x in batch["x"])
    with hs.run(plain(), state_dir=tmp_path, partitions=3, workers=3, resume=token) as server:
        with joined(server) as one:
            with joined(server, prefetch=2) as other:
                got = [x for feed in (one, other, one) for x in next(feed)["x"].tolist()]
            got += [x for batch in rest(one) for x in batch["x"]]
    assert sorted(got) == expected


def test_another_machine_finds_snapshots_at_the_url(tmp_path: Path):
    url = f"file://{tmp_path}/far"

    def of_files(directory: Path) -> Any:
        return hs.read_csv(f"{directory}/*.csv", {"x": hs.scalar("int64")}).batch(3)

    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    for part in range(2):
        (here / f"{part}.csv").write_text("x\n" + "\n".join(map(str, range(part, 40, 2))) + "\n")
    with serving(of_files(here), state_dir=tmp_path / "a", snapshots=url) as server:
        for _ in range(3):  # tokens of a first life must not be taken for those of the next
            with joined(server) as feed:
                token = after_steps(feed, 2)
        with joined(server) as feed:
            expected = rest(feed)
    shutil.copytree(here, there)
    shutil.rmtree(here)
    shutil.rmtree(tmp_path / "a")
    with serving(of_files(there), state_dir=tmp_path / "b", resume=token) as server:
        with joined(server) as feed:
            assert rest(feed) == expected
    with serving(of_files(there), state_dir=tmp_path / "c", snapshots=url) as server:
        with joined(server, resume=token) as feed:
            assert rest(feed) == expected


class Process:
    """A trainer in another process, which carries out commands."""

    CODE = """
import json, sys
import headrace

address, token = sys.argv[1:]
feed = headrace.connect(address, resume=json.loads(token), prefetch=0, timeout=60)
print("joined", flush=True)
for line in sys.stdin:
    try:
        print(json.dumps(next(feed)["x"].tolist()), flush=True)
    except headrace.HeadraceError as error:
        print(json.dumps(type(error).__name__), flush=True)
"""

    def __init__(self, address: str, token: Any) -> None:
        self.popen = WarmPopen(
            [sys.executable, "-c", self.CODE, address, json.dumps(token)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().strip()

    def step(self) -> Any:
        assert self.popen.stdin is not None
        self.popen.stdin.write("next\n")
        self.popen.stdin.flush()
        return json.loads(self.line())


@contextmanager
def process(address: str, token: Any) -> Iterator[Process]:
    one = Process(address, token)
    try:
        yield one
    finally:
        one.popen.kill()
        one.popen.communicate()


def test_a_group_takes_the_feed_back_once_and_one_that_comes_back_joins_it(tmp_path: Path):
    with hs.run(plain(), state_dir=tmp_path) as server:
        with joined(server) as feed:
            token = after_steps(feed, 3)
            expected = [batch["x"] for batch in rest(feed)]
        with process(server.address, token) as one:
            assert one.line() == "joined"
            assert one.step() == expected[0]
            with process(server.address, token) as other:
                assert other.line() == "joined"
                assert other.step() == expected[1]
                one.step()  # commits its last batch
                other.popen.kill()
                other.popen.wait()
                with process(server.address, token) as back:
                    assert back.line() == "joined"
                    assert back.step() in (expected[1], expected[3])
        # All members have left: the next trainer begins a new group.
        with process(server.address, token) as alone:
            assert alone.line() == "joined"
            assert alone.step() == expected[0]


def test_trainers_of_before_are_told_that_their_work_is_undone(tmp_path: Path):
    with serving({"a": plain(), "b": bucketed()}, state_dir=tmp_path) as server:
        beside = joined(server, feed="b")
        before = taken(next(beside))
        old = joined(server, feed="a")
        token = after_steps(old, 2)
        next(old)
        with joined(server, resume=token) as feed:
            expected = rest(feed)
        with pytest.raises(headrace.FeedRewound, match=token["snapshot"]):
            rest(old)
        old.close()
        others = [before, *rest(beside)]  # of another feed: nothing lost, nothing twice
        beside.close()
    assert len(expected) == 28
    seen = sorted(i for batch in others for i in batch["i"])
    assert seen == list(range(80))


def test_what_can_not_be_gone_on_from_is_refused_and_nothing_is_touched(tmp_path: Path):
    absent = {"headrace": 1, "feed": "default", "snapshot": "20260102T030405Z-0123456789ab"}
    with serving(plain(), state_dir=tmp_path) as server:
        with joined(server) as feed:
            expected = [taken(next(feed))]
            with pytest.raises(headrace.ServerError, match="there is no snapshot 2026"):
                joined(server, resume=absent)
            with pytest.raises(ValueError, match="a token of feed 'x'; this one is 'default'"):
                feed.load_state_dict({**absent, "feed": "x"})
            with pytest.raises(headrace.UnknownFeed):
                joined(server, resume={**absent, "feed": "x"})
            expected += rest(feed)
    with serving(plain()) as server, joined(server) as feed:
        with pytest.raises(headrace.ServerError, match="has no state directory"):
            joined(server, resume=absent)
        with pytest.raises(headrace.ServerError, match="nothing to take a snapshot of"):
            feed.snapshot()
        with pytest.raises(headrace.ServerError, match="nothing to take a snapshot of"):
            server.snapshot()
        assert rest(feed) == expected
    with pytest.raises(ValueError, match="a token of feed 'x'; this server has default"):
        serving(plain(), state_dir=tmp_path, resume={**absent, "feed": "x"})
    with pytest.raises(headrace.ServerError, match="there is no snapshot"):
        serving(plain(), state_dir=tmp_path, resume=absent)
    for given in ({"resume": absent}, {"snapshots": "file:///tmp/x"}, {"keep_snapshots": 3}):
        with pytest.raises(ValueError, match="needs a state_dir"):
            serving(plain(), **given)


def test_another_pipeline_is_refused_to_a_trainer_and_the_feed_goes_on(tmp_path: Path):
    with serving(plain(), state_dir=tmp_path / "a", snapshots=f"file://{tmp_path}/far") as server:
        token = server.snapshot()
    other = hs.from_examples([{"x": i} for i in range(60)]).batch(5)
    options = {"state_dir": tmp_path / "b", "snapshots": f"file://{tmp_path}/far"}
    with serving(other, **options) as server, joined(server) as feed:
        before = taken(next(feed))["x"]
        with pytest.raises(headrace.ServerError, match="batch_size was 4 and is 5"):
            joined(server, resume=token)
        assert before + [x for batch in rest(feed) for x in batch["x"]] == list(range(60))


def test_a_snapshot_outlives_the_death_of_a_worker_that_makes_it(tmp_path: Path):
    with hs.run(plain(), state_dir=tmp_path, partitions=2, workers=2) as server:
        with joined(server) as feed:
            taken(next(feed))
            kill_worker(server, 1)
            token = after_steps(feed, 2)
            expected = sorted(x for batch in rest(feed) for x in batch["x"])
        with joined(server, resume=token) as feed:
            assert sorted(x for batch in rest(feed) for x in batch["x"]) == expected


def test_the_command_takes_one_of_a_server_that_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    from headrace_server.cli import main

    with serving(plain(), state_dir=tmp_path, http="127.0.0.1:0") as server:
        with joined(server) as feed:
            taken(next(feed))
            feed.commit()
            assert main(["snapshot", "--http", str(server.http_address)]) == 0
            token = json.loads(capsys.readouterr().out)
            expected = rest(feed)
        assert main(["snapshot", "--http", str(server.http_address), "--feed", "x"]) == 2
        with joined(server, resume=token) as feed:
            assert rest(feed) == expected


def test_an_operator_takes_one_and_a_service_that_starts_again_goes_on(tmp_path: Path):
    (tmp_path / "feeds.py").write_text(
        "import headrace_server as hs\n"
        "numbers = hs.from_examples([{'x': i} for i in range(60)]).batch(4)\n"
    )

    @contextmanager
    def served(*options: str) -> Iterator[str]:
        command = [sys.executable, "-m", "headrace_server.cli", "serve", "feeds.py:numbers"]
        where = ["--state-dir", "state", "--bind", "tcp://127.0.0.1:*"]
        popen = WarmPopen(
            [*command, *where, *options], cwd=tmp_path, stdout=subprocess.PIPE, text=True
        )
        try:
            assert popen.stdout is not None
            yield popen.stdout.readline().split()[-1]
        finally:
            popen.terminate()
            popen.communicate()

    with served() as address, headrace.connect(address, prefetch=0, timeout=PATIENCE_S) as feed:
        assert next(feed)["x"].tolist() == [0, 1, 2, 3]
        (tmp_path / "token.json").write_text(json.dumps(feed.snapshot()))
        assert next(feed)["x"].tolist() == [4, 5, 6, 7]
        assert next(feed)["x"].tolist() == [8, 9, 10, 11]
    for first in (4, 8, 12):  # back once, and on from there
        with served("--resume", "token.json") as address:
            with headrace.connect(address, prefetch=0, timeout=PATIENCE_S) as feed:
                assert next(feed)["x"].tolist()[0] == first


def test_old_snapshots_are_removed_aloud_and_the_one_that_a_feed_went_on_from_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def snapshots(feed: headrace.Feed, count: int) -> list[dict[str, Any]]:
        tokens = []
        for _ in range(count):
            next(feed)
            tokens.append(feed.snapshot())
        return tokens

    with hs.run(plain(), state_dir=tmp_path, keep_snapshots=2) as server:
        with headrace.connect(server.address, timeout=PATIENCE_S) as feed:
            tokens = snapshots(feed, 4)
        removed = [token["snapshot"] for token in tokens[:2]]
        assert all(f"snapshot {name} is removed" in caplog.text for name in removed[:1])
        with pytest.raises(headrace.ServerError, match=r"keep_snapshots=2, 0 keeps all"):
            headrace.connect(server.address, resume=tokens[0], timeout=PATIENCE_S)
        for _ in range(2):  # the second time after newer ones were taken
            with headrace.connect(server.address, resume=tokens[2], timeout=PATIENCE_S) as feed:
                snapshots(feed, 3)
        kept = sorted(path.name for path in (tmp_path / "snapshots/default").iterdir())
        assert len(kept) == 3 and tokens[2]["snapshot"] in kept
