"""Every effect of a dispatcher and every event of a partition has a handler."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from headrace_server.core import handover
from headrace_server.worker import events
from tests.trials.bench import Bench

#: Parts of events, and what is told of no feed.
_NO_EVENTS = {"StateFlush", "Removed"}


def test_every_effect_and_every_event_has_a_handler(tmp_path: Path):
    house = Bench(tmp_path / "bench", durable=False).house
    assert house._effects.keys() == set(get_args(handover.Effect))
    defined = {
        thing
        for name, thing in vars(events).items()
        if getattr(thing, "__module__", "") == events.__name__ and name not in _NO_EVENTS
    }
    assert house._events.keys() == defined
