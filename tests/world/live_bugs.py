"""Bugs to plant in the machine of segments that grow: random worlds of a log must find each."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from headrace_server.shaping import log_admission, segments
from headrace_server.shaping.log_admission import LogAdmission
from headrace_server.shaping.segments import Segments

from .live_feed import check_live

#: Number of worlds in which a bug is looked for.
MOST = 120
#: Each bug by name: the method, the text in it that it changes, and the text in its place.
BUGS: dict[str, tuple[type, str, str, str]] = {
    "a segment is whole before its context is there": (
        LogAdmission, "_is_whole", " + self.growth.ahead", "",
    ),
    "a sequence that ended after its last segment goes on": (
        LogAdmission, "end_over", "~self.whole(entries)", "(tables.at[entries] < 0)",
    ),
    "what ended is not stored": (
        LogAdmission, "_free", "self.gone += lines", "pass",
    ),
    "the events of a row in a batch are lost": (
        LogAdmission, "_apply", "tables.available[entry], tables.end[entry] = available, end",
        "if rests:\n            tables.available[entry], tables.end[entry] = available, end",
    ),
    "a sequence that rests keeps its place": (
        LogAdmission, "rest", "self._stand(entries, RESTING)",
        "self._entries.standing[entries] = RESTING",
    ),
    "an abort takes what a batch has": (
        LogAdmission, "_cut_off", "if not tables.out[entry]:", "if True:",
    ),
    "a sequence goes to another trainer amid its batches": (
        LogAdmission, "_place", "elif not tables.out[entry]:", "else:",
    ),
    "a batch that comes back leaves its sequences out": (
        LogAdmission, "taken_back", "tables.out[entries] -= 1", "pass",
    ),
    "a claim is not read up to its steps": (
        Segments, "_reach", "closed | self.log.holds(entries, place)", "True",
    ),
    "the record has the position of the last record that came": (
        LogAdmission, "_note_seen", "if not self._events:", "if True:",
    ),
}  # fmt: skip
#: Where to begin, for bugs that few worlds find.
_RARE = {
    "a batch that comes back leaves its sequences out": 14,
    "a claim is not read up to its steps": 115,
    "a segment is whole before its context is there": 130,
    "a sequence goes to another trainer amid its batches": 22,
    "a sequence that rests keeps its place": 4,
}
_MODULES = {LogAdmission: log_admission, Segments: segments}


@contextmanager
def planted(name: str) -> Iterator[None]:
    of, method, old, new = BUGS[name]
    text = textwrap.dedent(inspect.getsource(getattr(of, method)))
    assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in {of.__name__}.{method}"
    found: dict[str, Any] = {}
    scope = {**vars(_MODULES[of])}
    exec(
        compile(
            "from __future__ import annotations\n" + text.replace(old, new),
            f"{method} with a bug",
            "exec",
        ),
        scope,
        found,
    )
    with mock.patch.object(of, method, found[method]):
        yield


def find(name: str, most: int = MOST) -> tuple[int, str]:
    """Plant a bug; return the seed of the world that finds it, and what it says ("": none)."""
    first = _RARE.get(name, 0)
    with planted(name):
        for seed in range(first, first + most):
            try:
                check_live(seed)
            except Exception as error:
                return seed, f"{type(error).__name__}: {error}"[:90]
    return -1, ""
