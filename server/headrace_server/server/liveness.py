"""Workers' posts: which process is at each, whether it makes progress, and how its life ended.

    begin() ─► child at work ─► look(), look() … ─► dead, or hangs and is ended ─► end(code)
       ▲                                                                              │
       └────────────────────────────── the next life ◄─── budget ◄──── vacate() ◄───────┘

A worker hangs when no beat has come into its diary for a time, by a clock that counts only while
its observer looks; it has longer while it opens its sources.  Deaths that nothing explains are
forgiven a few times within a window.
"""

from __future__ import annotations

import contextlib
import logging
import math
import signal
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from headrace_proto.errors import one_line, shown

from ..pipeline.declaration import Plain
from ..process.child import Child
from ..process.worker_diary import OPENING, STARTING, DiaryFile, Entry, long_inside

logger = logging.getLogger("headrace.server")

#: The longest time between two looks at the workers' diaries.
_LOOK_S = 1.0
#: Time without progress in a function of the user's after which the log names it: the program may
#: wait for the start of the server.
_SILENT_S = 5.0
#: Time for a hung worker to print where it is, before it is killed.
_WORDS_S = 1.0
#: Deaths of one worker that are forgiven within the window; the next one fails the feeds.
FORGIVEN = 3
WINDOW_S = 60.0


def gets_further(before: tuple[int, str], now: tuple[int, str]) -> bool:
    """Return whether a worker, alive as before, opens another place now: a large file takes long.

    Both are ``Post.opening``.
    """
    return before[0] == now[0] and now[1] not in ("", before[1])


@dataclass(frozen=True, slots=True)
class Patience:
    """The time that a worker may make no progress."""

    worker_timeout_s: float
    opening_timeout_s: float

    @property
    def look_s(self) -> float:
        """The time between two looks."""
        return min(_LOOK_S, self.worker_timeout_s / 4)


class Post:
    """The post of one worker, which one process after the other fills."""

    def __init__(self, number: int, diary: Path, patience: Patience) -> None:
        self.number = number
        self.diary_file = DiaryFile(diary)
        self.life = 0
        self.addresses: list[str] = []  # where its last life was bound
        self.child: Child | None = None
        self.due_at = math.inf  # when to begin its next life …
        self.begun = False  # … which has its term, and lacks its process
        self.words = ""  # which describe the death before
        self.refused = ""  # why its next life can not begin now
        self._patience = patience
        self._beat = -1, 0.0  # the last beat, and when it was seen
        self._deaths: deque[float] = deque()  # those that count for the restart budget
        self._hung = ""  # description of a worker that was ended because it hung
        self._named = ""  # the function that the log has named in this life
        self._killed_for_memory = 0  # processes of this machine, when the life began

    @property
    def name(self) -> str:
        """The name of the child of this life."""
        return f"worker-{self.number}-{self.life}"

    @property
    def doing(self) -> str:
        """The worker's present activity, in words."""
        if self.child is None:
            refused = f", which is refused now: {self.refused}" if self.refused else ""
            return f"it is dead, and will be started again{refused}"
        return self._hung or self.diary_file.read().describe()

    @property
    def status(self) -> dict[str, Plain]:
        """The worker's part of a status, as far as a supervisor knows it."""
        pid = None if self.child is None else self.child.pid
        mine = {"worker": self.number, "pid": pid, "restarts": self.life}
        return {**mine, "doing": self.doing, "shares": {}}

    @property
    def inside(self) -> str:
        """The user function in which the worker has been for long, in words; empty for none."""
        entry = self.diary_file.read()
        return long_inside(self.number, entry)

    @property
    def opening(self) -> tuple[int, str]:
        """The number of the life, and the file that it opens now."""
        entry = self.diary_file.read()
        return self.life, entry.where if entry.doing == OPENING else ""

    def begin(self) -> None:
        """Prepare for a life that is about to begin."""
        self.refused = ""
        self.diary_file.begin()
        self._beat, self._hung, self._named = (-1, 0.0), "", ""
        self._killed_for_memory = kills_for_memory()

    def look(self, now: float) -> None:
        """End a worker that has stopped to make progress."""
        child, patience = self.child, self._patience
        if child is None or self._hung:
            return
        if (beats := self.diary_file.beats()) != self._beat[0]:
            self._beat = beats, now
        still_s = now - self._beat[1]
        entry = self.diary_file.read()
        if still_s >= _SILENT_S and entry.inside != self._named:
            self._named = entry.inside
            text = "%s has made no progress for %.0f s; %s"
            logger.warning(text, child.name, still_s, one_line(entry.describe()))
        opens = entry.doing in (STARTING, OPENING)
        if still_s < (patience.opening_timeout_s if opens else patience.worker_timeout_s):
            return
        option = "start_timeout_s" if opens and still_s > patience.worker_timeout_s else ""
        self._hung = (
            f"made no progress for {still_s:.0f} s "
            f"({option or 'worker_timeout_s'} bounds that) and was ended; {entry.describe()}"
        )
        logger.warning("%s %s", child.name, self._hung)
        child.kill(signal.SIGABRT)  # then it prints where it is, unless it is stopped
        if child.wait(_WORDS_S) is None:
            child.kill(signal.SIGKILL)

    def end(self, code: int | None) -> str:
        """Describe how the worker ended, for a text that begins with its name."""
        if self._hung:
            return self._hung
        end = end_of(code)
        if code == -signal.SIGKILL:
            n = kills_for_memory() - self._killed_for_memory
            if n > 0:
                end += f", and the kernel killed {n} while it lived because memory had run out"
        return end

    def explain(self) -> None:
        """Forget the deaths up to now: their cause is known, so they do not count."""
        self._deaths.clear()

    def forgives(self, now: float) -> bool:
        """Note a death at this moment; return whether the worker is started again."""
        self._deaths.append(now)
        while self._deaths[0] < now - WINDOW_S:
            self._deaths.popleft()
        return len(self._deaths) <= FORGIVEN

    def vacate(self) -> Entry:
        """Empty the post of a dead worker; return its last entry."""
        self.child, self.life = None, self.life + 1
        return self.diary_file.read()


def end_of(code: int | None) -> str:
    """Describe how a child ended, for a text that begins with its name."""
    if code is not None and code < 0:
        return f"was killed by {_signal_name(-code)}"
    return f"ended with exit code {code}"


def obituary(child: Child, end: str) -> str:
    """Describe how a child ended, with its dying report or else its last printed lines."""
    text = f"{child.name} {end}"
    if child.reason:
        return f"{text}: {shown(child.reason)}"
    last = child.words()
    return f"{text}; its last words were:\n  {shown(last)}" if last else text


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"


def kills_for_memory() -> int:
    """Return how many processes this machine's kernel has killed because memory had run out."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
