"""A snapshot is all of a feed at one moment, and resumed trainers get exactly the same stream."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from tests.patience import PATIENCE_S

from .processes import Process, serve, trainer
from .serving import serving


def plain() -> Any:
    return hs.from_examples([{"x": i} for i in range(60)]).shuffle(seed=3).repeat(2).batch(4)


def taken(batch: Any) -> Any:
    return {name: batch[name].tolist() for name in batch}


def rest(feed: headrace.Feed) -> list[Any]:
    return [taken(batch) for batch in feed]


def joined(server: hs.Server, **options: Any) -> headrace.Feed:
    return headrace.connect(server.address, **{"prefetch": 0, "timeout": PATIENCE_S, **options})


def after_steps(feed: headrace.Feed, steps: int) -> Any:
    for _ in range(steps):
        taken(next(feed))
    return feed.snapshot()


def test_another_machine_finds_snapshots_at_the_url(tmp_path):
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


def test_a_group_takes_the_feed_back_once_and_one_that_comes_back_joins_it(tmp_path):
    with hs.run(plain(), state_dir=tmp_path / "state") as server:
        with joined(server) as feed:
            token = after_steps(feed, 3)
            expected = [batch["x"] for batch in rest(feed)]

        def begun(*more: str) -> Process:
            """Start a member; it has the batches that it printed, the last one in hand."""
            one = trainer(server.address, "--resume", json.dumps(token), "--prefetch", "0", *more)
            one.wait_for("holding")
            return one

        go_on = tmp_path / "go on"
        with begun("--hold", "1", "--until", str(go_on)) as one:
            assert one.rows() == expected[:1]
            with begun("--hold", "1") as other:
                assert other.rows() == expected[1:2]
                other.kill()
            with begun("--hold", "1") as back:
                assert back.rows()[0] in expected[1:3]
                back.kill()
            go_on.touch()
            assert one.finish() == 0 and sorted(one.rows()) == sorted(expected)
        # All members have left: the next trainer begins a new group.
        with begun("--hold", "1") as alone:
            assert alone.rows() == expected[:1]
            alone.kill()


def test_what_can_not_be_gone_on_from_is_refused_and_nothing_is_touched(tmp_path):
    absent = {"headrace": 1, "feed": "default", "snapshot": "20260102T030405Z-0123456789ab"}
    with serving(plain(), state_dir=tmp_path) as server:
        with joined(server) as feed:
            expected = [taken(next(feed))]
            with pytest.raises(headrace.ServerError, match="there is no snapshot 2026"):
                joined(server, resume=absent)
            with pytest.raises(headrace.UnknownFeed):
                joined(server, resume={**absent, "feed": "x"})
            expected += rest(feed)
    with pytest.raises(ValueError, match="a token of feed 'x'; this server has default"):
        serving(plain(), state_dir=tmp_path, resume={**absent, "feed": "x"})
    with pytest.raises(headrace.ServerError, match="there is no snapshot"):
        serving(plain(), state_dir=tmp_path, resume=absent)


def test_an_operator_takes_one_and_a_service_that_starts_again_goes_on(tmp_path):
    (tmp_path / "feeds.py").write_text(
        "import headrace_server as hs\n"
        "numbers = hs.from_examples([{'x': i} for i in range(60)]).batch(4)\n"
    )

    state = "feeds.py:numbers", "--state-dir", "state"
    process, address = serve(tmp_path, *state)
    with process, headrace.connect(address, prefetch=0, timeout=PATIENCE_S) as feed:
        assert next(feed)["x"].tolist() == [0, 1, 2, 3]
        (tmp_path / "token.json").write_text(json.dumps(feed.snapshot()))
        assert next(feed)["x"].tolist() == [4, 5, 6, 7]
        assert next(feed)["x"].tolist() == [8, 9, 10, 11]
        feed.commit()
    for first in (4, 8, 12):  # back once, and on from there
        process, address = serve(tmp_path, *state, "--resume", "token.json")
        with process, headrace.connect(address, prefetch=0, timeout=PATIENCE_S) as feed:
            assert next(feed)["x"].tolist()[0] == first
            feed.commit()


def test_old_snapshots_are_removed_aloud_and_the_one_that_a_feed_went_on_from_is_not(
    tmp_path, caplog
):
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


@pytest.mark.parametrize("commit", ["on_next", "explicit"])
def test_a_feed_goes_on_after_batches_that_are_skipped(commit):
    """They count as trained, over a snapshot too; fewer are left at the end."""
    with hs.run(hs.from_examples([{"i": i} for i in range(40)]).shuffle(seed=3).batch(4)) as server:
        with headrace.connect(server.address) as feed:
            whole = [batch["i"].tolist() for batch in feed]
    with (
        hs.run(hs.from_examples([{"i": i} for i in range(40)]).shuffle(seed=3).batch(4)) as server,
        headrace.connect(server.address, commit=commit) as feed,
    ):
        assert feed.skip(0) == 0
        first = next(feed)
        feed.commit(first)
        assert feed.skip(3) == 3 and feed.progress.batches == 4
        batch = next(feed)
        assert [first["i"].tolist(), batch["i"].tolist()] == [whole[0], whole[4]]
        feed.commit(batch)
        assert feed.skip(100) == 5 and feed.progress.fraction == 1


@pytest.mark.parametrize("placement", ["server", "trainer"])
def test_skipped_segments_keep_the_states_before_them(placement):
    rows = [{"k": f"{k}", "x": np.full(9, k, "f4")} for k in range(4)]
    pipeline = hs.from_examples(rows).batch_sequences_with_states(
        "k",
        ["x"],
        [],
        initial_states={"h": hs.zeros((2,))},
        num_unroll=3,
        batch_size=4,
        order="lanes",
        state_placement=placement,
    )
    with hs.run(pipeline) as server, headrace.connect(server.address) as feed:
        batch = next(feed)
        batch.save_state("h", batch.state("h") + 7)
        assert feed.skip(1) == 1
        batch = next(feed)
        assert batch.sequence.tolist() == [2] * 4 and (batch.state("h") == 7).all()
        batch.save_state("h", batch.state("h"))
        assert feed.skip(2) == 0
