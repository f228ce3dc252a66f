"""Feeds as a trainer gets them, compared with the reference."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

import headrace
import headrace_server as hs
from headrace_proto.schema import FACTS
from tests import reference
from tests.combinations.declarations import SHAPES, STAGES, Draw, drawn
from tests.patience import PATIENCE_S

_OF_SEGMENTS = (
    *("key", "sequence", "sequence_count", "length", "total_length", "left_length"),
    *("right_length", "insertion_index", "first", "last"),
)

#: Feeds of one server: as many cost little more than one.
_AT_ONCE = 40


def draws(
    chance: random.Random, part: int = 0, parts: int = 1, interrupted: bool = False
) -> list[list[Draw]]:
    """Draw a part of all combinations of stage and shape, for one server after the other."""
    pairs = [(stage, shape) for stage in STAGES for shape in SHAPES][part::parts]
    chance.shuffle(pairs)
    servers = []
    for start in range(0, len(pairs), _AT_ONCE):
        partitions = chance.choice((1, 1, 2, 3))
        some = pairs[start : start + _AT_ONCE]
        found = [drawn(chance, *pair, partitions) for pair in some]
        if interrupted:
            found = [replace(draw, resumed_after=chance.randrange(1, 6)) for draw in found]
        servers.append(found)
    return servers


def failures(some: list[Draw], workers: int) -> list[str]:
    """Serve and train all of these feeds; return the texts of those that fail, with programs.

    Those that are interrupted stop at a snapshot, and go on from it on another server.
    """
    partitions = some[0].partitions
    draws = {f"feed-{i}": draw for i, draw in enumerate(some)}
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name in draws}
    failed: list[str] = []
    options: dict[str, Any] = {"workers": min(workers, partitions), "partitions": partitions}
    with tempfile.TemporaryDirectory() as state_dir:
        if any(draw.resumed_after for draw in some):
            options["state_dir"] = state_dir
        while draws:
            tokens: dict[str, Any] = {}
            feeds = {name: draw.pipeline() for name, draw in draws.items()}
            with hs.run(feeds, **options) as server:
                for name, draw in draws.items():
                    upto = None if "resume" in options else draw.resumed_after
                    try:
                        token = train(server.address, name, draw, taken[name], upto)
                        if token is None:
                            compare(draw, taken[name])
                        else:
                            tokens[name] = token
                    except Exception as error:
                        text = f"{type(error).__name__}: {error}"
                        after = draw.resumed_after
                        how = f", resumed after {after} batches" if after else ""
                        failed.append(f"{draw.name}{how}: {text}\n\n{draw.program()}")
            draws = {name: draws[name] for name in tokens}
            options["resume"] = [*tokens.values()]
    return failed


def train(
    address: str, name: str, draw: Draw, found: list[dict[str, Any]], upto: int | None = None
) -> Any:
    """Train from a feed to its end; append its batches in the form of the reference.

    Each has its ``@partition`` beside that.  After ``upto`` batches stop, and return a snapshot.
    """
    with headrace.connect(address, feed=name, prefetch=0, timeout=PATIENCE_S) as feed:
        for batch in _all_of(feed, draw):
            found.append(_plain(feed, batch))
            _save(feed, batch)
            if len(found) == upto:
                return feed.snapshot()
    return None


def _all_of(feed: headrace.Feed, draw: Draw) -> Iterator[Any]:
    if draw.across_batches:
        yield from feed
    else:
        for _, epoch in feed.epochs():
            yield from epoch


def _plain(feed: headrace.Feed, batch: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "@partition": batch.partition,
        "@epoch": batch.epoch,
        "@number": batch.number,
    }
    facts = {name for name in (*FACTS, "lane") if name in feed.facts}
    if isinstance(batch, headrace.Batch):
        found |= {name: _rows(batch[name]) for name in batch}
        if hasattr(batch, "bucket"):
            found["@bucket"] = batch.bucket
    else:
        facts |= {*_OF_SEGMENTS}
        found |= {f"sequences:{name}": np.array(batch.sequences[name]) for name in batch.sequences}
        found |= {f"context:{name}": np.array(batch.context[name]) for name in batch.context}
        found |= {f"state:{name}": np.array(batch.state(name)) for name in feed.states}
    return found | {f"@{name}": list(np.array(getattr(batch, name))) for name in facts}


def _rows(column: Any) -> Any:
    if isinstance(column, np.ndarray):
        return np.array(column)
    return [np.array(column.values[a:b]) for a, b in pairwise(column.offsets.tolist())]


def _save(feed: headrace.Feed, batch: Any) -> None:
    for name in feed.states:
        state = batch.state(name)
        sequence = batch.sequence.reshape(-1, *[1] * (state.ndim - 1))
        batch.save_state(name, reference.saved(state, sequence).astype(state.dtype))


def compare(draw: Draw, found: list[dict[str, Any]]) -> None:
    """AssertionError where the batches are not those of the reference."""
    declared = draw.declared()
    for partition in range(draw.partitions):
        wanted = reference.batches(declared, partition, draw.partitions)
        own = [batch for batch in found if batch["@partition"] == partition]
        for number, (want, got) in enumerate(zip(wanted, own, strict=False)):
            if draw.segmented and draw.resumed_after:  # they count from 0 after a snapshot
                want = want | {"@number": got["@number"]}
            _compare(f"partition {partition}, batch {number}", want, got)
        text = f"partition {partition} has {len(own)} batches, not {len(wanted)}"
        assert len(own) == len(wanted), text
    if not draw.segmented and draw.across_batches:
        turns = [(batch["@number"], batch["@partition"]) for batch in found]
        assert turns == sorted(turns), f"partitions do not take turns: {turns}"


def _compare(where: str, want: dict[str, Any], got: dict[str, Any]) -> None:
    names = f"{sorted(got.keys() - want)} too many, {sorted(want.keys() - got)} missing"
    assert got.keys() - {"@partition"} == want.keys(), f"{where}: {names}"
    for name, value in want.items():
        own = got[name]
        if isinstance(value, list):
            same = len(value) == len(own) and all(map(_same, value, own))
        else:
            same = _same(value, own)
            same &= not isinstance(value, np.ndarray) or value.dtype == own.dtype
        assert same, f"{where}: {name} is {own}, not {value}"


def _same(a: Any, b: Any) -> bool:
    """Return whether two values are equal; rates may differ in the last digit."""
    if isinstance(a, np.float32) and isinstance(b, np.float32):
        return bool(np.isclose(a, b, rtol=1e-6))
    return bool(np.array_equal(a, b))
