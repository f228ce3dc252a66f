"""Bugs to plant in a log, one at a time, by changing a line: random worlds must find each."""

from __future__ import annotations

from types import ModuleType

from headrace_server.logs import ledger, log, sequences

from . import logs
from .planting import Planting

#: Each bug by name: its module, the line it changes, and the line in its place.
BUGS: dict[str, tuple[ModuleType, str, str]] = {
    "acknowledged before it is durable": (
        ledger,
        "Answer(p.durable, refused,",
        "Answer(p.last, refused,",
    ),
    "welcomed before it is durable": (
        ledger,
        (
            "        if self._group.count:\n"
            "            self._group.joined.append(connection)\n"
            "        elif"
        ),
        "        p.durable = p.last\n        if",
    ),
    "a number that comes twice is taken twice": (
        ledger,
        "if item.number <= p.last:\n",
        "p.last -= item.number == p.last\n            if item.number <= p.last:\n",
    ),
    "numbers are not in the table": (
        ledger,
        "for p in self._producers.values()\n        ]",
        "for p in ()\n        ]",
    ),
    "a restart forgets what was refused": (
        ledger,
        "if kind == Kind.REFUSED:",
        "if kind == Kind.REFUSED and self._complete:",
    ),
    "a refusal is told once": (
        ledger,
        "self._on_acknowledged(p, heard)\n        self._connections",
        "self._on_acknowledged(p, p.durable)\n        self._connections",
    ),
    "an older process of the name goes on": (
        ledger,
        "elif birth < p.birth or (birth",
        "elif (birth",
    ),
    "an owner that dies forgets which process is newer": (
        ledger,
        "if p is None or birth > p.birth:\n",
        "if p is not None:\n            p.birth = birth\n        if p is None:\n",
    ),
    "an older connection counts": (
        ledger,
        "        self.gone(before)\n",
        "",
    ),
    "an idle clock runs while the owner is away": (
        ledger,
        "self._frozen = now  #",
        "self._frozen = -NEVER  #",
    ),
    "an idle clock runs while producers lack credit": (
        ledger,
        "            self._frozen = now\n",
        "            pass\n",
    ),
    "credit is lost with some items": (
        ledger,
        "            p.received += cost\n",
        "            p.received += cost\n            cost //= 2\n",
    ),
    "a full log starves its feeds": (
        ledger,
        " and not self.starving",
        "",
    ),
    "openings that are sent again lack their places": (
        ledger,
        "now, connection, reopens, None",
        "now, connection, 0, None",
    ),
    "the table has open sequences alone": (
        ledger,
        "s.row.get(of)) >= 0:\n                rows",
        "s.row.get(of)) >= 0 and not s.state[row]:\n                rows",
    ),
    "a table begins amid a group": (
        ledger,
        "            self._end_group()\n            self._table, ",
        "            self._table, ",
    ),
    "files go though the table lacks what a lagging feed found": (
        ledger,
        "min(*seen, self._marked(optional))",
        "min(seen)",
    ),
    "what a lagging feed reads again counts as open": (
        sequences,
        "if self.state[row] == Close.GOING:",
        "if self.state[row] & ~RECALLED == Close.GOING:",
    ),
    "a table begins while extents are carried": (
        ledger,
        "if self._carrying or self._since < due",
        "if self._since < due",
    ),
    "extents move before their copy is durable": (
        ledger,
        "self._group.moved.append((row, extent._replace(place=place)))",
        "s.move(row, self._group.file, place)",
    ),
    "a file goes while an extent lies there": (
        ledger,
        "if not live.get(file):",
        "if True:",
    ),
    "a file goes before a feed has stored that it is beyond": (
        ledger,
        "or newest > seen:\n                return",
        "or newest > self.durable:\n                return",
    ),
    "a sequence that ended is forgotten before its feed has stored it": (
        ledger,
        "view.floors[row] = 0 if record.kind == Kind.OPENED else _DONE",
        "pass",
    ),
    "a restart does not read what feeds had read": (
        ledger,
        "return range(first, min(",
        "return range(last + 1, min(",
    ),
    "a restart does not read again what its table lacks": (
        ledger,
        "max([self._restored - 1, *lacks])",
        "self._restored - 1",
    ),
    "a restart does not read again of what a feed had brought back a part": (
        ledger,
        "else s.state[row] & RECALLED)",
        "else False)",
    ),
    "what is carried takes the place of the file's end": (
        ledger,
        "            place += nbytes\n\n    def next_file",
        "\n    def next_file",
    ),
    "no table is ever whole": (
        ledger,
        "if piece is None:\n            self._group.table",
        (
            "if piece is None:\n"
            "            self._table = None\n"
            "            return\n"
            "            self._group.table"
        ),
    ),
    "feeds read what is not durable": (
        log,
        "if position > ledger.durable:",
        "if position >= ledger.position:",
    ),
    "a file that came back after a crash stays": (
        log,
        "                self._files.delete(number)\n\n    # At work",
        "                pass\n\n    # At work",
    ),
    "a context goes with the first steps": (
        sequences,
        "and floor < NEVER",
        "and False",
    ),
    "snapshots hold nothing": (
        ledger,
        "if view.required or optional]",
        "if view.read < NEVER]",
    ),
    "a restart forgets that a log is closed": (
        ledger,
        "self.closed, self._next_look = True, 0.0",
        "self.closed, self._next_look = self._complete, 0.0",
    ),
    "a restart forgets an abort": (
        ledger,
        'one["close"][known] > 0]',
        'one["close"][known] == Close.END]',
    ),
    "an abort frees no place": (
        ledger,
        "            if s.state[row]:\n                s.settle(",
        "            if s.state[row]:\n                s.state[row] == Close.ABORT or s.settle(",
    ),
    "an abort frees no room": (
        ledger,
        "if self.sequences.state[row] and not any(",
        "if self.sequences.state[row] & ~Close.ABORT and not any(",
    ),
    "an abort is acknowledged before it is durable": (
        ledger,
        "            self._take(p, item, now)\n",
        (
            "            self._take(p, item, now)\n"
            "            p.durable = item.number if item.close == Close.ABORT else p.durable\n"
        ),
    ),
    "an abort takes no number": (
        ledger,
        "head = (Kind.STEPS, close, 0, first, steps, s.id[row])",
        (
            "number = 0 if close == Close.ABORT else number\n"
            "            head = (Kind.STEPS, close, 0, first, steps, s.id[row])"
        ),
    ),
}

_RARE = {
    "a file that came back after a crash stays": 209,
    "a full log starves its feeds": 55,
    "a restart does not read again of what a feed had brought back a part": 103,
    "a table begins amid a group": 475,
    "a table begins while extents are carried": 81,
    "an owner that dies forgets which process is newer": 138,
    "an older connection counts": 6,
    "credit is lost with some items": 15,
    "extents move before their copy is durable": 10,
    "an idle clock runs while producers lack credit": 4,
    "an older process of the name goes on": 6,
    "files go though the table lacks what a lagging feed found": 47,
    "snapshots hold nothing": 19,
}
_CLASSES: dict[ModuleType, str] = {ledger: "Ledger", log: "Log", sequences: "Sequences"}
find = Planting(BUGS, _CLASSES, logs.check, 300, _RARE).find
