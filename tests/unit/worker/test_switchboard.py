"""Every effect of a dispatcher has a handler; owners and their trainers do not deadlock."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.examples import some

from .owners_world import World


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
