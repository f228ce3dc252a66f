"""More than these machines have: the real machines in simulated time (``world.py``).

trainers × servers × partitions ─► messages, sessions, waits, the end; a server, a trainer lost
ranks × servers                 ─► how long a step waits for the last rank
"""

from __future__ import annotations

from itertools import pairwise

from .curve import Curve, Setup
from .world import HEARTBEAT_S, LEASE_S, Shape, World

__all__ = ["ranks", "shared"]

_BEATS = "Renew", "Pulse"
_GREETINGS = "Hello", "Welcome"
#: When a server and a trainer are lost, and after what time the server goes on.
_LOST_AT_S, _AWAY_S = 0.5, 8.0


def _name(shape: Shape) -> str:
    who = "ranks" if shape.ranks else "trainers"
    return f"{shape.trainers:,} {who} × {shape.servers} × {shape.partitions:,}"


def _finished(curve: Curve, world: World) -> None:
    """All is done, and each batch was committed once."""
    shape, committed = world.shape, world.seen.committed
    wrong = sum(committed[n, p] != 1 for p in range(shape.partitions) for n in range(shape.batches))
    curve.exactly(f"batches lost or twice, {_name(shape)}", wrong, 0)


def _figures(world: World) -> dict[str, float]:
    seen, shape = world.seen, world.shape
    batches = sum(seen.committed.values())
    beats = sum(seen.messages[name] for name in _BEATS)
    of_batches = seen.messages.total() - beats - sum(seen.messages[name] for name in _GREETINGS)
    return {
        "messages per batch": of_batches / batches,
        "per batch and session": of_batches / (batches + shape.trainers * shape.servers),
        "heartbeats per s of a server": 2 * shape.trainers / HEARTBEAT_S,
        "sessions of a trainer": shape.servers,
        "sessions of a server": shape.trainers,
        "held ahead at most": seen.held_ahead,
        "ms waited per batch": seen.waited_s / len(seen.taken) * 1000,
        "trainer µs per batch": seen.cpu_s["trainer"] / batches * 1e6,
        "owner µs per batch": seen.cpu_s["owner"] / batches * 1e6,
        "s, of even shares": shape.step_s * batches / shape.trainers,
        "s until the end": max(seen.ended) - min(at for at, *_ in seen.taken),
    }


def shared(setup: Setup) -> Curve:
    """Trainers that share a plain feed; then the same with losses."""
    curve = Curve("trainers × servers × partitions")
    shapes = setup.of(
        [Shape(16, 1, 64, 8), Shape(128, 8, 512, 4), Shape(1000, 64, 4096, 2)],
        [Shape(4, 1, 8, 8), Shape(12, 4, 32, 4)],
    )
    for shape in shapes:
        world = World(shape)
        world.run_to_the_end()
        _finished(curve, world)
        curve.add(_name(shape), _figures(world))
    first, last = _name(shapes[0]), _name(shapes[-1])
    curve.grows("per batch and session", first, last, 1.5)
    ahead = curve.at(last, "held ahead at most") / curve.at(last, "sessions of a trainer")
    curve.at_most("batches held ahead for each server", ahead, 2.0)
    _lose(curve, shapes[1])
    return curve


def _lose(curve: Curve, shape: Shape) -> None:
    """A server's host and a trainer are lost amid the work."""
    world = World(shape, seed=2)
    lost, gone = shape.servers - 1, world.trainers[0]
    world.run(lambda: world.now >= _LOST_AT_S and gone.held)
    since = world.now
    world.lose_server(lost, _AWAY_S)
    gone.lose()
    world.run_to_the_end()
    _finished(curve, world)
    noticed = max(world.seen.noticed) - since
    curve.at_most("s until the last trainer takes a lost server for lost", noticed, 4.0)
    back = min(world.seen.sent_again) - since - _AWAY_S
    curve.at_most("s from the return of a server to its next batch", back, 2.0)
    regained = [at for at, who, n, p in world.seen.taken if who and (n, p) == gone.held]
    after = (min(regained) - since) / LEASE_S
    curve.at_most("leases until another trainer has the batch of a lost one", after, 1.1)


def ranks(setup: Setup) -> Curve:
    """Ranks that take each step together, in rounds of a plain feed."""
    curve = Curve("ranks × servers × partitions")
    shapes = setup.of(
        [
            Shape(16, 1, 4, 16 * 12, ranks=True),
            Shape(128, 8, 16, 128 * 2, ranks=True),
            Shape(1000, 64, 64, 1000, ranks=True),
        ],
        [Shape(4, 1, 2, 16, ranks=True), Shape(8, 4, 4, 16, ranks=True)],
    )
    for shape in shapes:
        world = World(shape)
        world.run_to_the_end()
        _finished(curve, world)
        steps = world.seen.steps
        each = [after - before - shape.step_s for before, after in pairwise(steps)]
        figures = _figures(world)
        figures["ms a step waits for the last rank"] = round(sum(each) / len(each) * 1000, 3) + 0.0
        figures["the longest"] = round(max(each) * 1000, 3) + 0.0
        curve.add(_name(shape), figures)
        curve.exactly(
            f"steps, {_name(shape)}", len(steps), shape.partitions * shape.batches // shape.trainers
        )
    first, last = _name(shapes[0]), _name(shapes[-1])
    curve.grows("messages per batch", first, last, 3.0)
    return curve
