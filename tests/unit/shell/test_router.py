"""The router between workers that die and the desks: with real sockets, one step at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from headrace_proto.channel import Channel
from headrace_server import pipeline as hs
from headrace_server.shell.config import FeedConfig, RunConfig
from headrace_server.shell.router import Router
from headrace_server.shell.worker_messages import (
    FROM_ROUTER,
    FROM_WORKER,
    Assign,
    Close,
    Failed,
    Finished,
    Made,
    Opened,
    Settled,
    Up,
)

TRAINER = 1


class Pipe:
    """A parent's pipe that only remembers."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []

    def fileno(self) -> int:
        return -1

    def read_orders(self) -> list[dict[str, Any]]:
        return []

    def tell(self, event: str, **values: Any) -> None:
        self.told.append((event, values))


class Life:
    """One life of worker 0, as the router sees it."""

    def __init__(self, bench: Bench, life: int) -> None:
        self._bench, self._life = bench, life
        self.channel = Channel.connect(bench.directory / "workers", [b"0-%d" % life])

    def say(self, message: object, *payload: bytes) -> None:
        self.channel.send([FROM_WORKER.encode(message), *payload])
        self._bench.router._hear_workers_out()
        self._bench.router._act()

    def make(self, feed: str, number: int, segment: int = 0) -> None:
        name = f"slab-0-{self._life}-{segment}"
        (self._bench.directory / name).touch()
        block = Made(feed, 0, number, 4, name, 0, 32, [[0, 32, [4]]], {}, {})
        self.say(block, b"cursor %d" % number)

    def hear(self) -> list[tuple[Any, list[bytes]]]:
        """All that came since."""
        return [
            (FROM_ROUTER.decode(header), payload) for header, *payload in self.channel.receive()
        ]


class Bench:
    """A router of feeds with one partition each, a worker, and one trainer that takes all."""

    def __init__(self, directory: Path, feeds: tuple[str, ...]) -> None:
        declaration = hs.from_examples([{"i": 1}]).batch(4).declaration()
        configs = tuple(FeedConfig(name, declaration, (), 1) for name in feeds)
        self.directory = directory
        self.pipe = Pipe()
        run = RunConfig(configs, str(directory), ("tcp://127.0.0.1:*",), workers=2, max_ahead=4)
        self.router = Router(run, self.pipe)  # type: ignore[arg-type]
        self.router.bind()
        self._lives: list[Life] = []
        for desk in self.router._desks.values():
            desk.dispatcher.join(TRAINER, 0.0)
            desk.dispatcher.window(TRAINER, 60)

    def life(self, number: int) -> Life:
        life = Life(self, number)
        self._lives.append(life)
        life.say(Up(0, number))
        return life

    def open(self, number: int) -> Life:
        life = self.life(number)
        for feed in self.router._desks:
            life.say(Opened(feed, 0, [["i", "int64", [4]]]))
        return life

    def commit(self, feed: str) -> None:
        """The trainer commits all that it holds of a feed."""
        dispatcher = self.router._desks[feed].dispatcher
        leases = dispatcher._leases.of_session(TRAINER)
        dispatcher.commit(TRAINER, tuple(lease.token for lease in leases))
        self.router._act()

    def segments(self) -> set[str]:
        return {path.name for path in self.directory.glob("slab-*")}

    def close(self) -> None:
        for life in self._lives:
            life.channel.close()
        self.router.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Any]:
    made: list[Bench] = []

    def make(*feeds: str) -> Bench:
        made.append(Bench(tmp_path, feeds))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_worker_that_comes_is_given_its_partitions_and_open_is_told_once(bench: Any):
    b = bench("a", "b")
    life = b.open(0)
    assert life.hear() == [(Assign("a", 0), [b""]), (Assign("b", 0), [b""])]
    assert [told for told in b.pipe.told if told[0] == "open"] == [("open", {})]


def test_the_next_life_continues_after_the_last_announcement_of_a_dead_one(bench: Any):
    b = bench("a")
    b.open(0).make("a", 0)
    b.router._obey({"order": "worker_died", "worker": 0, "life": 0})
    after = b.life(1)
    assert after.hear() == [(Assign("a", 0), [b"cursor 0"])]
    after.make("a", 1)
    after.say(Finished("a", 0, {"remainder": 3}))
    b.commit("a")
    assert b.pipe.told[-1] == (
        "over",
        {"feed": "a", "code": "", "text": "", "dropped": {"remainder": 3}},
    )


def test_a_worker_that_died_between_its_last_batch_and_its_last_word_is_finished_by_the_next(
    bench: Any,
):
    b = bench("a")
    b.open(0).make("a", 0)
    b.commit("a")
    assert "over" not in dict(b.pipe.told)
    b.router._obey({"order": "worker_died", "worker": 0, "life": 0})
    b.life(1).say(Finished("a", 0, {}))
    assert dict(b.pipe.told)["over"]["feed"] == "a"
    b.router._obey({"order": "worker_died", "worker": 0, "life": 1})
    assert b.life(2).hear() == []  # nothing is left to run


def test_what_a_dead_worker_says_after_its_successor_came_is_not_heard(bench: Any):
    """The router was held up.

    1. Life 0 announces batch 1 and dies; the announcement waits in its channel.
    2. Life 1 says that it is up, is heard first, and is told to go on after batch 0.
    3. The announcement of life 0 is heard.  Were it taken, batch 1 of life 1 would be a second one.
    """
    b = bench("a")
    before = b.open(0)
    before.make("a", 0)
    after = b.life(1)
    before.make("a", 1)
    after.make("a", 1)
    after.make("a", 2)
    b.router._obey({"order": "worker_died", "worker": 0, "life": 0})
    after.say(Finished("a", 0, {}))
    b.commit("a")
    assert dict(b.pipe.told)["over"]["code"] == ""
    told = [message for message, _ in after.hear() if isinstance(message, Settled)]
    freed = [name for message in told for name in message.freed]
    assert freed == [("a", 0, 1), ("a", 0, 2)]  # batch 0 was not its own


def test_segments_of_a_dead_worker_go_as_they_become_empty(bench: Any):
    b = bench("a")
    life = b.open(0)
    life.make("a", 0, segment=0)
    (b.directory / "slab-0-0-1").touch()  # made, and nothing in it was announced
    b.router._obey({"order": "worker_died", "worker": 0, "life": 0})
    assert b.segments() == {"slab-0-0-0"}
    b.commit("a")
    assert b.segments() == set()


def test_a_segment_in_which_two_feeds_have_batches_goes_with_the_last_of_them(bench: Any):
    b = bench("a", "b")
    life = b.open(0)
    life.make("a", 0)
    life.make("b", 0)
    b.router._obey({"order": "worker_died", "worker": 0, "life": 0})
    b.commit("a")
    assert b.segments() == {"slab-0-0-0"}
    b.commit("b")
    assert b.segments() == set()


def test_a_feed_that_fails_is_abandoned_and_the_others_go_on(bench: Any):
    b = bench("a", "b")
    life = b.open(0)
    life.hear()
    life.say(Failed("a", 0, "data", "bad"))
    assert life.hear() == [(Close("a", abandon=True), [])]
    life.make("b", 0)
    b.router._obey({"order": "worker_died", "worker": 0, "life": 0})
    assert b.life(1).hear() == [(Assign("b", 0), [b"cursor 0"])]
    over = [values for event, values in b.pipe.told if event == "over"]
    assert over == [{"feed": "a", "code": "data", "text": "bad", "dropped": {}}]


def test_idle_is_told_when_nothing_is_out_any_more(bench: Any):
    b = bench("a")
    life = b.open(0)
    life.make("a", 0)
    b.router._obey({"order": "pause"})
    life.make("a", 1)
    assert "idle" not in dict(b.pipe.told)
    b.commit("a")
    assert b.pipe.told.count(("idle", {})) == 1
    assert b.router._desks["a"].dispatcher.leased == 0


def test_an_address_that_is_taken_is_named(bench: Any, tmp_path: Path):
    b = bench("a")
    other = tmp_path / "other"
    other.mkdir()
    taken = b.router._public.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
    run = RunConfig(b.router._config.feeds, str(other), (taken,))
    second = Router(run, Pipe())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"bind='{taken}': Address already in use"):
        second.bind()
    second.close()
    assert os.listdir(other) in ([], ["workers"])
