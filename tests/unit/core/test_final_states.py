"""Which final states are kept, and which one a new example starts from."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_server.core.final_states import FinalStates
from tests.examples import some


def test_a_key_starts_from_where_it_ended_last():
    final = FinalStates(most=10)
    assert final.latest(b"a", 0) is None
    assert final.add(b"a", 1) == [] and final.add(b"b", 2) == []
    assert final.add(b"a", 3) == [0]
    assert final.latest(b"a", 4) == 2 and final.latest(b"b", 4) == 1 and len(final) == 2


def test_the_keys_that_ended_first_go_first_and_are_counted():
    final = FinalStates(most=2)
    dropped = [final.add(key, i) for i, key in enumerate([b"a", b"b", b"a", b"c"])]
    assert dropped == [[], [], [0], [1]]
    assert final.forgotten == 1 and final.latest(b"b", 9) is None and final.latest(b"a", 9) == 2


def test_a_state_is_too_old_once_more_examples_came_in_than_that():
    final = FinalStates(most=10, max_age=5)
    final.add(b"a", 100)
    assert final.latest(b"a", 105) == 0 and final.latest(b"a", 106) is None
    assert final.add(b"b", 106) == [0] and final.expired == 1 and len(final) == 1


def test_a_draw_takes_one_of_the_last_of_another_key():
    final = FinalStates(size=3)
    assert final.drawn(0.5, b"x") is None
    dropped = [final.add(key, i) for i, key in enumerate([b"a", b"b", b"c", b"d"])]
    assert dropped == [[], [], [], [0]]
    assert [final.drawn(where, b"x") for where in (0.0, 0.34, 0.99)] == [1, 2, 3]
    assert final.drawn(0.34, b"c") == 3 and final.drawn(0.99, b"d") == 1
    alone = FinalStates(size=3)
    alone.add(b"a", 0)
    assert alone.drawn(0.0, b"a") is None


@settings(max_examples=some(200))
@given(
    st.lists(st.sampled_from([b"a", b"b", b"c", b"d", b"e"]), max_size=40),
    st.integers(0, 4),
    st.none() | st.integers(0, 9),
    st.integers(0, 6),
    st.integers(0, 99),
)
def test_the_declared_final_states_are_stored_and_a_restart_has_the_same(
    keys: list[bytes], most: int, max_age: int | None, size: int, cut: int
):
    bounds = most, max_age if most else None, size
    final, kept = FinalStates(*bounds), dict[int, tuple[bytes, int]]()
    for number, key in enumerate(keys):
        if number == cut * len(keys) // 100:
            again = FinalStates(*bounds)
            for entry, (name, index) in sorted(kept.items()):
                assert again.add(name, index, entry) == []
            assert again.next == max(kept, default=-1) + 1
            again.next = number
            final = again
        kept[number] = key, 3 * number
        for entry in final.add(key, 3 * number):
            del kept[entry]
        latest = {name: at for at, name in enumerate(keys[: number + 1])}
        now = 3 * number
        in_order = sorted(latest.values())[-most:] if most else []
        young = [at for at in in_order if bounds[1] is None or now - 3 * at <= bounds[1]]
        ring = range(max(0, number + 1 - size), number + 1)
        if size or most:
            assert kept.keys() == {*young, *ring}
            assert len(final) == len(kept)
        for name in set(keys):
            wanted = latest.get(name)
            assert final.latest(name, now) == (wanted if wanted in young else None)
        others = [at for at in ring if keys[at] != b"a"]
        for place, at in enumerate(ring):
            drawn = final.drawn((place + 0.5) / len(ring), b"a")
            assert drawn == (at if at in others else drawn) and (drawn in others or not others)
