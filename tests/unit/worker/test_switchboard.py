"""Every effect of a dispatcher has a handler."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headrace_proto.messages import FROM_SERVER, FROM_TRAINER, Hello, Welcome
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


def test_a_trainer_that_another_owner_has_given_a_later_run_has_a_new_session(tmp_path: Path):
    bench = Bench(tmp_path / "bench", durable=False, owners=2)
    greeting = Hello(4, 4, "", "plain", b"nonce", rank=0, world_size=1, owner=0)
    runs = []
    for run in (0, 0, 5, 5):
        bench.say(b"t", [FROM_TRAINER.encode(replace(greeting, run=run))])
        heard = (FROM_SERVER.decode(header) for _, header in bench.heard())
        (welcome,) = (message for message in heard if isinstance(message, Welcome))
        runs.append((welcome.session, welcome.resumed, welcome.run))
    assert runs == [(1, False, 1), (1, True, 1), (3, False, 5), (3, True, 5)]
    bench.close()
