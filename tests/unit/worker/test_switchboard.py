"""Every effect of a dispatcher has a handler."""

from __future__ import annotations

from pathlib import Path

from headrace_server.core import dispatch_effects
from tests.trials.bench import Bench


def test_every_effect_has_a_handler(tmp_path: Path):
    switchboard = Bench(tmp_path / "bench", durable=False).switchboard
    named = {thing for thing in vars(dispatch_effects).values() if isinstance(thing, type)}
    effects = {*filter(lambda thing: issubclass(thing, dispatch_effects.Effect), named)}
    assert len(effects) > 20 and {*switchboard._calls, *switchboard._effects} == effects - {
        dispatch_effects._Effect
    }


def test_a_segment_that_the_slab_has_removed_is_removed_from_the_directory(tmp_path: Path):
    bench = Bench(tmp_path / "bench", durable=False)
    segment = tmp_path / "bench" / "slab-0-0-7"
    segment.write_bytes(b"x")
    bench.partitions.removed.append(segment.name)
    bench.switchboard.act()
    assert not segment.exists() and not bench.partitions.removed
