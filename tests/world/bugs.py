"""Bugs to plant, one at a time, by changing a line: random worlds must find each of them."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

from headrace.machine import trainer
from headrace_server.leasing import desk
from headrace_server.shaping import plain, segments

from .planting import Planting
from .world import World
from .worlds import config_of

#: Number of worlds in which a bug is looked for.
MOST = 300

_DEATHS = {"owner": 0.4, "cut": 0.4}
_LOSSES = {**_DEATHS, "server": 0.2}
_SLEEPERS = {**_DEATHS, "suspend": 0.3}
_RUNS = {**_DEATHS, "job": 0.1, "kill": 0.05}
_QUIET = {"room": 1 << 60, "maps": 0.0, "makes": 0.0, "waits": 0.0, "max_open": 64}
_SMALL = {
    "owners": 1,
    "partitions": 2,
    "rows": 60,
    "size": 2,
    "horizon": 20.0,
    "epochs": 1,
    "world": 0,
    "capacity": 12,
}
_RANKS = {"world": 2, "hold": 1, "room": 1 << 60}
_EPOCHS = {"epochs": 3, "borders": True, "owners": 3, "partitions": 4, "rows": 6}
_SLOW = {"makes": 0.5, "delay": 0.02, "prefetch": 3}

#: Each bug by name: its module, the text that it changes, the text in its place, and what the
#: worlds have that are to find it.
BUGS: dict[str, tuple[ModuleType, str, str, dict[str, Any]]] = {
    # The desk
    "no fencing": (
        desk, "elif not cell.partition.reclaim(batch):", "elif False:",
        {"kind": "plain", "faults": _SLEEPERS, "trainers": 3, "rows": 80},
    ),
    "answered before stored": (
        desk, "self.port.committed(",
        "self.port.answer(session.to, (token,))\n        self.port.committed(",
        {},
    ),
    "a returned batch is lost": (
        desk, "self._push(cell, batch)\n            self._came_back.add(cell)",
        "self.port.gone(batch)",
        {"kind": "plain", "faults": {"return": 0.2}},
    ),
    "a returned batch is kept in memory": (
        desk, "self.port.gone(batch)\n            self._void(session, cell, batch.turn)",
        "self._void(session, cell, batch.turn)",
        {"kind": "bare", "faults": {"return": 0.2}},
    ),
    "no grace": (
        desk, "if not self._known:", "if True:",
        {"kind": "plain", "faults": _DEATHS, "trainers": 4, "rows": 80},
    ),
    "idle is not told": (
        desk, "self.port.idle(request.session.to, request.number, request.live)", "pass",
        {"kind": "arrival", "room": 1, "hold": 3, "stubborn": True},
    ),
    "no second look": (
        desk, "        todo = self._todo\n", "        return\n",
        {"kind": "arrival"},
    ),
    "memory is not looked at": (
        desk, "self._full, self._again = False, True\n", "return\n",
        {"kind": "arrival", "room": 2, "maps": 1.0, "hold": 3},
    ),
    "nothing is made beyond the memory": (
        desk, "if not request.gone and place <= min(before, default=place):", "if False:",
        {**_RANKS, "room": 3, "prefetch": 5, "faults": _RUNS},
    ),
    "a source is not looked at": (
        desk, "        self._again = True\n        cell =", "        return\n        cell =",
        {"waits": 0.1},
    ),
    "welcomed before the join is stored": (
        desk, "self._stored(self._joins, 0)", "self._stored(self._joins, 1 << 60)",
        {
            "kind": "plain",
            "faults": {"owner": 1.0, "leave": 1.0},
            "trainers": 4,
            "delay": 0.001,
            "rows": 800,
            "horizon": 60.0,
            "prefetch": 2,
            **_QUIET,
        },
    ),
    "over before stored": (
        desk, "self._when_stored(cell, session, partial(self._over, request, epoch))",
        "self.port.over(session.to, request.number, cell.number, epoch, ())",
        {**_EPOCHS, "kind": "arrival", "faults": {"owner": 1.0}, "trainers": 3, "delay": 0.001},
    ),
    "a commit counts while its partition makes a batch": (
        desk, "(partial(self._commit, session, token, payload))\n            return", "",
        {**_SLOW, "guard": True},
    ),
    "deferred commits are lost": (
        desk, "self._deferred.append(partial(self._commit, session, token, payload))", "pass",
        _SLOW,
    ),
    "a lost reply is not repeated": (
        desk, "kept = {of[0] for of in (*hello.held, *hello.commits)}", "kept = session.leases",
        {"faults": {"cut": 0.5}, "kind": "plain", "delay": 0.2},
    ),
    "terms repeat": (
        desk, "self._since = term << COUNTER_BITS",
        "self._since = 1 + min(partitions, default=0) << COUNTER_BITS",
        {"faults": _LOSSES},
    ),
    "ranks join those that are gone": (
        desk, "if self._is_apart(hello):\n            return bool(self.sessions)", "return False",
        {"kind": "plain", **_RANKS, "named": False, "faults": {"job": 0.2}, "rows": 80},
    ),
    "births are forgotten": (
        desk, "in (*births, *self._known.values()):", "in self._known.values():",
        {"kind": "plain", **_RANKS, "named": False, "faults": _RUNS, "rows": 80},
    ),
    "claims are judged out of order": (
        desk, "claims.sort(key=lambda claim: claim[0])", "claims.sort(key=lambda claim: claim[3])",
        {"kind": "bare", "faults": _DEATHS, "prefetch": 5},
    ),
    "early commits are forgotten": (
        desk, "session.early[token] = payload\n", "del session.leases[token]\n",
        {"kind": "bare", "hold": 3, "prefetch": 5},
    ),
    # Machines of partitions
    "over too early": (
        segments, "self.admission.closed and not open_",
        "self.admission.closed and not self.admission.ready",
        {"kind": "arrival"},
    ),
    "lanes are kept": (
        segments, "if self._lanes is None or not self.voids:", "if True:",
        {"kind": "lanes", "faults": {"leave": 0.2}},
    ),
    "what was done before a run is not stored": (
        plain, "run, world, self._numbers.above))", "run, world, []))",
        {"kind": "plain", **_RANKS, "faults": _RUNS, "rows": 80},
    ),
    "whose turn it is is not stored": (
        segments, "self._committed[0], indices]",
        "self._committed[0], [max(indices)] * len(indices)]",
        {"kind": "arrival", **_RANKS, "faults": _DEATHS},
    ),
    "a new run goes on from an old cursor": (
        plain, "self._marks.clear()", "pass",
        {"kind": "plain", **_RANKS, "faults": _RUNS, "rows": 80},
    ),
    "a cursor is too far": (
        plain, "while self._marks and self._marks[0][0] <= self.first_open:", "while self._marks:",
        {"kind": "plain", "faults": _DEATHS, "rows": 80},
    ),
    # Trainers
    "ranks pass partitions by": (
        trainer, "if self.rank >= 0:\n                self._idle.add(request)\n            elif",
        "if",
        {"kind": "arrival", **_RANKS},
    ),
    "commits are not repeated": (
        trainer, "return held, commits, gets", "return held, [], gets",
        {"faults": _DEATHS},
    ),
    "epochs are asked for early": (
        trainer, "and self.rank < 0, chained, strict", "and self.rank < 0, chained, False",
        {**_EPOCHS, "kind": "arrival", "trainers": 3},
    ),
    "a trainer asks before all have welcomed it": (
        trainer, "self._unknown.difference_update(next_turns)", "self._unknown.clear()",
        {
            "kind": "plain",
            **_RANKS,
            "owners": 3,
            "partitions": 5,
            "prefetch": 2,
            "faults": {"kill": 0.3},
        },
    ),
    "a returned batch comes out of its place": (
        trainer, "if not (self.lanes or self.any_order):\n            self._withdraw",
        "if False:\n            self._withdraw",
        {"kind": "plain", **_RANKS, "faults": {"stop": 0.2}},
    ),
    "a trainer miscounts after Ctrl-C": (
        trainer, "self._flying = len(asked) + len(here)", "pass",
        {"faults": {"interrupt": 0.4}},
    ),
    "a trainer forgets a batch after Ctrl-C": (
        trainer, "{**{r: here[r] for r in self.ready if r in here}, **here}", "{}",
        {"faults": {"interrupt": 0.4}},
    ),
}  # fmt: skip

#: Where to begin, for bugs that few worlds find.
_RARE = {
    "a new run goes on from an old cursor": 60,
    "over before stored": 25,
    "ranks join those that are gone": 14,
    "welcomed before the join is stored": 21,
}
_CLASSES: dict[ModuleType, str] = {
    desk: "Desk",
    plain: "PlainMachine",
    segments: "Segments",
    trainer: "Trainer",
}


def _check(seed: int, changes: dict[str, Any]) -> None:
    World(seed, replace(config_of(seed), **{"steer": "", "faults": {}, **_SMALL, **changes})).run()


find = Planting(BUGS, _CLASSES, _check, MOST, _RARE).find
