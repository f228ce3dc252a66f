"""Two trainers, one key, three segments: every order in which anything can happen.

    state ──each deed that is possible──► states that are new ──► … until there are none

Deeds: ask, receive, save; the worker obeys (and makes what it then can), stores, is heard.  Faults:
a delivery is lost, a save is said twice, a trainer is given up and greets again at any time later
with what it has, the worker or the server dies.  All histories without a fault are gone through,
and those with one up to a bound, which the scale sets.  The books of the world are checked after
each deed, and each state where nothing is left to do but to fail must be one from which the feed
comes to its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from hashlib import blake2b
from typing import Any

import numpy as np

from headrace_server.core.admitted_examples import AdmittedExamples
from tests.unit.core.segment_world import World

from .frame import Report, Setup

__all__ = ["explore", "run"]

_SEGMENTS = 3
_STATES = 50_000  # of histories with a fault, of each order
_ENDS_TRIED = 20  # every so many new states it is tried whether the end can be reached

Deed = tuple[str, int]
Deeds = dict[str, Callable[["_Model", int], object]]


class _Pins:
    """In place of chance: the trainer always reads its messages."""

    def random(self) -> float:
        return 0.0

    def choice(self, values: Any) -> Any:
        return values[0]

    def randrange(self, n: int) -> int:
        return 0


class _Model:
    """One state of the world, and the number of its faults."""

    def __init__(self, order: str, prefetch: int) -> None:
        self.world = World(0, [[_SEGMENTS]], order, False, 1)
        self.world.random = _Pins()
        self.faults = 0
        for _ in range(2):
            self.world.join(prefetch)
        self.work()

    def work(self) -> None:
        """Let the worker work between two orders; only its messages show it."""
        while self.worker.work():
            pass

    @property
    def worker(self) -> Any:
        return self.world.workers[0]

    def deeds(self) -> Iterator[Deed]:
        worker = self.worker
        for session, trainer in self.world.trainers.items():
            yield "ask", session
            if trainer.wire:
                yield "receive", session
            if trainer.hands:
                yield "save", session
        if worker.orders:
            yield "obey", 0
        if worker.words:
            yield "hear", 0
        if worker.pending:
            yield "store", 0
        for place in range(len(self.world.orphans)):
            yield "greet", place

    def misdeeds(self) -> Iterator[Deed]:
        for session, trainer in self.world.trainers.items():
            if trainer.wire:
                yield "lose", session
            if trainer.saved:
                yield "say again", session
            yield "fall silent", session
        yield "kill server", 0


def _fall_silent(model: _Model, session: int) -> None:
    """Let the server end its session; the trainer keeps its batches until it greets."""
    trainer = model.world.leave(session)
    trainer.wire.clear()
    trainer.got = trainer.seq = 0
    model.world.orphans.append(trainer)


_DEEDS: Deeds = {
    "ask": lambda m, who: m.world.ask(who),
    "receive": lambda m, who: m.world.receive(who),
    "save": lambda m, who: m.world.save(who),
    "obey": lambda m, _: m.worker.obey(),
    "hear": lambda m, _: m.world.word(m.worker),
    "store": lambda m, _: m.worker.store(1),
    "greet": lambda m, place: m.world.greet(m.world.orphans[place]),
    "lose": lambda m, who: m.world.lose(who),
    "say again": lambda m, who: m.world.say_again(who),
    "fall silent": _fall_silent,
    "kill server": lambda m, _: m.world.kill_server(),
}
_FAULTY = frozenset({"lose", "say again", "fall silent", "kill server"})
_PLAIN = frozenset({bool, int, float, str, bytes})
_IGNORED = frozenset({"got", "asleep", "admitted", "counts"})


def _fingerprint(model: _Model) -> bytes:
    """The same for states that nothing can tell apart."""
    told: list[str] = []
    _tell(model, {}, told)
    return blake2b("\0".join(told).encode(), digest_size=16).digest()


def _tell(value: Any, known: dict[int, int], told: list[str]) -> None:
    kind = type(value)
    if value is None or kind in _PLAIN or isinstance(value, Enum):
        told.append(repr(value))
    elif kind is np.ndarray and value.dtype != object:
        told.append(f"{value.dtype.str}{value.shape}{value.tobytes()!r}")
    elif id(value) in known:
        told.append(f"#{known[id(value)]}")
    elif kind in (list, deque) and all(type(item) is int for item in value):
        known[id(value)] = len(known)
        told.append(repr(value))
    else:
        known[id(value)] = len(known)
        told.append(f"{kind.__name__}(")
        for inner in _inner(value):
            _tell(inner, known, told)
        told.append(")")


def _inner(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return [part for item in value.items() for part in item]
    if isinstance(value, AdmittedExamples):  # keeps batches that are out by identity
        claimed = getattr(value, "_claimed", ())
        out = [(key in claimed, batch) for key, batch in value._out.items()]
        names = [n for n in vars(value) if n not in ("_out", "_claimed")]
        return [out, *(part for name in names for part in (name, getattr(value, name)))]
    if isinstance(value, (list, tuple, deque, np.ndarray)):
        return value
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    names = [*getattr(value, "__dict__", ())]
    for kind in type(value).__mro__:
        names += getattr(kind, "__slots__", ())
    named = [n for n in names if n not in _IGNORED and hasattr(value, n)]
    return [part for name in named for part in (name, getattr(value, name))]


class _Way:
    """The deeds that lead to a state.  They are repeated: machines know batches by identity."""

    def __init__(self, order: str, prefetch: int, deeds: tuple[Deed, ...] = ()) -> None:
        self._order, self._prefetch, self.deeds = order, prefetch, deeds

    def then(self, deed: Deed) -> _Way:
        return _Way(self._order, self._prefetch, (*self.deeds, deed))

    def go(self) -> _Model:
        model = _Model(self._order, self._prefetch)
        for what, whom in self.deeds:
            _DEEDS[what](model, whom)
            model.work()
            model.faults += what in _FAULTY
        return model

    def can_end(self) -> None:
        world = self.go().world
        world.settle()
        world.finish()
        assert [worker.next for worker in world.workers] == [[_SEGMENTS]], "a segment is missing"


def explore(
    order: str, prefetch: int, faults: int, report: Report, bound: int | None = None
) -> None:
    """Go through all states; ``bound`` stops after so many, and says so in the counts."""
    way = _Way(order, prefetch)
    known = {_fingerprint(way.go())}
    todo = deque([way])
    try:
        while todo:
            before = todo.popleft()
            model = before.go()
            here = _fingerprint(model)
            deeds = list(model.deeds())
            stuck = True
            if model.faults < faults:
                deeds += model.misdeeds()
            for deed in deeds:
                way = before.then(deed)
                after = way.go()
                after.world.check()
                report.count("deeds")
                found = _fingerprint(after)
                stuck = stuck and (deed[0] in _FAULTY or found == here)
                if found in known:
                    continue
                if bound is not None and len(known) >= bound:
                    report.count("states left out")
                    continue
                if len(known) % _ENDS_TRIED == 0:
                    way.can_end()
                known.add(found)
                todo.append(way)
            if stuck:
                report.count("ends")
                way = before
                way.can_end()
    except Exception as error:
        told = ", ".join(f"{what} {whom}" for what, whom in way.deeds)
        report.wrong(f"{order}: {type(error).__name__}: {error} after {told}")
    report.count("states", len(known))


def run(setup: Setup, report: Report) -> None:
    bound = setup.sized(_STATES, 20)
    for order in ("arrival", "lanes"):
        for prefetch in (0, 1):
            explore(order, prefetch, 0, report, None if setup.scale >= 0.01 else bound)
        explore(order, 0, 1, report, bound)
