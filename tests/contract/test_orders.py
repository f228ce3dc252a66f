"""Supervisor, locator and workers understand each other: each order and report has a handler.

    crew.order(order="fail", code=…, text=…)     ─► Switchboard._orders, Locator._orders
    asks.ask(…, "stats", …), with a ``request``  ─►
    pipe.report("over", feed=…, …)               ─► Supervisor._reports

The tables of handlers are the protocol.  These tests read the calls and the tables as text, and
compare names and fields, so a field that no handler takes is found without a run that sends it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

SERVER = Path(__file__).parents[2] / "server/headrace_server"
#: Calls of these send an order; the first text among their arguments, or ``order=``, names it.
_ORDERS = {"order", "ask", "_ask_owners"}
_SEND_ORDERS, _SEND_REPORTS = (
    ("server/",),
    ("worker/", "server/locator.py"),
)
#: The classes of the collaborators that tables name.
_COLLABORATORS = {
    "feeds": {"Feeds"},
    "requests": {"FeedRequests"},
    "self._asks": {"Asks"},
    "self._requests": {"SnapshotRequests"},
}
#: ``dying`` is for the child's own object; it needs no table.
_WITHOUT_TABLE = {"dying"}


@dataclass
class Fields:
    """The fields of a message: sent, or taken by a handler."""

    names: set[str]
    required: set[str]
    more: bool  # whether there may be others, which only a run shows


@cache
def _modules() -> dict[str, ast.Module]:
    return {
        str(path.relative_to(SERVER)): ast.parse(path.read_text()) for path in SERVER.rglob("*.py")
    }


def _methods(function: ast.Attribute, path: str) -> list[ast.FunctionDef]:
    """Return the methods of a function in the table of a module."""
    of = ast.unparse(function.value)
    return [
        method
        for where, tree in _modules().items()
        if (where == path if of == "self" else where.startswith(("server/", "worker/")))
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and (of == "self" or node.name in _COLLABORATORS[of])
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name == function.attr
    ]


def _taken(arguments: ast.arguments, given: int) -> Fields:
    """Return the fields that a signature takes beyond the first ``given`` arguments."""
    named = [a.arg for a in arguments.args][given:]
    keyword = [a.arg for a in arguments.kwonlyargs]
    optional = named[len(named) - len(arguments.defaults) :] if arguments.defaults else []
    return Fields({*named, *keyword}, {*named} - {*optional}, arguments.kwarg is not None)


def _handled(handler: ast.expr, path: str, first: int) -> Fields:
    """Return the fields of a handler; ``first``: arguments before them, beside ``self``."""
    if isinstance(handler, ast.Call):  # partial(function, value)
        return _handled(handler.args[0], path, first + len(handler.args) - 1)
    if isinstance(handler, ast.Attribute):
        return _joined([_taken(method.args, 1 + first) for method in _methods(handler, path)])
    assert isinstance(handler, ast.Lambda)
    own = _taken(handler.args, first)
    body = handler.body
    if not own.more or not (isinstance(body, ast.Call) and isinstance(body.func, ast.Attribute)):
        return own
    if body.func.attr == "snapshotted":  # gets the record that its fields make
        return own
    inner = _joined([_taken(m.args, 1 + len(body.args)) for m in _methods(body.func, path)])
    return Fields(own.names | inner.names, own.required | inner.required, inner.more)


def _joined(fields: list[Fields]) -> Fields:
    """Join the signatures of methods that have one name; they must agree to be required."""
    assert fields
    names = set[str]().union(*(one.names for one in fields))
    required = set.intersection(*(one.required for one in fields))
    return Fields(names, required, any(one.more for one in fields))


def _table(path: str, name: str, first: int) -> dict[str, Fields]:
    """Return the handlers of a table by the name of the message."""
    values = {"USED": "used", "TOUCHED": "touched"}
    for node in ast.walk(_modules()[path]):
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == f"self.{name}":
            assert isinstance(node.value, ast.Dict)
            table = zip(node.value.keys, node.value.values, strict=True)
            return {
                key.value if isinstance(key, ast.Constant) else values[ast.unparse(key)]: (
                    _handled(value, path, first)
                )
                for key, value in table
                if key is not None
            }
    raise AssertionError(f"{path} has no table {name}")


def _orders() -> dict[str, list[Fields]]:
    owner, locator = (
        _table(path, "_orders", 0) for path in ("worker/switchboard.py", "server/locator.py")
    )
    return {name: [t[name] for t in (owner, locator) if name in t] for name in {**owner, **locator}}


def _reports() -> dict[str, list[Fields]]:
    return {name: [one] for name, one in _table("server/supervisor.py", "_reports", 1).items()}


def _sent(kind: str) -> Iterator[tuple[str, str, Fields]]:
    """Yield place, name and fields of each call that sends an order or a report."""
    senders = _SEND_REPORTS if kind == "report" else _SEND_ORDERS
    for path, tree in _modules().items():
        for node in ast.walk(tree) if path.startswith(senders) else ():
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            called = node.func.attr
            if kind == "report" and called == "append" and _is_report(node.args[0]):
                name, values = node.args[0].elts
                fields = {"feed", *(key.value for key in values.keys)}
                yield f"{path}:{node.lineno}", name.value, Fields(fields, set(), False)
            if called not in (_ORDERS if kind == "order" else {"report"}):
                continue
            if kind == "report" and not ast.unparse(node.func.value).endswith("pipe"):
                continue
            texts = [a.value for a in node.args if isinstance(a, ast.Constant)]
            named = [k.value.value for k in node.keywords if _is_name(k)]
            name = next((t for t in [*named, *texts] if isinstance(t, str)), None)
            if name is None:
                continue  # passes the message of its own caller on
            fields = {k.arg for k in node.keywords if k.arg not in (None, "order")}
            fields |= {"request"} if called != "order" and kind == "order" else set()
            more = any(k.arg is None for k in node.keywords)
            yield f"{path}:{node.lineno}", name, Fields({f for f in fields if f}, set(), more)


def _is_report(value: ast.expr) -> bool:
    """Whether a value is a report of a desk, as the house sends it with the feed."""
    match value:
        case ast.Tuple(elts=[ast.Constant(), ast.Dict()]):
            return True
    return False


def _is_name(keyword: ast.keyword) -> bool:
    return keyword.arg == "order" and isinstance(keyword.value, ast.Constant)


@pytest.mark.parametrize("kind", ["order", "report"])
def test_every_message_that_is_sent_has_a_handler_with_its_fields(kind: str) -> None:
    table = _orders() if kind == "order" else _reports()
    sent = [one for one in _sent(kind) if one[1] not in _WITHOUT_TABLE]
    assert len(sent) > 8
    for place, name, fields in sent:
        handlers = table.get(name)
        assert handlers, f"{place} sends {name!r}, which is none of {sorted(table)}"
        fits = [
            (one.more or fields.names <= one.names)
            and (fields.more or one.required <= fields.names)
            for one in handlers
        ]
        assert any(fits), f"{place} sends {name!r} with {fields}, and handlers take {handlers}"


def test_every_handler_of_an_order_has_a_sender() -> None:
    assert {name for _, name, _ in _sent("order")} >= _orders().keys()
