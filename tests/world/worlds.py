"""Which worlds there are: one for each seed."""

from __future__ import annotations

from random import Random

from .world import Broken, Config, World

MILD = {
    "cut": 0.02, "owner": 0.02, "kill": 0.01, "suspend": 0.01, "leave": 0.01, "return": 0.02,
    "untake": 0.05, "interrupt": 0.1,
}  # fmt: skip
RARE = {"server": 0.01, "job": 0.02, "stop": 0.01}


def config_of(seed: int) -> Config:
    random = Random(seed)
    kind = random.choice(["plain", "plain", "buckets", "arrival", "arrival", "lanes", "bare"])
    scale = random.choice([0, 1, 1, 2, 4])
    rates = MILD | RARE
    names = random.sample(sorted(rates), random.randint(0, len(rates)))
    if seed % 5 == 1:
        names = ["cut", "owner", "server"]
    faults = {name: rates[name] * scale for name in names}
    segmented = kind not in ("plain", "buckets")
    world = random.choice([0, 0, 1, 2, 3]) if random.random() < 0.7 else 0
    size = random.randint(2, 4)
    trainers = random.randint(1, 4)
    seats = max(world and 4, trainers)
    borders = random.random() < 0.5
    return Config(
        kind=kind,
        partitions=random.randint(1, 5),
        owners=random.randint(1, 3),
        trainers=trainers,
        world=world,
        epochs=random.choice([1, 1, 2, 3]),
        borders=borders,
        prefetch=random.choice([0, 1, 2, 5]),
        hold=1 if kind == "lanes" or world else random.choice([1, 1, 2, 3]),
        room=random.choice([1 << 60, 1 << 60, random.randint(1, 8)]),
        maps=random.choice([0, 0, 0.5]),
        max_open=random.choice([64, 64, random.randint(3, 8)]),
        rows=random.choice([6, 20, 40, 80]),
        size=size,
        capacity=size * seats + random.randint(0, 4),
        horizon=random.choice([20.0, 60.0]),
        faults=faults,
        steer=random.choice(["", "", "", "close"] if segmented else ["", "", "size", "close"]),
        delay=random.choice([0.001, 0.02, 0.2]),
        any_order=random.random() < 0.2 and not borders and kind not in ("lanes", "bare"),
        offsets=random.random() < 0.7,
        waits=random.choice([0, 0, 0.05]),
        makes=random.choice([0, 0.05, 0.5]),
        guard=random.random() < 0.3,
        # a rank that lost its place while it slept can not be told from one of the next job
        named=random.random() < 0.7 or "suspend" in faults,
        small=random.random() < 0.6,
        stubborn=random.random() < 0.5,
    )


def check(seed: int) -> int:
    """Run a world; return how many rows or segments were committed.  Broken where a law is."""
    if seed % 10 == 9:
        check_streams(seed)
        return 0
    return len(World(seed, config_of(seed)).run().ledger)


# One trainer has one stream


def check_streams(seed: int) -> None:
    """A lone trainer gets the same stream for any owners, where plain ones die, too."""
    deaths = [(2, {"owner": 0.1, "cut": 0.1}), (3, {"server": 0.1}), (2, {"stop": 0.1})]
    first = None
    for owners, faults in [(1, {}), (2, {}), (3, {}), *deaths]:
        config, seen = stream(seed, owners, faults)
        what = f"{owners} owners, {faults}"
        if config.kind in ("plain", "buckets", "arrival"):
            order = [(turn, p) for turn, p, _ in seen]
            if order != sorted(order):
                raise Broken(f"{what}: not in the order of (turn, partition)")
        if first is not None and seen != first:
            pairs = enumerate(zip(seen, first, strict=False))
            at = next((i for i, (a, b) in pairs if a != b), -1)
            raise Broken(f"another stream for {what}, from {at} on")
        first = seen


def stream(seed: int, owners: int, faults: dict[str, float]) -> tuple[Config, list[tuple]]:
    """Return what a lone trainer gets: turn, partition, and what is in it."""
    random = Random(seed)
    kind = random.choice(["plain", "buckets", "arrival", "lanes", "bare"])
    segmented = kind not in ("plain", "buckets")
    config = Config(
        kind=kind, partitions=random.randint(1, 6), trainers=1,
        borders=random.random() < 0.5, epochs=random.randint(1, 3),
        prefetch=0 if segmented else random.choice([0, 1, 3, 8]), hold=1,
        rows=random.choice([10, 40, 80]), faults={} if segmented else faults, horizon=30.0,
        room=random.choice([1 << 60, 14]), owners=owners,
        makes=random.choice([0, 0.05]),
    )  # fmt: skip
    world = World(seed, config)
    (process,) = world.processes
    world.random = Random(seed * 31 + owners + 7 * len(faults))
    world.run()
    if world.finished != [process]:
        raise Broken("another trainer finished")
    return config, [(turn, p, content) for p, _, turn, content in process.contents]
