"""Bugs to plant in the machine of segments that grow: random worlds of a log must find each."""

from __future__ import annotations

from types import ModuleType

from headrace_server.shaping import log_admission, segments

from . import live_feed
from .planting import Planting

#: Each bug by name: its module, the text that it changes, and the text in its place.
BUGS: dict[str, tuple[ModuleType, str, str]] = {
    "a segment is whole before its context is there": (
        log_admission, "return available >= at + own + self.growth.ahead",
        "return available >= at + own",
    ),
    "a sequence that ended after its last segment goes on": (
        log_admission, "~self.whole(entries)", "(tables.at[entries] < 0)",
    ),
    "what ended is not stored": (
        log_admission, "self.gone += lines", "pass",
    ),
    "the events of a row in a batch are lost": (
        log_admission, "tables.available[entry], tables.end[entry] = available, end",
        "if rests:\n            tables.available[entry], tables.end[entry] = available, end",
    ),
    "a sequence that rests keeps its place": (
        log_admission, 'steps, or end."""\n        self._stand(entries, RESTING)',
        'steps, or end."""\n        self._entries.standing[entries] = RESTING',
    ),
    "an abort takes what a batch has": (
        log_admission, "= tables.at[entry]\n        if not tables.out[entry]:",
        "= tables.at[entry]\n        if True:",
    ),
    "a sequence goes to another trainer amid its batches": (
        log_admission, "elif not tables.out[entry]:", "else:",
    ),
    "a batch that comes back leaves its sequences out": (
        log_admission, "\n        tables.out[entries] -= 1\n        tables.end[lost]",
        "\n        tables.end[lost]",
    ),
    "a claim is not read up to its steps": (
        segments, "closed | self.log.holds(entries, place)", "True",
    ),
    "the record has the position of the last record that came": (
        log_admission, "if not self._events:", "if True:",
    ),
    "an abort ends a sequence as its end does": (
        log_admission, "end = available if close == END else end\n",
        "close -= close == ABORT\n        end = available if close == END else end\n",
    ),
    "an abort is not stored": (
        log_admission, "if not tables.out[entry]:\n            self._free(one)\n",
        "if not tables.out[entry]:\n            self._free(one)\n            self.gone.pop()\n",
    ),
    "an abort of an earlier life is forgotten": (
        log_admission, "self._aborted = [(self._entry.get(of), of) for of in aborted]",
        "self._aborted = []",
    ),
    "what a batch has of a lost sequence is stored as pending": (
        log_admission, ".difference(self._lost(entries))", "",
    ),
}  # fmt: skip
#: Where to begin, for bugs that few worlds find.
_RARE = {
    "a batch that comes back leaves its sequences out": 22,
    "a claim is not read up to its steps": 139,
    "a segment is whole before its context is there": 130,
    "an abort of an earlier life is forgotten": 115,
    "what a batch has of a lost sequence is stored as pending": 2457,
    "a sequence goes to another trainer amid its batches": 22,
    "an abort ends a sequence as its end does": 4,
    "the events of a row in a batch are lost": 31,
    "the record has the position of the last record that came": 23,
    "a sequence that rests keeps its place": 15,
    "an abort takes what a batch has": 31,
}
_CLASSES: dict[ModuleType, str] = {log_admission: "LogAdmission", segments: "Segments"}
find = Planting(BUGS, _CLASSES, live_feed.check_live, 120, _RARE).find
