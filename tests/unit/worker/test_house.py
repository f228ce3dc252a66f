"""Every effect of a dispatcher and every event of a partition has a handler."""

from __future__ import annotations

from pathlib import Path

from headrace_server.core import handover
from headrace_server.worker import events
from tests.trials.bench import Bench

#: Parts of events, and what is told of no feed.
_NO_EVENTS = {"StateFlush", "Removed"}


def test_every_effect_and_every_event_has_a_handler(tmp_path: Path):
    house = Bench(tmp_path / "bench", durable=False).house
    named = {thing for thing in vars(handover).values() if isinstance(thing, type)}
    effects = {*filter(lambda thing: issubclass(thing, handover.Effect), named)}
    assert len(effects) > 20 and {*house._calls, *house._effects} == effects - {handover._Effect}
    defined = {
        thing
        for name, thing in vars(events).items()
        if getattr(thing, "__module__", "") == events.__name__ and name not in _NO_EVENTS
    }
    assert house._events.keys() == defined
