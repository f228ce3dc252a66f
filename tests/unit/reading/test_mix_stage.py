"""Changed weights of a mix hold from a place among its examples, whenever they become known."""

from headrace_server.reading.stages.mix import Mix

DECLARED = [[0, [1.0, 0.0]], [50, [0.5, 0.5]]]


def stage():
    return Mix(["a", "b"], DECLARED, "example")


def numbered(came):
    """Partition 1 of 2."""
    return 2 * came + 1


def test_a_change_holds_from_its_place_on_in_place_of_the_schedule():
    mix = stage()
    assert mix.schedule(0, 0, numbered) == DECLARED
    mix.set_target([0, 10, [0.0, 1.0]], 3)  # known before its place is reached
    assert mix.schedule(0, 0, numbered) == [[0, [1.0, 0.0]], [21, [0.0, 1.0]]]
    assert mix.schedule(1, 0, numbered) == [[0, [0.0, 1.0]]]
    mix.set_target([0, 30, [2.0, 1.0]], 5)
    assert mix.schedule(0, 5, numbered)[-2:] == [[21, [0.0, 1.0]], [61, [2.0, 1.0]]]


def test_a_change_after_the_end_of_an_epoch_holds_from_the_next_one_on():
    mix = stage()
    mix.set_target([1, 0, [0.0, 1.0]], 3)
    assert mix.schedule(0, 100, numbered) == DECLARED
    assert mix.schedule(1, 0, numbered) == [[0, [0.0, 1.0]]]


def test_orders_that_are_repeated_and_a_state_give_the_same_weights():
    mix, again = stage(), stage()
    orders = [[0, 10, [0.0, 1.0]], [0, 30, [2.0, 1.0]], [1, 5, [3.0, 1.0]]]
    for order in orders:
        mix.set_target(order, 0)
    again.restore(mix.state())
    for order in orders:
        again.set_target(order, 0)
    for epoch, came in ((0, 0), (0, 12), (0, 40), (1, 0), (1, 9), (2, 0)):
        assert again.schedule(epoch, came, numbered) == mix.schedule(epoch, came, numbered)
