"""Orders take effect in every life after the same rows and batches."""

from __future__ import annotations

from headrace_server.core.steering_orders import Order, Orders


def stored(orders: Orders) -> Orders:
    """Return the orders that the next life loads."""
    later = Orders()
    later.load(orders.to_plain())
    return later


def test_an_order_that_the_cursor_does_not_show_is_due_at_its_place():
    orders = Orders()
    orders.given(100, 7, "target", [0.5, 0.5], since=9)
    orders.given(150, 11, "close", True)
    assert orders.count == 2 and not orders.waits
    later = stored(orders)
    later.restore(0)
    assert later.waits and later.count == 0
    assert later.due(99, 8) is None and later.due(100, 6) is None
    assert later.due(100, 7) == Order(1, 100, 7, "target", [0.5, 0.5], 9)
    assert later.count == 1 and later.due(149, 11) is None
    assert later.due(150, 11) == Order(2, 150, 11, "close", True)
    assert later.count == 2 and not later.waits


def test_no_read_goes_beyond_the_place_of_an_order():
    orders = Orders()
    orders.given(100, 7, "close", False)
    assert orders.limit(90, 64) == 64
    later = stored(orders)
    later.restore(0)
    assert (later.limit(0, 64), later.limit(64, 64), later.limit(100, 64)) == (64, 36, 64)


def test_a_cursor_that_shows_an_order_leaves_only_those_after_it():
    orders = Orders()
    for read in (10, 20, 30):
        orders.given(read, 1, "target", [float(read)], since=1)
    later = stored(orders)
    later.restore(2)
    assert later.count == 2 and later.due(30, 1).what == [30.0]


def test_an_order_that_comes_while_others_are_pending_follows_them():
    orders = Orders()
    orders.given(100, 7, "target", [0.5, 0.5], since=9)
    later = stored(orders)
    later.restore(0)
    given = later.given(0, 0, "target", [1.0, 0.0], since=2)
    assert given == Order(2, 100, 7, "target", [1.0, 0.0], 9)
    assert later.due(100, 7).count == 1 and later.due(100, 7) == given


def test_an_order_that_waits_for_its_batch_is_stored_with_the_rows_that_are_read_by_then():
    orders = Orders()
    order = orders.given(0, 13, "close", False)
    orders.await_place(order)
    assert orders.due(192, 12) is None and orders.due(192, 13) == order
    later = stored(orders)
    later.restore(0)
    assert later.limit(64, 640) == 128 and later.due(64, 13) is None
    assert later.due(192, 13) == Order(1, 192, 13, "close", False)


def test_a_repeated_order_is_recognised():
    orders = Orders()
    orders.given(100, 7, "target", [0.5, 0.5], since=9)
    assert orders.known("target", [0.5, 0.5]) and not orders.known("close", True)


def test_the_list_of_orders_is_bounded():
    orders = Orders()
    for n in range(100):
        orders.given(n, n, "target", [float(n)], since=n)
    assert len(orders.to_plain()) == 64 and orders.count == 100
