"""Every effect of a dispatcher has a handler; owners and their trainers do not deadlock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace_proto import limits
from headrace_proto.messages import FROM_SERVER, FROM_TRAINER, Hello, Welcome
from headrace_server.core import dispatch_effects
from tests.examples import some
from tests.trials.bench import Bench

from .owners_world import World


def test_every_effect_has_a_handler(tmp_path: Path):
    switchboard = Bench(tmp_path / "bench", durable=False).switchboard
    named = {thing for thing in vars(dispatch_effects).values() if isinstance(thing, type)}
    effects = {*filter(lambda thing: issubclass(thing, dispatch_effects.Effect), named)}
    assert len(effects) > 15 and {*switchboard._calls, *switchboard._effects} == effects - {
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
    greeting = Hello(limits.PROTOCOL, "", "plain", b"nonce", rank=0, world_size=1, owner=0)
    runs = []
    for run in (0, 0, 5, 5):
        bench.say(b"t", [FROM_TRAINER.encode(replace(greeting, run=run))])
        heard = (FROM_SERVER.decode(header) for _, header in bench.heard())
        (welcome,) = (message for message in heard if isinstance(message, Welcome))
        runs.append((welcome.session, welcome.resumed, welcome.run))
    assert runs == [(1, False, 1), (1, True, 1), (3, False, 5), (3, True, 5)]
    bench.close()


@settings(max_examples=some(90), deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    order=st.sampled_from(["", "arrival", "lanes"]),
    counts=st.lists(st.lists(st.integers(1, 4), max_size=9), min_size=3, max_size=3),
    trainers=st.integers(1, 3),
    ranks=st.booleans(),
    local=st.booleans(),
    in_step=st.booleans(),
    faults=st.integers(0, 15),
)
@example(  # an owner that dies would make the batches again that filled no round
    seed=4053839818,
    order="",
    counts=[[4, 1, 2, 1, 2], [1, 4, 2, 3, 2, 4, 2], [2, 1, 3, 3, 2, 2, 3, 2, 1]],
    trainers=2,
    ranks=True,
    local=False,
    in_step=False,
    faults=6,
)
def test_trainers_of_two_owners_come_to_the_end_whatever_befalls_them(
    seed: int,
    order: str,
    counts: list[list[int]],
    trainers: int,
    ranks: bool,
    local: bool,
    in_step: bool,
    faults: int,
):
    """Ranks take the same rounds in the same order, and each batch is committed once."""
    World(seed, order, counts, trainers, ranks, local, in_step).run(faults)
