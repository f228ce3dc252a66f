"""All members of a group of trainers get each batch once, despite deaths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import headrace
import headrace_server as hs
from tests.patience import PATIENCE_S
from tests.waiting import waits_end_with

from .processes import trainer
from .segment_streams import at_once
from .serving import connect, kill_worker, serving

_OF_A_GROUP: dict[str, Any] = {"group": "g", "members": 2}


def numbers(count: int) -> hs.Pipeline:
    return hs.from_examples([{"i": k} for k in range(count)]).shuffle(seed=3).batch(4)


def read(
    server: hs.Server,
    kills: int | None = None,
    at: int = 5,
    begun: Callable[[], object] = lambda: None,
    **options: Any,
) -> list[tuple[int, int, list[int]]]:
    """Return partition, number and rows of each batch; kill a worker at one step."""
    got = []
    with connect(server, **options) as feed:
        for step, batch in enumerate(feed):
            got.append((batch.partition, batch.number, batch["i"].tolist()))
            begun()
            if kills is not None and step == at:
                kill_worker(server, kills)
    return got


def rows_of(*streams: list[tuple[int, int, list[int]]]) -> list[int]:
    return sorted(i for stream in streams for *_, rows in stream for i in rows)


@pytest.mark.parametrize("prefetch", [0, 3])
def test_each_batch_goes_to_all_members_or_to_another_trainer(prefetch: int):
    has_some = Event()  # else the other member may take all

    def read_beside() -> list[tuple[int, int, list[int]]]:
        assert has_some.wait(PATIENCE_S)
        return read(server, prefetch=prefetch)

    with serving(numbers(240)) as server:
        one, two, other = at_once(
            [
                lambda: read(server, begun=has_some.set, prefetch=prefetch, **_OF_A_GROUP),
                lambda: read(server, prefetch=2 * prefetch, **_OF_A_GROUP),
                read_beside,
            ]
        )
        assert server.wait(PATIENCE_S)
        assert server.stats()["default"]["batches"] == 60
    assert one == two and one
    assert rows_of(one, other) == list(range(240))


def test_members_of_each_rank_take_the_same_batches_of_all_workers():
    with hs.run(numbers(256), workers=2, partitions=3) as server:
        ranks = [{"group": f"g{rank}", "members": 2, "rank": rank} for rank in (0, 0, 1, 1)]
        streams = at_once(
            [
                lambda i=i, of=of: read(server, prefetch=1 + i, world_size=2, **of)
                for i, of in enumerate(ranks)
            ]
        )
        assert server.wait(PATIENCE_S)
    assert streams[0] == streams[1] and streams[2] == streams[3]
    assert len(streams[0]) == len(streams[2]) and streams[0] != streams[2]
    assert len(rows_of(streams[0], streams[2])) == len(set(rows_of(streams[0], streams[2])))


def test_a_member_that_is_killed_comes_back_and_gets_what_it_has_not_committed():
    group = ["--group", "g", "--members", "2"]
    with serving(numbers(60), lease_ttl_s=2) as server:
        with trainer(server.address, "--hold", "3", *group) as killed:
            one, first, two = at_once(
                [
                    lambda: read(server, **_OF_A_GROUP),
                    lambda: (killed.wait_for("holding"), killed.rows(), killed.kill())[1],
                    lambda: _again(server, killed, group),
                ]
            )
        assert server.wait(PATIENCE_S)
    assert first[:2] + two == [rows for *_, rows in one] and two[0] == first[2]
    assert rows_of(one) == list(range(60))


def _again(server: hs.Server, killed: Any, group: list[str]) -> list[list[int]]:
    """Return the batches of a trainer that comes when another has been killed."""
    killed.wait()
    with trainer(server.address, *group) as process:
        assert process.finish() == 0, process.output()
        return process.rows()


def test_a_worker_is_killed_and_nothing_comes_twice():
    with hs.run(numbers(240), workers=2, partitions=3) as server:
        of_a_rank = {"rank": 0, "world_size": 1, **_OF_A_GROUP}
        one, two = at_once(
            [
                lambda: read(server, 0, prefetch=2, **of_a_rank),
                lambda: read(server, 1, 15, prefetch=0, **of_a_rank),
            ]
        )
        assert server.wait(PATIENCE_S)
    assert one == two and rows_of(one) == list(range(240))


def test_the_only_worker_is_killed_beside_another_trainer():
    with hs.run(numbers(240)) as server:
        one, two, other = at_once(
            [
                lambda: read(server, 0, **_OF_A_GROUP),
                lambda: read(server, prefetch=0, **_OF_A_GROUP),
                lambda: read(server),
            ]
        )
        assert server.wait(PATIENCE_S)
    assert one == two and rows_of(one, other) == list(range(240))


def test_a_server_is_started_again_and_the_group_goes_on_with_it(tmp_path: Path):
    group = ["--group", "g", "--members", "2", "--pause", "0.01"]
    server = serving(numbers(120), state_dir=tmp_path)
    try:
        near = trainer(server.address, *group)
        far = trainer(server.address, "--far", "--prefetch", "0", *group)
        with near, far:
            for _ in range(8):
                near.wait_for("batch")
            address = server.address
            server.close()
            server = serving(numbers(120), state_dir=tmp_path, bind=address)
            assert (near.finish(), far.finish()) == (0, 0), near.output() + far.output()
        assert server.wait(PATIENCE_S)
    finally:
        server.close()
    assert near.rows() == far.rows()
    assert sorted(i for rows in near.rows() for i in rows) == list(range(120))


def test_all_members_leave_and_others_get_what_they_had_not_committed():
    with serving(numbers(40)) as server:

        def some() -> list[list[int]]:
            options = {"timeout": PATIENCE_S, "commit": "explicit", **_OF_A_GROUP}
            with headrace.connect(server.address, **options) as feed:
                batches = [next(feed) for _ in range(3)]
                feed.commit(batches[:2])
                return [batch["i"].tolist() for batch in batches]

        one, two = at_once([some, some])
        assert one == two
        rest = read(server)
    assert rows_of(rest) == sorted(set(range(40)) - {i for rows in one[:2] for i in rows})


def test_the_deadline_names_how_many_members_are_there():
    with serving(numbers(8), lease_ttl_s=1) as server:
        with connect(server, group="g", members=3) as feed:
            there = "1 of 3 members of group 'g'"
            with waits_end_with(there), pytest.raises(headrace.DeadlineExceeded, match=there):
                next(feed)


def test_a_group_that_can_not_be_is_refused():
    lengths = [{"key": b"k%d" % i, "x": [0.0] * 5} for i in range(4)]
    columns = {"key": hs.scalar("bytes"), "x": hs.sequence("float32")}
    segments = hs.from_examples(lengths, columns).batch_sequences_with_states(
        input_key="key",
        input_sequences=["x"],
        input_context=[],
        initial_states={"n": hs.zeros((), "int64")},
        num_unroll=2,
        batch_size=2,
    )
    with serving({"plain": numbers(40), "segments": segments}) as server:

        def refused(text: str, **options: Any) -> None:
            with pytest.raises(headrace.HeadraceError, match=text):
                connect(server, **options)

        text = "group='g': feed 'segments' is of segments, so its members need rank="
        refused(text, feed="segments", **_OF_A_GROUP)
        joining = [lambda: headrace.connect(server.address, feed="plain", **_OF_A_GROUP)] * 2
        one, two = at_once(joining)
        with one, two:
            full = "all of its members=2 are there already"
            at_once(
                [
                    lambda: refused("members=3 differs", feed="plain", group="g", members=3),
                    lambda: refused(full, feed="plain", **_OF_A_GROUP),
                ]
            )
    with hs.run(numbers(40), workers=2) as server:
        refused("its members need rank= and world_size=", **_OF_A_GROUP)
