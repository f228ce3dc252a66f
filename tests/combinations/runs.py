"""How feeds are trained, drawn at random: trainers or ranks, servers, and what interrupts them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from tests.combinations import functions
from tests.combinations.declarations import SHAPES, STAGES, Feed, drawn
from tests.reference import BUCKETS, ORDER, SAMPLERS


@dataclass(frozen=True)
class Run:
    """The trainers of a feed.  Steps and batches count from 1."""

    trainers: int = 1
    world: int = 0  # number of ranks; 0: trainers have none
    prefetch: int | str = 0
    hold: int = -1  # commit="explicit", with so many batches in hand; -1: commit="on_next"
    any_order: bool = False
    #: After so many batches of each a snapshot is taken, from which another server goes on …
    snapshot: int = 0
    #: … or all leave …
    parts: int = 0
    after: int = -1  # … for so many ranks (0: a trainer without rank); -1: for the same trainers
    #: The last trainer, a process of its own, kills itself with this batch "taken" (in hand),
    #: "saved" (its commit is on the way) or "done" (it has the answer).  A rank then comes back.
    dies: tuple[int, str] | None = None
    leaves: int = 0  # after so many batches the first trainer leaves, and connects anew
    #: After so many batches the first trainer calls "set_batch_size", "set_target_probs",
    #: "set_weights" or "drain" with this value.
    steers: tuple[int, str, Any] | None = None

    def __repr__(self) -> str:
        return _repr(self)

    @property
    def lone(self) -> bool:
        return self.trainers == 1 and not self.world

    @property
    def members(self) -> int:
        return self.world or self.trainers


@dataclass(frozen=True)
class Place:
    """The servers of a group of feeds, and what happens to them."""

    partitions: int = 1
    workers: int = 1
    servers: int = 1  # that share the feeds
    remote: bool = False  # trainers do not find the servers' memory, as on another host
    #: After so many batches of each feed: "worker" (it is killed), "server" (it is killed, and
    #: started again from its state directory) or "restart" (planned).
    events: tuple[tuple[int, str], ...] = ()
    workers_after: int = 0  # number of workers of a server that is started again
    copies: bool = False  # whether they keep a copy of remote files on a disk

    def __repr__(self) -> str:
        return _repr(self)

    @property
    def outlives(self) -> bool:
        """Whether a server is started again, so that it is a process with a state directory."""
        return any(what != "worker" for _, what in self.events)


@dataclass(frozen=True)
class Draw:
    """One feed, and how it is trained."""

    name: str
    feed: Feed
    run: Run

    def program(self, place: Place) -> str:
        """Return a program that trains and judges this feed alone."""
        return (
            "import numpy as np\n"
            "from tests.combinations.judge import Draw, Feed, Place, Run, check\n"
            f"feed = (\n    {self.feed}\n)\n"
            f"run = {self.run}\n"
            f"place = {place}\n"
            'if __name__ == "__main__":\n'
            f"    check(place, [Draw({self.name!r}, feed, run)])\n"
        )


def _repr(one: Any) -> str:
    """Return the call that makes a dataclass, without arguments that have their default."""
    given = [
        f"{f.name}={getattr(one, f.name)!r}"
        for f in fields(one)
        if getattr(one, f.name) != f.default
    ]
    return f"{type(one).__name__}({', '.join(given)})"


#: Laws that the server breaks, each with the draws that break it.
KNOWN: dict[str, Callable[[Place, Draw], bool]] = {
    "Where a server or a worker dies or is started again, states at trainers are not lost.": (
        lambda place, draw: bool(place.events) and draw.feed.states == "trainer"
    ),
}


def known(place: Place, draw: Draw) -> list[str]:
    """Return the laws that a draw is known to break."""
    return [law for law, applies in KNOWN.items() if applies(place, draw)]


def _place(chance: random.Random) -> Place:
    partitions = chance.choice((1, 2, 2, 3, 4))
    workers, remote = chance.randint(1, min(2, partitions)), chance.random() < 0.3
    place = Place(partitions, workers, remote=remote, copies=chance.random() < 0.5)
    kind = chance.random()
    if kind < 0.15:
        at = sorted(chance.sample(range(1, 9), chance.choice((1, 2))))
        return replace(place, events=tuple((n, "worker") for n in at))
    if kind < 0.3:
        what = chance.choice(("server", "restart"))
        workers = chance.randint(1, min(3, partitions))
        return replace(place, events=((chance.randint(1, 8), what),), workers_after=workers)
    if kind < 0.45 and partitions > 1:
        return replace(place, servers=2, workers=chance.choice((1, 1, 2)))
    return place


def _run(chance: random.Random, place: Place, feed: Feed) -> Run:
    run = Run(prefetch=chance.choice((0, 0, 0, 1, 3, "auto")))
    who = chance.random()
    if who < 0.2:
        run = replace(run, trainers=chance.choice((2, 3)))
    elif who < 0.55:
        run = replace(run, world=chance.choice((1, 2, 2, 3)))
    if not feed.states and chance.random() < 0.4:
        run = replace(run, hold=chance.choice((0, 0, 1, 2)) if not run.world else 0)
    if not feed.segmented and not feed.borders and not run.world and chance.random() < 0.2:
        run = replace(run, any_order=True)
    what = chance.random()
    # trainers meet for a snapshot, and one whose lanes are at an end would wait for the others'
    meets = run.trainers == 1 or not feed.lanes
    if what < 0.25 and meets and place.servers == 1 and not place.events:
        run = replace(run, snapshot=chance.randint(1, 6))
        if not run.lone and not run.world:
            run = replace(run, prefetch=0)
        if chance.random() < 0.2:
            run = replace(run, after=chance.choice((0, 1, 2, 3)))
    elif what < 0.33 and run.members > 1:
        when = ("taken", "done") if run.world else ("taken", "saved", "done")
        run = replace(run, dies=(chance.randint(1, 5), chance.choice(when)))
    elif what < 0.45 and not run.world:
        run = replace(run, leaves=chance.randint(1, 6))
    elif what < 0.53:
        run = replace(run, parts=chance.randint(1, 6), after=chance.choice((0, 1, 2, 3)))
    if chance.random() < 0.2:
        run = replace(run, steers=_steers(chance, feed, run))
    return run


def _steers(chance: random.Random, feed: Feed, run: Run) -> tuple[int, str, Any]:
    """Draw a change of the feed before a snapshot or a parting, if there is any."""
    step = chance.randint(1, run.snapshot or run.parts or 6)
    shape = feed.shape
    if weights := _other_weights(feed):
        return step, "set_weights", {name: chance.choice((0.2, 1.0, 5.0)) for name in weights}
    if any(name in SAMPLERS for name, _ in feed.calls) and chance.random() < 0.6:
        target = chance.choice(([0.2, 0.3, 0.5], [0.1, 0.1, 0.8], [0.0, 0.5, 0.5]))
        return step, "set_target_probs", target
    fixed = feed.segmented and (feed.lanes or run.world or run.after > 0)
    if fixed or "max_padded_elements" in shape or chance.random() < 0.3:
        # work on segments in hand would be refused after cancel=True
        return step, "drain", not feed.segmented and chance.random() < 0.4
    size = shape["batch_size"]
    if isinstance(size, list) and feed.calls[0][1].get("by") != "batch":
        return step, "set_batch_size", chance.choice((5, [3, 1, 4]))
    return step, "set_batch_size", chance.randint(1, size if feed.segmented else 6)


def _other_weights(feed: Feed) -> list[str]:
    """Return the sources of a feed whose rows are the same, whatever weights their sources have."""
    name, given = feed.calls[0]
    if feed.segmented or name != "mix" or given["stop"] != "all":
        return []
    weights = given["weights"]
    schedule = weights if isinstance(weights, list) else [(0, weights)]
    drawn = all(all(one.values()) for _, one in schedule)
    in_order = {name for name, _ in feed.calls} & {"weighted_resample", *SAMPLERS}
    return [*given["sources"]] if drawn and not in_order else []


def _with_capacity(chance: random.Random, feed: Feed, run: Run) -> Feed:
    """Give a feed of segments a capacity that is enough for its trainers, and lanes of all ranks.

    Another one that is steered gets more epochs, or its bucket fewer batches that are made ahead:
    else all would be made before.
    """
    *calls, (name, given) = feed.calls
    if feed.segmented:
        ahead = run.prefetch if isinstance(run.prefetch, int) else 2
        most = max(run.members, run.after, 1) * (1 if feed.lanes or run.world else 1 + ahead)
        capacity = chance.choice((None, 100, most * given["batch_size"] + chance.randint(0, 3)))
        if "lane" in given and (capacity is None or not feed.small):
            capacity = 1000  # with fewer places a lane may lack examples
        given = {**given, "capacity": capacity}
        ranks = min(run.world, run.world if run.after < 0 else run.after)
        if "lane" in given and ranks > 1:
            given["lane"] = f"{functions.__name__}:lane_{ranks * given['batch_size']}"
        return replace(feed, calls=(*calls, (name, given)))
    if run.steers and name in BUCKETS:
        return replace(feed, calls=(*calls, (name, {**given, "capacity": chance.randint(1, 3)})))
    if run.steers:
        found = [(of, {**one, "n": 6} if of == "repeat" else one) for of, one in feed.calls]
        if "repeat" not in dict(found):
            at = max((i for i, (of, _) in enumerate(found, 1) if of in ORDER), default=0)
            found.insert(at, ("repeat", {"n": 6}))
        return replace(feed, calls=tuple(found))
    return feed


def groups(chance: random.Random, size: int = 12) -> Iterator[tuple[Place, list[Draw]]]:
    """Yield feeds that are trained at the same servers, for ever; known faults are left out."""
    pairs: list[tuple[str, str]] = []
    while True:
        place = _place(chance)
        found: list[Draw] = []
        while len(found) < (size if not place.events else size // 2):
            if not pairs:
                pairs = [(stage, shape) for stage in STAGES for shape in SHAPES]
                chance.shuffle(pairs)
            stage, shape = pairs.pop()
            feed = drawn(chance, stage, shape)
            run = _run(chance, place, feed)
            draw = Draw(f"{stage} before {shape}", _with_capacity(chance, feed, run), run)
            if not known(place, draw):
                found.append(draw)
        yield place, found
